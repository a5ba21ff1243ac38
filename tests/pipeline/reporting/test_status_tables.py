"""The status tables on a real server: over restarts of either side, and with another configuration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from livetables.config.load import load_config
from livetables.model.errors import SinkError
from livetables.pipeline.reporting import status
from livetables.pipeline.reporting.status_tables import StatusTables
from livetables.pipeline.server_client import ServerClient
from livetables.pipeline.table_server import NoAnswerError
from tests.support.server import LiveClient, ServerProcess

pytestmark = pytest.mark.processes

SPEC = load_config(None, {}).spec


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path) as running:
        yield running


@pytest.fixture
def sink(server: ServerProcess) -> Iterator[ServerClient]:
    sink = server.sink(patience_seconds=3)
    yield sink
    sink.close()


def control_row(number: int, outcome: str | None = None) -> dict[str, object]:
    return {"_id": number, "raw": f"message {number}", "outcome": outcome}


def raw(server: ServerProcess) -> list[tuple[str, str | None]]:
    return [(row["raw"], row["outcome"]) for row in server.rows("control_raw")]


def test_the_status_is_one_row_that_is_updated_in_place(server: ServerProcess, sink: ServerClient) -> None:
    tables = StatusTables(sink, SPEC)
    tables.set("orchestrator_status", {"_id": status.ONLY_ROW, "state": "building"})
    tables.flush()
    with LiveClient(server.websocket) as client:
        client.subscribe(1, "orchestrator_status", size=10)
        client.receive_type("snapshot")
        tables.set("orchestrator_status", {"_id": status.ONLY_ROW, "state": "live"})
        tables.flush()
        client.receive_type("patch")
        (row,) = client.windows[1].as_dicts()
        assert row["state"] == "live"
        assert list(row) == [
            "_id",
            "usersTopic",
            "accountsTopic",
            "joinType",
            "lastApplied",
            "generation",
            "state",
            "lag",
            "message",
        ]


def test_outcomes_come_later_and_keep_the_order(server: ServerProcess, sink: ServerClient) -> None:
    tables = StatusTables(sink, SPEC)
    for number in (1, 2, 3):
        tables.set("control_raw", control_row(number))
    tables.flush()
    for number, outcome in ((3, "applied"), (1, "superseded")):
        tables.set("control_raw", control_row(number, outcome))
    tables.flush()
    assert raw(server) == [("message 1", "superseded"), ("message 2", None), ("message 3", "applied")]


def test_rows_that_are_gone_leave_their_table(server: ServerProcess, sink: ServerClient) -> None:
    def topics() -> list[str]:
        return sorted(row["topic"] for row in server.rows("kafka_topics"))

    tables = StatusTables(sink, SPEC)
    for topic in ("one", "two", "three"):
        tables.set("kafka_topics", {"topic": topic})
    tables.flush()
    assert topics() == ["one", "three", "two"]
    tables.set("kafka_topics", {"topic": "four"})
    tables.keep_only("kafka_topics", {"two", "four"})
    tables.flush()
    assert topics() == ["four", "two"]
    anew = StatusTables(sink, SPEC)
    anew.load()
    anew.keep_only("kafka_topics", {"four"})
    anew.flush()
    assert topics() == ["four"]


def test_a_new_process_goes_on_with_what_the_server_has(server: ServerProcess, sink: ServerClient) -> None:
    first = StatusTables(sink, SPEC)
    first.set("control_raw", control_row(1, "applied"))
    first.flush()
    second = StatusTables(sink, SPEC)
    second.load()
    assert [row["outcome"] for row in second.rows("control_raw")] == ["applied"]
    second.set("control_raw", control_row(2, "rejected"))
    second.flush()
    assert raw(server) == [("message 1", "applied"), ("message 2", "rejected")]


def test_with_other_tables_in_the_configuration_the_rows_are_taken_along(
    server: ServerProcess, sink: ServerClient
) -> None:
    first = StatusTables(sink, SPEC)
    first.set("control_raw", {**control_row(1, "applied"), "usersTopic": "u2"})
    first.flush()
    environment = {"LIVETABLES_PRESETS": "default"}
    other = load_config(None, environment).spec
    third = other.tables[0].__class__("orders", "shop", other.tables[0].columns, "orders_ui")
    second = StatusTables(sink, type(other)((*other.tables, third), other.views))
    second.load()
    second.flush()
    (row,) = server.rows("control_raw")
    assert (row["usersTopic"], row["ordersTopic"], row["outcome"]) == ("u2", None, "applied")
    assert [each.name for each in sink.generations() if each.name.startswith("status-")] == [
        each.name for each in sink.generations() if each.published
    ]


def test_what_could_not_be_sent_is_sent_later_once(server: ServerProcess, sink: ServerClient) -> None:
    tables = StatusTables(sink, SPEC)
    tables.flush()
    server.kill()
    tables.set("control_raw", control_row(1))
    with pytest.raises(NoAnswerError):
        tables.flush()
    tables.set("control_raw", control_row(2))
    server.start()
    tables.flush()
    assert raw(server) == [("message 1", None), ("message 2", None)]


def test_a_server_that_has_lost_its_tables_gets_them_anew(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, {"LIVETABLES_SERVER_STORE": ":memory:"}) as server:
        sink = server.sink()
        tables = StatusTables(sink, SPEC)
        tables.set("control_raw", control_row(1, "applied"))
        tables.flush()
        server.kill()
        server.start()
        tables.set("control_raw", control_row(2, "rejected"))
        with pytest.raises(SinkError):
            tables.flush()
        tables.flush()
        assert raw(server) == [("message 1", "applied"), ("message 2", "rejected")]
        sink.close()
