"""What the pipeline sends: the shape of a table, and a batch of changes to all tables of a generation.

A change is an upsert or a delete of the row with a given key. In one batch every key of a table occurs at most once,
so that the order in which a batch's changes are applied does not matter. Batches are applied in order, once: the
server remembers the last batch id of a generation and ignores one that is repeated.

A table with a `version` applies an upsert only when it is newer than the row that it replaces: those columns, compared
in order and nulls first, are greater. Such changes commute, even across batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from livetables.model.errors import SinkError
from livetables.model.joins import JOIN_KINDS, JoinKind, JoinType
from livetables.model.spec import Retain


@dataclass(frozen=True)
class TableShape:
    """A table as readers see it. A key column may be null: null is a value like any other there.

    A table that `appends` gets no key twice: no row has to be searched that a new one replaces.

    `sources` are the tables whose records make a row: of a topic's table itself, of a view its left and its right.
    `scope` names the marks that count for it (see `server/storage/frames.py`): of a view the column that it joins on.
    `times` are the columns with the times of these records, in the order of `sources`. `sides` are, of a view, the
    columns that are null without its left record, and those that are null without its right one.
    """

    name: str
    schema: pa.Schema
    key: tuple[str, ...]
    version: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    appends: bool = False
    sources: tuple[str, ...] = ()
    scope: str = ""
    join: JoinType | None = None  # of a view
    topic: str | None = None  # of a topic's table
    strict: bool = False  # of a topic's table: whether its records' values are never converted
    times: tuple[str, ...] = ()
    sides: tuple[tuple[str, ...], ...] = ()
    retain: Retain | None = None  # of a topic's table: how many of its records are kept; None: all

    @property
    def kind(self) -> JoinKind | None:
        """Return the kind of a view's join."""
        return None if self.join is None else JOIN_KINDS[self.join]

    @property
    def removes_unmatched(self) -> bool:
        return self.kind is not None and self.kind.removes_unmatched

    @property
    def changes_rows(self) -> bool:
        """Whether frames replace or remove rows of it."""
        return self.kind is not None and self.kind.changes_rows

    @property
    def key_schema(self) -> pa.Schema:
        return pa.schema([self.schema.field(column) for column in self.key])


@dataclass(frozen=True)
class TableChanges:
    """The changes of one batch to one table: whole rows to upsert, keys to delete."""

    table: str
    upserts: pa.Table
    deletes: pa.Table


@dataclass(frozen=True)
class Batch:
    """Everything one micro-batch changes in one generation."""

    generation: str
    batch_id: int
    changes: tuple[TableChanges, ...]
    unknown_fields: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # table, field, records that had it
    records: Mapping[str, int] = field(default_factory=dict)  # read from Kafka, by table

    def is_new_after(self, last_batch_id: int | None) -> bool:
        """Whether it is the next one to apply; one that was applied before is not, and a gap is a SinkError."""
        due = 0 if last_batch_id is None else last_batch_id + 1
        if self.batch_id > due:
            raise SinkError(
                f"batch {self.batch_id} of generation {self.generation} came where {due} was due",
                "build a new generation: the sink does not hold what this checkpoint counts as delivered",
            )
        return self.batch_id == due
