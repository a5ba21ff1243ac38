"""The tables of the older system, from Kafka to a client, as `livetables up --preset asof` serves them.

Beside the default preset, the same system shows what keys of each role may do: the start of Spark takes longer than
all of these tests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import livetables
from livetables.client.http import HttpClient
from livetables.model.errors import RequestError
from tests.support.kafka import Record, produce
from tests.support.up import Up

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

OPERATOR, VIEWER = "an-operators-key", "a-viewers-key"
SETTINGS = {
    "LIVETABLES_TOKEN": OPERATOR,
    "LIVETABLES_VIEWER_TOKEN": VIEWER,
    "LIVETABLES_SERVER_PORT": "0",
    "LIVETABLES_SERVER_FLIGHT_PORT": "0",
    "LIVETABLES_PIPELINE_MASTER": "local[2]",
    "LIVETABLES_PIPELINE_DRIVER_MEMORY_MEGABYTES": "1024",
}
PAGE = "http://localhost:4200"
OLD_COLUMNS = {
    "user": ["userId", "name", "email", "age", "ts"],
    "account": ["userId", "accountType", "balance", "ts"],
    "user_account": ["userId", "accountType", "balance", "ts", "name", "email", "age"],
}
USERS = [
    (1000, {"userId": "u1", "name": "Ann", "email": "a@x", "age": 30}),
    (3000, {"userId": "u1", "name": "Anna", "email": "a@y", "age": 31}),
]
ACCOUNTS = [
    (2000, {"userId": "u1", "accountType": "savings", "balance": 1.5}),
    (3000, {"userId": "u1", "accountType": "current", "balance": 2.5}),
    (500, {"userId": "u1", "accountType": "early", "balance": 3.5}),
    (9000, {"userId": "u9", "accountType": "nobody", "balance": 4.5}),
]


@contextmanager
def running(directory: Path, *presets: str) -> Iterator[Up]:
    """A system with these presets, and the records above in its topics."""
    arguments = [argument for name in presets for argument in ("--preset", name)]
    with Up(directory, *arguments, "--origin", PAGE, settings=SETTINGS) as system:
        system.wait_ready()
        kafka = system.facts()["addresses"]["kafka"]
        for topic, records in (("user", USERS), ("account", ACCOUNTS)):
            produce(kafka, [Record(topic, 0, json.dumps(value).encode(), time) for time, value in records])
        yield system


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with running(tmp_path_factory.mktemp("up"), "default", "asof") as system:
        yield system


@pytest.fixture(
    scope="module",
    params=[pytest.param("alone", marks=pytest.mark.chaos), "beside the default preset"],
)
def up(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    if request.param == "alone":
        with running(tmp_path_factory.mktemp("up"), "asof") as system:
            yield system
    else:
        yield request.getfixturevalue("both")


def connected(up: Up) -> livetables.Connection:
    facts = up.facts()
    return livetables.connect(facts["addresses"]["http"], facts["token"])


def shown(rows: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Rows as a page sees them, in the order of their accounts."""
    visible = [{column: row[column] for column in OLD_COLUMNS[name]} for row in rows]
    return sorted(visible, key=lambda row: str(row.get("accountType")))


def test_tables_have_exactly_the_old_columns(up: Up) -> None:
    with connected(up) as connection:
        for name, columns in OLD_COLUMNS.items():
            found = [column for column in connection.table(name).columns if not column.startswith("_")]
            assert found == columns, name


def test_every_account_has_the_user_as_it_was_then(up: Up) -> None:
    with connected(up) as connection:
        table = connection.table("user_account")

        def rows() -> list[dict[str, Any]]:
            return shown(table.to_arrow().to_pylist(), "user_account")

        expected = [
            ("current", 2.5, 3000, "Anna", "a@y", 31, "u1"),
            ("early", 3.5, 500, None, None, None, "u1"),
            ("nobody", 4.5, 9000, None, None, None, "u9"),
            ("savings", 1.5, 2000, "Ann", "a@x", 30, "u1"),
        ]
        wanted = [
            {
                "userId": user,
                "accountType": kind,
                "balance": balance,
                "ts": datetime.fromtimestamp(time / 1000, UTC),
                "name": name,
                "email": email,
                "age": age,
            }
            for kind, balance, time, name, email, age, user in expected
        ]
        up.wait(lambda: rows() == wanted, f"user_account has these rows: {wanted}")
        assert (connection.table("user").count(), connection.table("account").count()) == (2, 4)


def status(address: str, token: str, origin: str) -> int:
    with closing(HTTPConnection(urlsplit(address).netloc, timeout=30)) as connection:
        connection.request("GET", "/api/tables", headers={"Authorization": f"Bearer {token}", "Origin": origin})
        return connection.getresponse().status


def test_the_page_of_the_command_line_may_ask_and_others_may_not(up: Up) -> None:
    facts = up.facts()
    address, token = facts["addresses"]["http"], facts["token"]
    assert status(address, token, PAGE) == 200
    assert status(address, token, "http://localhost:4201") == 403


def http_client(up: Up, token: str) -> HttpClient:
    return HttpClient(up.facts()["addresses"]["http"], token)


def test_the_pipeline_writes_with_a_key_that_was_made_for_it(both: Up) -> None:
    assert http_client(both, VIEWER).get("/api/tables/users_ui/rows", {"limit": "1"})["total"] > 0
    for token, role in ((OPERATOR, "operator"), (VIEWER, "viewer")):
        with pytest.raises(RequestError, match=f"needs the role pipeline; this key has the role {role}"):
            http_client(both, token).post("/api/frames", {})
    made = [
        value
        for pid in (both.facts()["pids"]["server"], both.facts()["pids"]["pipeline"])
        for name, _, value in (each.partition("=") for each in Path(f"/proc/{pid}/environ").read_text().split("\0"))
        if name == "LIVETABLES_PIPELINE_TOKEN"
    ]
    assert len(made) == 2
    assert made[0] == made[1]
    assert made[0] not in (both.directory / ".livetables" / "up.json").read_text()
    with pytest.raises(RequestError, match="needs the role viewer; this key has the role pipeline"):
        http_client(both, made[0]).get("/api/tables")


def test_a_viewer_on_the_command_line_gets_an_error_that_names_the_role_that_is_needed(both: Up) -> None:
    both.environment["LIVETABLES_TOKEN"] = VIEWER
    del both.environment["LIVETABLES_VIEWER_TOKEN"]
    try:
        done = both.run("control", "--join", "inner")
        assert done.returncode != 0
        assert "control messages needs the role operator; this key has the role viewer" in done.stderr
        assert both.run("tables").returncode == 0
    finally:
        both.environment.update(SETTINGS)


def test_an_operator_sends_a_message_once_whatever_becomes_of_its_answer(both: Up) -> None:
    headers = {"Idempotency-Key": "one-and-the-same"}
    first = http_client(both, OPERATOR).post("/api/control", {"joinType": "inner"}, headers)
    assert http_client(both, OPERATOR).post("/api/control", {"joinType": "inner"}, headers) == first
    both.wait(
        lambda: http_client(both, VIEWER).rows("orchestrator_status")[0]["joinType"] == "inner",
        "the message is applied",
    )
    (row,) = http_client(both, VIEWER).rows("control_raw")
    assert (row["outcome"], '"messageId": "one-and-the-same"' in row["raw"]) == ("applied", True)
