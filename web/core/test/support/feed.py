"""The pipeline's side of the tests of the TypeScript client: what they write to it goes to a real server.

One JSON object a line from standard input, one answer a line to standard output:

begin     a new generation with these tables, each with its columns and aliases
put       a batch: rows to upsert and ids to delete, by table
publish   the generation takes over the stable names
report    what the pipeline says of itself
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from livetables.model.change import Batch, TableChanges, TableShape
from livetables.model.wire import SourceReport
from livetables.pipeline.server_client import ServerClient

TYPES: Mapping[str, pa.DataType] = {
    "string": pa.string(),
    "int64": pa.int64(),
    "double": pa.float64(),
    "bool": pa.bool_(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


class Feed:
    """Generations under way, with the number of their next batch."""

    def __init__(self, sink: ServerClient) -> None:
        self._sink = sink
        self._shapes: dict[tuple[str, str], TableShape] = {}
        self._batch_ids: dict[str, int] = {}

    def take(self, command: Mapping[str, Any]) -> None:
        generation = command["generation"]
        match command["do"]:
            case "begin":
                shapes = [_shape(name, **table) for name, table in command["tables"].items()]
                self._shapes |= {(generation, shape.name): shape for shape in shapes}
                self._batch_ids[generation] = 0
                self._sink.begin(generation, shapes)
            case "put":
                changes = (self._changes(generation, name, **each) for name, each in command["tables"].items())
                self._sink.put(Batch(generation, self._batch_ids[generation], tuple(changes)))
                self._batch_ids[generation] += 1
            case "publish":
                self._sink.publish(generation)
            case "report":
                self._sink.report(generation, [SourceReport(**source) for source in command["sources"]])
            case unknown:
                raise ValueError(f"{unknown!r} is not begin, put, publish or report")

    def _changes(
        self, generation: str, name: str, rows: list[dict[str, Any]], deletes: list[int] | None = None
    ) -> TableChanges:
        shape = self._shapes[generation, name]
        keys = [{"_id": row_id} for row_id in deletes or ()]
        return TableChanges(
            name,
            pa.Table.from_pylist([_typed(row, shape.schema) for row in rows], shape.schema),
            pa.Table.from_pylist(keys, shape.key_schema),
        )


def _shape(name: str, columns: Mapping[str, str], aliases: list[str] | None = None) -> TableShape:
    schema = pa.schema([("_id", pa.int64()), *((column, TYPES[kind]) for column, kind in columns.items())])
    return TableShape(name, schema, ("_id",), aliases=tuple(aliases or ()))


def _typed(row: Mapping[str, Any], schema: pa.Schema) -> dict[str, Any]:
    """A row as Python has it: times, and numbers beyond JavaScript's, come as text."""
    return {name: _value(value, schema.field(name).type) for name, value in row.items() if name in schema.names}


def _value(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, str) and pa.types.is_timestamp(kind):
        return datetime.fromisoformat(value).astimezone(UTC)
    return int(value) if isinstance(value, str) and pa.types.is_int64(kind) else value


def main() -> None:
    location, token = sys.argv[1:]
    feed = Feed(ServerClient(location, token))
    for line in sys.stdin:
        feed.take(json.loads(line))
        sys.stdout.write("done\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
