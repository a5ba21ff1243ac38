"""The watcher of other tests: it notes what a page should never show, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import pyarrow as pa
import pytest

from livetables.model.change import Batch, TableChanges, TableShape
from livetables.pipeline.server_client import ServerClient
from tests.support.kafka import wait_until
from tests.support.server import ServerProcess
from tests.support.watcher import TABLES, Watcher

SCHEMA = pa.schema([("_id", pa.int64()), ("name", pa.string()), ("accountType", pa.string())])
SHAPES = [TableShape(table, SCHEMA, ("_id",)) for table in TABLES]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def sink(server: ServerProcess) -> Iterator[ServerClient]:
    """A way to the server, which serves tables that are in order."""
    sink = server.sink()
    for generation in sink.generations():
        sink.drop(generation.name)
    publish(sink, "g1", dict.fromkeys(TABLES, "a"))
    yield sink
    sink.close()


def publish(sink: ServerClient, generation: str, topics: Mapping[str, str]) -> None:
    """Publish a generation whose tables have a row of each of these topics, or none."""
    sink.begin(generation, SHAPES)
    put(sink, generation, 0, topics)
    sink.publish(generation)


def put(sink: ServerClient, generation: str, batch_id: int, topics: Mapping[str, str]) -> None:
    changes = [
        TableChanges(
            table,
            pa.Table.from_pylist(
                [
                    {"_id": batch_id * 10 + place, "name": f"{topic} Ann", "accountType": topic}
                    for place, topic in enumerate(topics[table].split())
                ],
                schema=SCHEMA,
            ),
            pa.table({}),
        )
        for table in TABLES
        if table in topics
    ]
    sink.put(Batch(generation, batch_id, tuple(changes)))


def seen(watcher: Watcher, sink: ServerClient, generation: str, topics: Mapping[str, str]) -> list[str]:
    """What the watcher notes when such a generation takes over."""
    publish(sink, generation, topics)
    wait_until(
        lambda: bool(watcher.violations) or all(watcher.generation(table) == generation for table in TABLES),
        f"the watcher has seen {generation}, or a fault",
    )
    return watcher.violations


def test_generations_that_follow_each_other_are_no_fault(server: ServerProcess, sink: ServerClient) -> None:
    with Watcher(server) as watcher:
        watcher.wait_for_rows()
        assert seen(watcher, sink, "g2", dict.fromkeys(TABLES, "b b b")) == []
        put(sink, "g2", 1, dict.fromkeys(TABLES, "b"))
        wait_until(lambda: watcher.sights["users_ui", "g2"].rows == 4, "the new row is seen")
        assert seen(watcher, sink, "g3", dict.fromkeys(TABLES, "a")) == []
    assert (watcher.sights["users_ui", "g2"].rows_at_first, watcher.sights["users_ui", "g2"].topics) == (3, {"b"})
    assert watcher.violations == []


def test_a_gap_is_the_longest_time_without_a_frame_of_some_table(server: ServerProcess, sink: ServerClient) -> None:
    with Watcher(server) as watcher:
        watcher.wait_for_rows()
        start = time.monotonic()
        seen(watcher, sink, "g2", {table: "b" for table in TABLES})
        end = time.monotonic()
        assert 0 < watcher.gap_seconds(start, end) < end - start
        assert watcher.gap_seconds(end, end + 7) == 7


def test_an_empty_table_is_a_fault(server: ServerProcess, sink: ServerClient) -> None:
    with Watcher(server) as watcher:
        watcher.wait_for_rows()
        (fault, *_) = seen(watcher, sink, "g2", {**dict.fromkeys(TABLES, "b"), "accounts_ui": ""})
    assert "accounts_ui was empty" in fault


def test_a_mixed_table_is_a_fault(server: ServerProcess, sink: ServerClient) -> None:
    with Watcher(server) as watcher:
        watcher.wait_for_rows()
        assert "mixed" in seen(watcher, sink, "g2", {**dict.fromkeys(TABLES, "b"), "users_ui": "a b"})[0]


def test_tables_of_two_generations_at_one_moment_are_a_fault(server: ServerProcess, sink: ServerClient) -> None:
    with Watcher(server) as watcher:
        watcher.wait_for_rows()
        publish(sink, "g2", {**dict.fromkeys(TABLES, "b"), "final_ui": "a"})
        wait_until(lambda: bool(watcher.violations), "the fault is seen")
        assert "several generations" in watcher.violations[0]


@pytest.mark.usefixtures("sink")
def test_a_closed_socket_is_a_fault(server: ServerProcess) -> None:
    with Watcher(server) as watcher:
        watcher.wait_for_rows()
        server.stop()
        server.start()
        wait_until(lambda: any("closed" in fault for fault in watcher.violations), "the fault is seen")
