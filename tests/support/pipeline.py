"""What tests of the pipeline share: the preset's tables on topics of their own, a sink that checks what it is given,
and the content of its tables in the oracle's form."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from livetables.change import Batch
from livetables.pipeline.callback import Callback
from livetables.pipeline.query import start_generation
from livetables.pipeline.sink import MemorySink, Sink
from livetables.spec import Column, GenerationSpec, JoinType, Table, View, record_position
from tests.support.kafka import Record, create_topic, produce, unique_topic
from tests.support.oracle import FIELDS, Oracle, Sent, Side, in_order

GENERATION = "g1"
USER_COLUMNS = (Column("userId", "string"), Column("name", "string"), Column("email", "string"), Column("age", "int64"))
ACCOUNT_COLUMNS = (Column("userId", "string"), Column("accountType", "string"), Column("balance", "double"))
JOINED_COLUMNS = ("userId", "name", "email", "age", "accountType", "balance", "users_ts", "accounts_ts")


def preset_spec(users_topic: str, accounts_topic: str, joins: Sequence[JoinType]) -> GenerationSpec:
    """The default layout, with one view for each join, called like it."""
    return GenerationSpec(
        tables=(
            Table("users", users_topic, USER_COLUMNS, "users_ui"),
            Table("accounts", accounts_topic, ACCOUNT_COLUMNS, "accounts_ui"),
        ),
        views=tuple(View(join, join, "users", "accounts", "userId") for join in joins),
    )


class Tables(Protocol):
    """Anything that holds tables of generations."""

    def rows(self, table: str, generation: str | None = None) -> list[dict[str, Any]]: ...


class CheckingSink(MemorySink):
    """A MemorySink that fails when a batch has a key twice: then the order of its changes would matter."""

    def put(self, batch: Batch) -> None:
        for changes in batch.changes:
            shape = self.shapes(batch.generation)[changes.table]
            keys = [
                tuple(row[column] for column in shape.key)
                for rows in (changes.upserts, changes.deletes)
                for row in rows.to_pylist()
            ]
            assert len(keys) == len(set(keys)), f"a key of {changes.table} occurs twice in batch {batch.batch_id}"
            last = self.last_batch_id(batch.generation)
            if shape.appends and (last is None or batch.batch_id > last):
                known = {tuple(row[column] for column in shape.key) for row in self.rows(shape.name, batch.generation)}
                assert known.isdisjoint(keys[: changes.upserts.num_rows]), (
                    f"{changes.table} appends, and batch {batch.batch_id} has a key of its rows"
                )
            assert changes.upserts.schema.equals(shape.schema)
        super().put(batch)


def start(
    spark: SparkSession,
    spec: GenerationSpec,
    bootstrap: str,
    checkpoint: Path,
    sink: Sink,
    *,
    generation: str = GENERATION,
    max_records: int = 10_000,
    callback: Callback | None = None,
) -> StreamingQuery:
    return start_generation(
        spark,
        spec,
        generation=generation,
        kafka_properties={"bootstrap.servers": bootstrap},
        checkpoint=checkpoint,
        sink=sink,
        max_records_per_batch=max_records,
        callback=callback,
    )


@dataclass
class Stage:
    """Two topics, and everything that was sent to them."""

    bootstrap: str
    topics: dict[Side, str]
    sent: list[Sent]

    @classmethod
    def open(cls, bootstrap: str) -> Stage:
        topics: dict[Side, str] = {"users": unique_topic("user"), "accounts": unique_topic("account")}
        for topic in topics.values():
            create_topic(bootstrap, topic)
        return cls(bootstrap, topics, [])

    def send(self, records: Sequence[tuple[Side, int, int, bytes | None]]) -> None:
        """Send records given as (side, partition, timestamp, value)."""
        offsets = produce(
            self.bootstrap, [Record(self.topics[side], partition, value, ts) for side, partition, ts, value in records]
        )
        self.sent += [
            Sent(side, partition, offset, ts, value)
            for (side, partition, ts, value), offset in zip(records, offsets, strict=True)
        ]

    def spec(self, joins: Sequence[JoinType]) -> GenerationSpec:
        return preset_spec(self.topics["users"], self.topics["accounts"], joins)

    def start(
        self,
        spark: SparkSession,
        joins: Sequence[JoinType],
        checkpoint: Path,
        sink: Sink,
        *,
        generation: str = GENERATION,
        max_records: int = 10_000,
        callback: Callback | None = None,
    ) -> StreamingQuery:
        return start(
            spark,
            self.spec(joins),
            self.bootstrap,
            checkpoint,
            sink,
            generation=generation,
            max_records=max_records,
            callback=callback,
        )

    def differences(self, sink: Tables, joins: Sequence[JoinType]) -> dict[str, tuple[list[Any], list[Any]]]:
        """As `view_differences`, where each view is called like its join."""
        return self.view_differences(sink, {join: join for join in joins}, GENERATION)

    def view_differences(
        self, tables: Tables, views: Mapping[str, JoinType], generation: str | None
    ) -> dict[str, tuple[list[Any], list[Any]]]:
        """For each table that is not what the oracle says: some rows that are too many, and some that lack."""
        found, expected = content(tables, list(views), generation), self.expected(views)
        return {name: _difference(found[name], rows) for name, rows in expected.items() if found[name] != rows}

    def expected(self, views: Mapping[str, JoinType]) -> dict[str, list[tuple[Any, ...]]]:
        """What the oracle says of each table, and of views by name."""
        oracle = Oracle(self.sent)
        expected = {f"{side}_ui": oracle.table(side) for side in FIELDS}
        expected |= {view: oracle.join(join) for view, join in views.items()}
        expected["dead_letters"] = in_order(
            (f"{side}_ui", self.topics[side], letter.partition, letter.offset)
            for side, letters in oracle.dead.items()
            for letter in letters
        )
        return expected


def content(source: Tables, views: Sequence[str], generation: str | None) -> dict[str, list[tuple[Any, ...]]]:
    """The tables of a generation, or of the published one, in the oracle's form."""
    tables: dict[str, list[tuple[Any, ...]]] = {}
    for side, fields in FIELDS.items():
        rows = source.rows(f"{side}_ui", generation)
        tables[f"{side}_ui"] = in_order(
            (*record_position(row["_id"]), *(row[field] for field in fields), row["ts"]) for row in rows
        )
    for view in views:
        tables[view] = in_order(
            (*_position(row["_left_id"]), *_position(row["_right_id"]), *(row[column] for column in JOINED_COLUMNS))
            for row in source.rows(view, generation)
        )
    tables["dead_letters"] = in_order(
        (row["source"], row["topic"], row["partition"], row["offset"])
        for row in source.rows("dead_letters", generation)
    )
    return tables


def _difference(found: list[Any], expected: list[Any]) -> tuple[list[Any], list[Any]]:
    extra, lacking = Counter(found) - Counter(expected), Counter(expected) - Counter(found)
    return list(extra)[:5], list(lacking)[:5]


def _position(row_id: int | None) -> tuple[int | None, int | None]:
    return (None, None) if row_id is None else record_position(row_id)


def random_records(chance: random.Random, count: int) -> list[tuple[Side, int, int, bytes | None]]:
    """Records of few users, of which some are updates, some late and some broken."""
    records: list[tuple[Side, int, int, bytes | None]] = []
    for _ in range(count):
        user = {"userId": f"u{chance.randrange(12)}", "name": f"name {chance.random()}", "age": chance.randrange(90)}
        account = {"userId": f"u{chance.randrange(15)}", "accountType": "savings", "balance": chance.random()}
        side: Side = "users" if chance.random() < 0.2 else "accounts"
        value = json.dumps(user if side == "users" else account).encode()
        broken = chance.random() < 0.05
        ts = 1_700_000_000_000 + chance.randrange(60_000)
        records.append((side, chance.randrange(2), ts, value[:-3] if broken else value))
    return records
