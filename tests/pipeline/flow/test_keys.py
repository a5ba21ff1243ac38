"""Several tables, several keys of every type, several joins of the same pair, all in one query: against brute force."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from livetables.local.broker import Broker
from livetables.model.spec import Column, GenerationSpec, Table, View, joined_columns, record_id
from livetables.pipeline.flow.modes import Mode
from tests.support.kafka import Record, create_topic, produce, unique_topic, wait_until
from tests.support.pipeline import SETTLE_SECONDS, Engine
from tests.support.server import ServerProcess

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

# Few values each, so that records meet; among them those that are equal and look different, and the ends of a type.
VALUES: dict[str, list[Any]] = {
    "id": [0, -1, 7, 2**63 - 1, -(2**63), 2**53, 2**53 + 1, None],
    "price": [0.0, -0.0, 0, 1, 1.0, 1.5, 1e308, -1e308, 5e-324, 1e22, 10**22, 123456789.125, None],
    "open": [True, False, None],
    "note": ["", "0", "a", "ü😀", None],
}
START_MS = 1_700_000_000_000


def spec_of(topics: Mapping[str, str]) -> GenerationSpec:
    """`trades` is joined on three columns; the pair of trades and quotes in four views."""
    columns = {
        "id": Column("id", "int64"),
        "price": Column("price", "double"),
        "open": Column("open", "bool"),
        "note": Column("note", "string"),
    }
    fields = {"trades": ("note", "id", "price", "open"), "quotes": ("id", "price"), "flags": ("open", "note")}
    return GenerationSpec(
        tuple(Table(name, topics[name], tuple(columns[each] for each in fields[name]), name) for name in fields),
        (
            View("left_by_id", "left", "trades", "quotes", "id"),
            View("natural_by_id", "natural", "trades", "quotes", "id"),
            View("asof_by_price", "asof", "quotes", "trades", "price"),
            View("inner_by_price", "inner", "trades", "quotes", "price"),
            View("left_by_open", "left", "flags", "trades", "open"),
            View("natural_by_note", "natural", "trades", "flags", "note"),
        ),
    )


@dataclass(frozen=True)
class Row:
    """A record of a table, at its place."""

    row_id: int
    ts: int
    values: Mapping[str, Any]

    @property
    def order(self) -> tuple[int, int]:
        return self.ts, self.row_id


def joined(view: View, left: Sequence[Row], right: Sequence[Row]) -> Iterator[tuple[Row | None, Row | None]]:
    """The rows of a view, by the rule in words: every record of one side with every record of the other."""

    def meet(one: Row, other: Row) -> bool:
        key = one.values[view.on]
        return key is not None and key == other.values[view.on]

    def latest(rows: list[Row]) -> Row | None:
        return max(rows, key=lambda row: row.order, default=None)

    match view.join:
        case "inner":
            yield from ((one, other) for one in left for other in right if meet(one, other))
        case "left":
            for one in left:
                matches: list[Row | None] = [other for other in right if meet(one, other)]
                yield from ((one, other) for other in matches or [None])
        case "natural":
            yield from ((one, latest([other for other in right if meet(one, other)])) for one in left)
        case "asof":
            for other in right:
                yield latest([one for one in left if meet(one, other) and one.ts <= other.ts]), other


@dataclass
class Stage:
    """Three topics, and the rows that were sent to them."""

    bootstrap: str
    spec: GenerationSpec
    rows: dict[str, list[Row]]

    @classmethod
    def open(cls, bootstrap: str) -> Stage:
        topics = {name: unique_topic(name) for name in ("trades", "quotes", "flags")}
        for topic in topics.values():
            create_topic(bootstrap, topic)
        return cls(bootstrap, spec_of(topics), {name: [] for name in topics})

    def send(self, chance: random.Random, count: int) -> None:
        tables = [chance.choice(self.spec.tables) for _ in range(count)]
        made = [{column.name: chance.choice(VALUES[column.name]) for column in table.columns} for table in tables]
        records = [
            Record(table.topic, chance.randrange(2), json.dumps(values).encode(), START_MS + chance.randrange(6) * 1000)
            for table, values in zip(tables, made, strict=True)
        ]
        for table, values, record, offset in zip(tables, made, records, produce(self.bootstrap, records), strict=True):
            self.rows[table.name].append(Row(record_id(record.partition, offset), record.timestamp_ms, values))

    @property
    def sent(self) -> int:
        return sum(map(len, self.rows.values()))

    def expected(self) -> dict[str, list[tuple[Any, ...]]]:
        """By view: all rows, as ids, times in milliseconds, and values."""
        found: dict[str, list[tuple[Any, ...]]] = {}
        for view in self.spec.views:
            columns = joined_columns(self.spec.table(view.left), self.spec.table(view.right), view.on)
            rows = joined(view, self.rows[view.left], self.rows[view.right])
            found[view.name] = _sorted(
                tuple(
                    _value(view, column.source, *((one, other) if column.side == "left" else (other, one)))
                    for column in columns
                )
                for one, other in rows
            )
        return found


def _value(view: View, source: str, own: Row | None, other: Row | None) -> Any:
    """A value of a row's side; the key is the same on both sides, so it is there when one of them is."""
    if own is None:
        return other.values[view.on] if other and source == view.on else None
    return {"_id": own.row_id, "ts": own.ts}.get(source, own.values.get(source))


def _sorted(rows: Iterator[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=lambda row: [(value is not None, value) for value in row])


def found(engine: Engine) -> dict[str, list[tuple[Any, ...]]]:
    return {
        view.name: _sorted(
            tuple(
                round(value.timestamp() * 1000) if name.endswith("_ts") and value else value
                for name, value in row.items()
            )
            for row in engine.rows(view.name)
        )
        for view in engine.spec.views
    }


def differences(stage: Stage, engine: Engine) -> dict[str, tuple[list[Any], list[Any]]]:
    """For each view that is not what brute force says: some rows that are too many, and some that lack."""
    are, should = found(engine), stage.expected()
    return {
        name: ([row for row in are[name] if row not in rows][:3], [row for row in rows if row not in are[name]][:3])
        for name, rows in should.items()
        if are[name] != rows
    }


def lasting(read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What is read when it does not become empty: a record's rows of different keys come one after another."""
    last: list[dict[str, Any]] = []

    def is_empty() -> bool:
        last.append(read())
        return not last[-1]

    with suppress(AssertionError):
        wait_until(is_empty, "there is no difference", SETTLE_SECONDS)
    return last[-1]


@pytest.mark.parametrize(
    "modes",
    [
        pytest.param(["micro_batch"], marks=pytest.mark.chaos),
        pytest.param(["real_time"], marks=pytest.mark.chaos),
        ["real_time", "micro_batch", "real_time"],
    ],
    ids=["micro_batch", "real_time", "changing"],
)
def test_views_on_several_keys_are_what_brute_force_says(
    spark: SparkSession, broker: Broker, server: ServerProcess, tmp_path: Path, modes: list[Mode]
) -> None:
    stage, chance = Stage.open(broker.bootstrap_servers), random.Random(len(modes))
    with Engine(spark, server, stage.spec, broker.bootstrap_servers, tmp_path) as engine:
        for mode in modes:
            stage.send(chance, 50)
            engine.start(mode, max_records=40)
            stage.send(chance, 50)
            engine.settle(stage.sent - 60)  # a change of modes comes in the middle
        engine.settle(stage.sent)
        assert lasting(lambda: differences(stage, engine)) == {}
        engine.start("micro_batch")
        engine.finish()
        assert differences(stage, engine) == {}
