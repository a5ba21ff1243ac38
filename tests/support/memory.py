"""A model of the server's tables: kept in memory, changed as the server changes its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from livetables.model.change import Batch, TableChanges, TableShape
from livetables.model.errors import SinkError

Row = dict[str, Any]


class Sink(Protocol):
    """Takes the batches of generations that live side by side, of which one is published under the stable names."""

    def begin(self, generation: str, shapes: Sequence[TableShape]) -> None:
        """Make room for a generation. Beginning one again with the same shapes keeps what it has."""

    def put(self, batch: Batch) -> None:
        """Apply a batch whole, durably, once: one that was applied before changes nothing; a gap is a SinkError."""

    def publish(self, generation: str) -> None:
        """Let the stable names mean this generation's tables, all in one step."""

    def drop(self, generation: str) -> None:
        """Forget a generation and free its space. Dropping one that is not there changes nothing."""


class MemorySink:
    """Keeps every table as rows by key."""

    def __init__(self) -> None:
        self.published: str | None = None
        self.unknown_fields: dict[tuple[str, str], int] = {}
        self._generations: dict[str, _Generation] = {}

    def begin(self, generation: str, shapes: Sequence[TableShape]) -> None:
        known = self._generations.setdefault(generation, _Generation(shapes))
        if list(known.shapes.values()) != list(shapes):
            raise SinkError(f"generation {generation} has other tables already", "begin a generation under a new name")

    def put(self, batch: Batch) -> None:
        if self._generation(batch.generation).apply(batch):
            for table, fields in batch.unknown_fields.items():
                for name, records in fields.items():
                    self.unknown_fields[table, name] = self.unknown_fields.get((table, name), 0) + records

    def publish(self, generation: str) -> None:
        self._generation(generation)
        self.published = generation

    def drop(self, generation: str) -> None:
        self._generations.pop(generation, None)
        if self.published == generation:
            self.published = None

    def rows(self, table: str, generation: str | None = None) -> list[Row]:
        """All rows of a table, in the published generation unless another is named."""
        name = generation or self.published
        if name is None:
            raise SinkError("no generation is published", "publish one, or name the generation to read")
        return list(self._generation(name).rows[table].values())

    def shapes(self, generation: str) -> Mapping[str, TableShape]:
        return self._generation(generation).shapes

    def last_batch_id(self, generation: str) -> int | None:
        return self._generation(generation).last_batch_id

    def _generation(self, name: str) -> _Generation:
        if name not in self._generations:
            raise SinkError(f"generation {name} was not begun", "call begin before put or publish")
        return self._generations[name]


class _Generation:
    def __init__(self, shapes: Sequence[TableShape]) -> None:
        self.shapes: Mapping[str, TableShape] = {shape.name: shape for shape in shapes}
        self.rows: dict[str, dict[tuple[Any, ...], Row]] = {shape.name: {} for shape in shapes}
        self.last_batch_id: int | None = None

    def apply(self, batch: Batch) -> bool:
        """Apply a batch, unless it has been applied already; return whether it was new."""
        if not batch.is_new_after(self.last_batch_id):
            return False
        for changes in batch.changes:
            self._apply_changes(changes)
        self.last_batch_id = batch.batch_id
        return True

    def _apply_changes(self, changes: TableChanges) -> None:
        shape, rows = self.shapes[changes.table], self.rows[changes.table]
        for key in changes.deletes.to_pylist():
            rows.pop(tuple(key[column] for column in shape.key), None)
        for row in changes.upserts.to_pylist():
            key = tuple(row[column] for column in shape.key)
            if key not in rows or _is_newer(row, rows[key], shape.version):
                rows[key] = row


def _is_newer(row: Row, old: Row, version: Sequence[str]) -> bool:
    if not version:
        return True

    def order(values: Row) -> tuple[tuple[bool, Any], ...]:
        return tuple((values[column] is not None, values[column]) for column in version)

    return order(row) > order(old)
