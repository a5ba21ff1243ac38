"""kill -9 of the server while the pipeline's side sends: nothing that was acknowledged is lost, nothing is doubled."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from livetables.model.change import Batch, TableChanges, TableShape
from tests.support.memory import MemorySink
from tests.support.server import LiveClient, ServerProcess

pytestmark = pytest.mark.processes

BATCHES = 200
KILLS = 3
SCHEMA = pa.schema([("_left_id", pa.int64()), ("_right_id", pa.int64()), ("value", pa.string())])
APPENDED = TableShape("users_ui", SCHEMA, ("_left_id",), appends=True)
KEYED = TableShape("final_ui", SCHEMA, ("_left_id", "_right_id"))
VERSIONED = TableShape("natural_ui", SCHEMA, ("_left_id",), version=("_right_id",))


def batches(chance: random.Random) -> list[Batch]:
    made = []
    for batch_id in range(BATCHES):
        left = chance.sample(range(300), k=20)
        right = [chance.choice([None, *range(10)]) for _ in left]
        values = [f"{batch_id}-{number}" for number in range(20)]
        rows = pa.table([left, right, values], schema=SCHEMA)
        fresh = pa.table([range(batch_id * 20, batch_id * 20 + 20), right, values], schema=SCHEMA)
        gone = chance.sample(sorted(set(range(300)) - set(left)), k=5)
        deletes = pa.table([gone, [None] * 5], schema=KEYED.key_schema)
        changes = (
            TableChanges(APPENDED.name, fresh, pa.table({})),
            TableChanges(KEYED.name, rows, deletes),
            TableChanges(VERSIONED.name, rows, pa.table({})),
        )
        made.append(Batch("g1", batch_id, changes))
    return made


def test_a_server_killed_among_two_hundred_batches_ends_with_all_of_them(tmp_path: Path) -> None:
    chance = random.Random()
    shapes = [APPENDED, KEYED, VERSIONED]
    model = MemorySink()
    model.begin("g1", shapes)
    with ServerProcess(tmp_path) as server:
        sink = server.sink(patience_seconds=60)
        sink.begin("g1", shapes)
        sink.publish("g1")
        sent = batches(chance)
        kill_at = sorted(chance.sample(range(1, BATCHES), KILLS))
        for batch in sent:
            model.put(batch)
            if batch.batch_id in kill_at:
                # While the batch is under way, at whatever point that is.
                killing = threading.Timer(chance.uniform(0, 0.02), server.kill)
                killing.start()
                with ThreadPoolExecutor(1) as sending:
                    acknowledged = sending.submit(sink.put, batch)
                    killing.join()
                    server.start()
                    acknowledged.result()
            else:
                sink.put(batch)
            if chance.random() < 0.1:
                sink.put(chance.choice(sent[: batch.batch_id + 1]))  # a batch that comes again changes nothing
        server.kill()
        server.start()
        for shape in shapes:
            assert rows_of(server, shape.name) == in_order(model.rows(shape.name, "g1"))
        with LiveClient(server.websocket) as client:
            client.subscribe(1, "final_ui", size=10_000)
            assert client.receive_type("snapshot")["total"] == len(model.rows("final_ui", "g1"))
        sink.close()


def rows_of(server: ServerProcess, table: str) -> list[dict[str, Any]]:
    return in_order(server.table(table).to_pylist())


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: str(sorted(row.items())))
