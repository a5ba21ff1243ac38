"""Roles in a real system: the pipeline writes with a key of its own, which nobody else has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from livetables.client.http import HttpClient
from livetables.model.errors import RequestError
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


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with Up(tmp_path_factory.mktemp("up"), "--demo", "--rate", "2", settings=SETTINGS) as system:
        system.wait_ready()
        yield system


def http_client(up: Up, token: str) -> HttpClient:
    return HttpClient(up.facts()["addresses"]["http"], token)


def test_the_pipeline_writes_with_a_key_that_was_made_for_it(up: Up) -> None:
    assert http_client(up, VIEWER).get("/api/tables/users_ui/rows", {"limit": "1"})["total"] > 0
    for token, role in ((OPERATOR, "operator"), (VIEWER, "viewer")):
        with pytest.raises(RequestError, match=f"needs the role pipeline; this key has the role {role}"):
            http_client(up, token).post("/api/frames", {})
    made = [
        value
        for pid in (up.facts()["pids"]["server"], up.facts()["pids"]["pipeline"])
        for name, _, value in (each.partition("=") for each in Path(f"/proc/{pid}/environ").read_text().split("\0"))
        if name == "LIVETABLES_PIPELINE_TOKEN"
    ]
    assert len(made) == 2
    assert made[0] == made[1]
    assert made[0] not in (up.directory / ".livetables" / "up.json").read_text()
    with pytest.raises(RequestError, match="needs the role viewer; this key has the role pipeline"):
        http_client(up, made[0]).get("/api/tables")


def test_a_viewer_on_the_command_line_gets_an_error_that_names_the_role_that_is_needed(up: Up) -> None:
    up.environment["LIVETABLES_TOKEN"] = VIEWER
    del up.environment["LIVETABLES_VIEWER_TOKEN"]
    try:
        done = up.run("control", "--join", "inner")
        assert done.returncode != 0
        assert "control messages needs the role operator; this key has the role viewer" in done.stderr
        assert up.run("tables").returncode == 0
    finally:
        up.environment.update(SETTINGS)


def test_an_operator_sends_a_message_once_whatever_becomes_of_its_answer(up: Up) -> None:
    headers = {"Idempotency-Key": "one-and-the-same"}
    first = http_client(up, OPERATOR).post("/api/control", {"joinType": "inner"}, headers)
    assert http_client(up, OPERATOR).post("/api/control", {"joinType": "inner"}, headers) == first
    up.wait(
        lambda: http_client(up, VIEWER).rows("orchestrator_status")[0]["joinType"] == "inner", "the message is applied"
    )
    (row,) = http_client(up, VIEWER).rows("control_raw")
    assert (row["outcome"], '"messageId": "one-and-the-same"' in row["raw"]) == ("applied", True)
