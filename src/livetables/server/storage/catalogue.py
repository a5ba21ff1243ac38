"""The generations that the store has, their tables, and the stable names that mean them.

Each generation has a schema of its own in the database, with a table for each of its shapes. The stable names are views
in the schema `main`, all replaced in the transaction that publishes a generation. What must be known after a crash is
in the schema `livetables`, written in the transactions that it describes.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from livetables.config.settings import choice
from livetables.model.change import TableShape
from livetables.model.errors import RequestError, SinkError
from livetables.model.wire import decode_shape, encode_shape
from livetables.server.storage.database import Database
from livetables.server.storage.generation import (
    Generation,
    StoredTable,
    encoded_facts,
    names_of,
    stable_names,
    with_facts,
)
from livetables.server.storage.merge import check_shape, create_index, create_table, create_view
from livetables.server.viewports.viewport import quoted

GENERATION_NAME = re.compile("[A-Za-z0-9_-]{1,100}")
RESERVED_NAMES = ("livetables", "main", "temp", "information_schema", "pg_catalog")  # schemas of the database itself


@dataclass(frozen=True)
class Publication:
    """A generation that was published, and those whose names it has taken."""

    published: Generation
    replaced: tuple[str, ...]
    names: frozenset[str]  # whose meaning has changed


class Catalogue:
    """All generations, as the database has them. Any thread may read; who changes it holds the database's `writing`.

    Only `update` is also called by those who hold the lock of the pending frames instead.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._replacing = threading.Lock()  # of what `generations` is
        self.generations: Mapping[str, Generation] = MappingProxyType(_recovered(database))

    def live(self) -> list[str]:
        """The names of the generations whose data readers see, the one published last at the end."""
        published = [
            (generation.published, generation.name)
            for generation in self.generations.values()
            if generation.published and generation.has_data
        ]
        return [name for _, name in sorted(published)]

    def tables(self) -> dict[str, StoredTable]:
        """The tables that readers can name, aliases included."""
        return {
            name: generation.tables[table]
            for generation in self.generations.values()
            for name, table in names_of(generation).items()
        }

    def table(self, name: str) -> StoredTable:
        tables = self.tables()
        if name not in tables:
            cure = choice(name, tables) if self.live() else "wait until a generation is published; /readyz shows when"
            raise RequestError("unknown_table", f"there is no table {ascii(name)[:80]}", cure)
        return tables[name]

    def begun(self, generation: str) -> Generation:
        if generation not in self.generations:
            raise SinkError(f"generation {generation} was not begun", "call begin before put or publish")
        return self.generations[generation]

    def begin(self, generation: str, shapes: Sequence[TableShape]) -> None:
        """Make room for a generation. Beginning one again with the same shapes keeps what it has."""
        with self._database.writing:
            known = self.generations.get(generation)
            if known:
                if [table.shape for table in known.tables.values()] != list(shapes):
                    raise SinkError(
                        f"generation {generation} has other tables already", "begin a generation under a new name"
                    )
                return
            if not GENERATION_NAME.fullmatch(generation) or generation.lower() in RESERVED_NAMES:
                raise SinkError(
                    f"a generation cannot be called {ascii(generation)[:80]}",
                    f"use 1 to 100 of A-Z a-z 0-9 _ -, and none of {', '.join(RESERVED_NAMES)}",
                )
            for shape in shapes:
                check_shape(shape)
            begun = datetime.now(UTC)
            with self._database.transaction() as run:
                run(f"CREATE SCHEMA {quoted(generation)}")
                for shape in shapes:
                    run(create_table(generation, shape))
                    if index := create_index(generation, shape):
                        run(index)
                    run("INSERT INTO livetables.tables VALUES (?, ?, ?)", [generation, shape.name, encode_shape(shape)])
                tables = {shape.name: StoredTable(generation, shape) for shape in shapes}
                beginning = Generation(generation, tables, begun)
                run(
                    "INSERT INTO livetables.generations VALUES (?, ?, NULL, ?, ?)",
                    [generation, begun, beginning.sequence, encoded_facts(beginning)],
                )
            self.remember(beginning)

    def publish(self, generation: str) -> Publication | None:
        """Let the stable names mean this generation's tables, all in one step; None if they do already.

        It takes the place of every published generation that it shares a name with; what shares none stays.
        """
        taking = self.begun(generation)
        if taking.published:
            return None
        names = stable_names(taking)
        leaving = [other for other in self.generations.values() if not names.keys().isdisjoint(names_of(other))]
        left = [name for other in leaving for name in names_of(other)]
        now = datetime.now(UTC)
        with self._database.transaction() as run:
            for name in left:
                run(f"DROP VIEW main.{quoted(name)}")
            for name, table in names.items():
                run(create_view(name, generation, taking.tables[table].shape))
            for other in leaving:
                run("UPDATE livetables.generations SET published = NULL WHERE name = ?", [other.name])
            run("UPDATE livetables.generations SET published = ? WHERE name = ?", [now, generation])
        for other in leaving:
            self.update(other.name, published=None)
        self.update(generation, published=now)
        return Publication(taking, tuple(other.name for other in leaving), frozenset([*names, *left]))

    def drop(self, dropped: Generation) -> None:
        """Drop the tables and names of a generation that readers cannot find any more; if that fails, they can."""
        try:
            with self._database.transaction() as run:
                for name in names_of(dropped):
                    run(f"DROP VIEW main.{quoted(name)}")
                run(f"DROP SCHEMA {quoted(dropped.name)} CASCADE")
                run("DELETE FROM livetables.tables WHERE generation = ?", [dropped.name])
                run("DELETE FROM livetables.generations WHERE name = ?", [dropped.name])
        except BaseException:
            self.remember(dropped)
            raise

    def remember(self, *generations: Generation) -> None:
        """Add or replace generations in one step: readers look at `generations` at any time, without a lock."""
        with self._replacing:
            self.generations = MappingProxyType({**self.generations, **{each.name: each for each in generations}})

    def update(self, name: str, **fields: Any) -> None:
        """Change these fields of a generation and no others: several threads do, each has its own."""
        with self._replacing:
            changed = replace(self.generations[name], **fields)
            self.generations = MappingProxyType({**self.generations, name: changed})

    def forget(self, name: str) -> Generation | None:
        """Let readers find a generation no more; None if there is none."""
        with self._replacing:
            forgotten = self.generations.get(name)
            self.generations = MappingProxyType({key: each for key, each in self.generations.items() if key != name})
            return forgotten


def facts_update(generation: Generation) -> tuple[str, list[object]]:
    """The statement that stores what has changed with a generation's rows, for the transaction that changes them."""
    statement = "UPDATE livetables.generations SET sequence = ?, facts = ? WHERE name = ?"
    return statement, [generation.sequence, encoded_facts(generation), generation.name]


def _recovered(database: Database) -> dict[str, Generation]:
    """The generations that the database holds."""
    run = database.writer.execute
    tables: dict[str, dict[str, StoredTable]] = {}
    for generation, name, shape in run("SELECT * FROM livetables.tables").fetchall():
        tables.setdefault(generation, {})[name] = StoredTable(generation, decode_shape(shape))
    return {
        name: with_facts(Generation(name, tables.get(name, {}), begun, None, published, sequence), facts)
        for name, begun, published, sequence, facts in run("SELECT * FROM livetables.generations").fetchall()
    }
