"""Status of the orchestrator, as tables like any other. Pure: shapes, rows, and batches of changes.

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
from livetables.model.control_message import JOIN_FIELD, ControlMessage, Unreadable, join_field, topic_field
from livetables.model.spec import GenerationSpec
from livetables.pipeline.generations.wanted import Wanted

StatusTable = Literal["orchestrator_status", "control_raw", "generations", "kafka_topics"]
Row = Mapping[str, Any]

TIME = TIMESTAMP.arrow
ONLY_ROW = 0
RAW_CHARACTERS_MAX = 10_000


def shapes(spec: GenerationSpec) -> tuple[TableShape, ...]:
    """Return the status tables, for a configuration with these tables."""
    pointed = [(name, pa.string()) for name in pointed_to(Wanted.by(spec), spec)]
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
    """Return the name of the generation of these tables: other tables, another name."""
    text = repr([(shape.name, str(shape.schema), shape.key) for shape in tables])
    return f"status-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def pointed_to(wanted: Wanted, spec: GenerationSpec) -> dict[str, str | None]:
    """Return the columns with the topics and joins: joinType always, and one for each view that it does not mean."""
    topics = {topic_field(table): topic for table, topic in wanted.topics.items()}
    return {**topics, JOIN_FIELD: None, **{join_field(spec, view): join for view, join in wanted.joins.items()}}


def pointed_by(row: Row, spec: GenerationSpec) -> Wanted:
    """Return what a generation was for, by its row; what has been declared since, as it is declared."""
    default = Wanted.by(spec)
    return Wanted(
        {table: row.get(topic_field(table)) or topic for table, topic in default.topics.items()},
        {view: row.get(join_field(spec, view)) or join for view, join in default.joins.items()},
    )


def asked_for(message: ControlMessage | Unreadable, spec: GenerationSpec) -> dict[str, str | bool | None]:
    """Return the columns with what a message has, as it has it."""
    if isinstance(message, Unreadable):
        return {}
    topics = {topic_field(table): topic for table, topic in message.topics.items()}
    joins = {join_field(spec, view): join for view, join in message.joins.items()}
    return {**topics, JOIN_FIELD: message.join, **joins, "rollback": message.rollback or None}


def readable(value: bytes | None) -> str | None:
    """Return a message's value as people can read it."""
    return None if value is None else value.decode(errors="replace")[:RAW_CHARACTERS_MAX]


def batch(
    generation: str,
    batch_id: int,
    tables: Iterable[TableShape],
    changed: Mapping[str, Sequence[Row]],
    gone: Mapping[str, Sequence[Any]] = MappingProxyType({}),
) -> Batch:
    """Return the rows that changed, and the keys of those that are gone, as a batch.

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
    """Return rows to delete, by the one column that identifies a status table's rows."""
    (name,) = shape.key
    return pa.table({name: pa.array(keys, shape.schema.field(name).type)}) if keys else pa.table({})
