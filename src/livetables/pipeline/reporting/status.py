"""What the orchestrator tells of itself, as tables like any other. Pure: shapes, rows, and batches of changes.

| table | rows |
|---|---|
| orchestrator_status | exactly one, updated in place |
| control_raw | one per control message, in the order read; its outcome is null until it is decided |
| generations | one per generation that ever was |
| kafka_topics | one per topic that a table may be pointed to |
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import pyarrow as pa

from livetables.model.change import Batch, TableChanges, TableShape
from livetables.model.columns import TIMESTAMP
from livetables.model.control_message import JOIN_FIELD, TOPIC_SUFFIX, ControlMessage, Unreadable
from livetables.model.spec import GenerationSpec
from livetables.pipeline.generations.wanted import Wanted

StatusTable = Literal["orchestrator_status", "control_raw", "generations", "kafka_topics"]
Row = Mapping[str, Any]

TIME = TIMESTAMP.arrow
ONLY_ROW = 0
RAW_CHARACTERS_MAX = 10_000


def shapes(spec: GenerationSpec) -> tuple[TableShape, ...]:
    """The status tables, for a configuration with these tables."""
    topics = [(f"{table.name}{TOPIC_SUFFIX}", pa.string()) for table in spec.tables]
    pointed = [*topics, (JOIN_FIELD, pa.string())]
    return (
        TableShape(
            "orchestrator_status",
            pa.schema(
                [
                    ("_id", pa.int64()),
                    *pointed,
                    ("lastApplied", TIME),
                    ("generation", pa.string()),
                    ("state", pa.string()),
                    ("lag", pa.int64()),
                    ("message", pa.string()),
                ]
            ),
            ("_id",),
        ),
        TableShape(
            "control_raw",
            pa.schema(
                [
                    ("_id", pa.int64()),
                    ("ts", TIME),
                    ("partition", pa.int64()),
                    ("offset", pa.int64()),
                    *pointed,
                    ("rollback", pa.bool_()),
                    ("raw", pa.string()),
                    ("outcome", pa.string()),
                    ("why", pa.string()),
                    ("generation", pa.string()),
                    ("decided", TIME),
                ]
            ),
            ("_id",),
        ),
        TableShape(
            "generations",
            pa.schema(
                [
                    ("generation", pa.string()),
                    *pointed,
                    ("state", pa.string()),
                    ("started", TIME),
                    ("switched", TIME),
                    ("retired", TIME),
                    ("rows", pa.int64()),
                    ("lost", pa.int64()),
                    ("message", pa.string()),
                ]
            ),
            ("generation",),
        ),
        TableShape("kafka_topics", pa.schema([("topic", pa.string())]), ("topic",)),
    )


def name_for(tables: Iterable[TableShape]) -> str:
    """What the generation of these tables is called: other tables, another name."""
    said = repr([(shape.name, str(shape.schema), shape.key) for shape in tables])
    return f"status-{hashlib.sha256(said.encode()).hexdigest()[:8]}"


def pointed_to(wanted: Wanted) -> dict[str, str | None]:
    """The columns that tell topics and join."""
    return {**{f"{table}{TOPIC_SUFFIX}": topic for table, topic in wanted.topics.items()}, JOIN_FIELD: wanted.join}


def pointed_by(row: Row, default: Wanted) -> Wanted:
    """What a generation was for, by its row; where tables have been declared since, as they are declared."""
    topics = {table: row.get(f"{table}{TOPIC_SUFFIX}") or topic for table, topic in default.topics.items()}
    return Wanted(topics, default.join and (row.get(JOIN_FIELD) or default.join))


def asked_for(message: ControlMessage | Unreadable) -> dict[str, str | bool | None]:
    """The columns that tell what a message has, as it has it."""
    if isinstance(message, Unreadable):
        return {}
    topics = {f"{table}{TOPIC_SUFFIX}": topic for table, topic in message.topics.items()}
    return {**topics, JOIN_FIELD: message.join, "rollback": message.rollback or None}


def readable(value: bytes | None) -> str | None:
    """A message's value as people can read it."""
    return None if value is None else value.decode(errors="replace")[:RAW_CHARACTERS_MAX]


def batch(
    generation: str,
    batch_id: int,
    tables: Iterable[TableShape],
    changed: Mapping[str, Sequence[Row]],
    gone: Mapping[str, Sequence[Any]] = MappingProxyType({}),
) -> Batch:
    """The rows that changed, and the keys of those that are gone, as a batch.

    What a row does not have is null, and what its table does not have is left.
    """
    return Batch(
        generation,
        batch_id,
        tuple(
            TableChanges(
                shape.name,
                pa.Table.from_pylist(
                    [{name: row.get(name) for name in shape.schema.names} for row in changed.get(shape.name, ())],
                    schema=shape.schema,
                ),
                _keys(shape, gone.get(shape.name, ())),
            )
            for shape in tables
            if changed.get(shape.name) or gone.get(shape.name)
        ),
    )


def _keys(shape: TableShape, keys: Sequence[Any]) -> pa.Table:
    """Rows to delete, by the one column that tells a status table's rows apart."""
    (name,) = shape.key
    return pa.table({name: pa.array(keys, shape.schema.field(name).type)}) if keys else pa.table({})
