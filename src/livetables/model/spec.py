"""What a generation is made of, as frozen values: building one runs nothing.

A record's `_id` packs its partition and offset into one int64, so that ids of a topic are unique, sort like
(partition, offset), and can be split again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal, get_args

from livetables.model.columns import COLUMN_KINDS, INT64, TIMESTAMP, AnyColumnType, ColumnKind, ColumnType
from livetables.model.joins import JOIN_KINDS, LEFT_ID, RIGHT_ID, JoinKind, JoinType, Side

NAME_PATTERN = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
TOPIC_PATTERN = re.compile(r"[A-Za-z0-9._-]{1,249}")
TOPIC_CURE = "use 1 to 249 of A-Z a-z 0-9 . _ -"
DEAD_LETTERS = "dead_letters"  # the table of the records that could not be parsed
# What the pipeline reports about itself, kept in a generation without data.
CONTROL_TABLES = ("orchestrator_status", "control_raw", "generations", "kafka_topics")
OFFSET_BITS = 44  # 17 trillion records a partition, half a million partitions

Start = Literal["earliest", "latest"] | datetime
# The timestamp of the Kafka record, as it is; or only that of the broker's arrival, which its topic has to be set to.
Timestamp = Literal["kafka", "arrival"]

TIMESTAMPS: tuple[Timestamp, ...] = get_args(Timestamp)


@dataclass(frozen=True)
class Column:
    """A field of a record that becomes a column of its table."""

    name: str
    type: ColumnType

    @property
    def kind(self) -> ColumnKind:
        return COLUMN_KINDS[self.type]


@dataclass(frozen=True)
class Retain:
    """How much of a table is kept: the newest records, as far as every limit that is set allows.

    Newest is by (ts, partition, offset). The age is counted from the newest record, so that it depends on no clock.
    """

    rows: int | None = None
    seconds: int | None = None
    bytes: int | None = None  # of the rows of the table alone: its texts in UTF-8, and 8 for each other column


@dataclass(frozen=True)
class Table:
    """A topic read as a table. `name` is what views and control messages call it, `publish` what readers call it."""

    name: str
    topic: str
    columns: tuple[Column, ...]
    publish: str
    aliases: tuple[str, ...] = ()
    start: Start = "earliest"
    strict: bool = False  # whether values of another JSON type are dead letters, never converted
    timestamp: Timestamp = "kafka"  # what `ts` is
    retain: Retain | None = None  # None: every record


@dataclass(frozen=True)
class View:
    """A join of two tables, `left` and `right`, on equal `on`. See `model/joins.py`."""

    name: str
    join: JoinType
    left: str
    right: str
    on: str
    aliases: tuple[str, ...] = ()
    lookback_seconds: int | None = None  # as-of only: how much older than its row a match may be; bounds the state
    # What it shows, in order: pairs of a name in the view and the name of a joined column. None: all, as they are.
    columns: tuple[tuple[str, str], ...] | None = None

    @property
    def kind(self) -> JoinKind:
        return JOIN_KINDS[self.join]


@dataclass(frozen=True)
class GenerationSpec:
    """All tables and views of one generation: one streaming query has them all."""

    tables: tuple[Table, ...]
    views: tuple[View, ...]
    # The view whose join `joinType` in control messages means. It is not part of a generation: neither equality
    # nor fingerprints depend on it.
    join_type_view: str | None = field(default=None, compare=False, repr=False)

    def table(self, name: str) -> Table:
        return next(table for table in self.tables if table.name == name)


def is_topic_name(name: str) -> bool:
    """Whether Kafka can have a topic of this name."""
    return bool(TOPIC_PATTERN.fullmatch(name)) and name not in (".", "..")


def record_id(partition: int, offset: int) -> int:
    """Return the `_id` of a record."""
    return (partition << OFFSET_BITS) | offset


def record_position(row_id: int) -> tuple[int, int]:
    """Return the (partition, offset) of a record's `_id`."""
    return row_id >> OFFSET_BITS, row_id & ((1 << OFFSET_BITS) - 1)


@dataclass(frozen=True)
class JoinedColumn:
    """A column of a view: `source` is its name in the table of its `side`."""

    name: str
    side: Side
    source: str
    type: AnyColumnType

    @property
    def kind(self) -> ColumnKind:
        return COLUMN_KINDS[self.type]


def joined_columns(left: Table, right: Table, on: str) -> tuple[JoinedColumn, ...]:
    """Return a view's columns, in order: the ids and times of both records, left's columns, right's without the key.

    A right column whose name the left has too becomes `<right>_<column>`.
    """
    left_names = {column.name for column in left.columns}
    return (
        JoinedColumn(LEFT_ID, "left", "_id", INT64.name),
        JoinedColumn(RIGHT_ID, "right", "_id", INT64.name),
        *(JoinedColumn(column.name, "left", column.name, column.type) for column in left.columns),
        *(
            JoinedColumn(
                f"{right.name}_{column.name}" if column.name in left_names else column.name,
                "right",
                column.name,
                column.type,
            )
            for column in right.columns
            if column.name != on
        ),
        JoinedColumn(f"{left.name}_ts", "left", "ts", TIMESTAMP.name),
        JoinedColumn(f"{right.name}_ts", "right", "ts", TIMESTAMP.name),
    )


def joined_column_names(left: Table, right: Table, on: str) -> tuple[str, ...]:
    """Return the names of all columns that a view may have, in order."""
    return tuple(column.name for column in joined_columns(left, right, on))


def view_columns(view: View, left: Table, right: Table) -> tuple[JoinedColumn, ...]:
    """Return a view's columns, in order. Where it chooses, ids and times of both records stay as internal columns."""
    joined = joined_columns(left, right, view.on)
    if view.columns is None:
        return joined
    by_name = {column.name: column for column in joined}
    times = [by_name[time] for time in time_columns(left, right)]
    return (
        *(column for column in joined if column.name in (LEFT_ID, RIGHT_ID)),
        *(replace(by_name[source], name=name) for name, source in view.columns),
        *(replace(time, name=f"_{time.name}") for time in times),
    )


def time_columns(left: Table, right: Table) -> tuple[str, str]:
    """Return the names of the joined columns with the times of both records."""
    return f"{left.name}_ts", f"{right.name}_ts"
