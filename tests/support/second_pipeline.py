"""A pipeline without Spark, in a process of its own: holds the server, and writes batch after batch.

It prints a line of JSON for each thing that happens. `python -m tests.support.second_pipeline LOCATION KEY GENERATION`
"""

from __future__ import annotations

import json
import sys
import time

import pyarrow as pa

from livetables.model.change import Batch, TableChanges, TableShape
from livetables.model.errors import SinkError
from livetables.pipeline.server_client import ServerClient
from livetables.pipeline.table_server import HeldError

SHAPE = TableShape("people", pa.schema([("id", pa.int64())]), ("id",))


def report(event: str, **fields: object) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def main() -> None:
    location, key, generation = sys.argv[1:]
    sink = ServerClient(location, key, patience_seconds=30)
    while True:
        try:
            report("started", number=sink.start_pipeline())
            break
        except HeldError as error:
            report("held", problem=error.problem)
            time.sleep(0.5)
    try:
        sink.begin(generation, [SHAPE])
        sink.publish(generation)
        batch_id = 0
        while True:
            rows = pa.table({"id": [batch_id]}, SHAPE.schema)
            sink.put(Batch(generation, batch_id, (TableChanges("people", rows, SHAPE.key_schema.empty_table()),)))
            sink.report(generation, [])
            report("put", batch=batch_id)
            batch_id += 1
            time.sleep(0.1)
    except SinkError as error:
        report("ended", kind=type(error).__name__, problem=error.problem)


if __name__ == "__main__":
    main()
