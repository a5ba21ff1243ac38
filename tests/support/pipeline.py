"""What tests of the pipeline share: the preset's tables on topics of their own, a query that fills them on a real
server, and the content of its tables in the oracle's form."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from livetables.model.joins import JoinType
from livetables.model.spec import Column, GenerationSpec, Retain, Table, View, record_position
from livetables.pipeline.flow.modes import Mode
from livetables.pipeline.flow.plan import shapes
from livetables.pipeline.flow.query import Target, start_generation
from livetables.pipeline.flow.source import BatchLimit
from livetables.pipeline.generations.checkpoints import Checkpoints
from tests.support.kafka import ANY_TIME, Record, create_topic, produce, unique_topic, wait_until
from tests.support.oracle import FIELDS, Limit, Oracle, Sent, Side, in_order
from tests.support.server import TOKEN, ServerProcess

SETTLE_SECONDS = 120.0
BATCH_BYTES = 512 * 1024**2
NUMBERS = itertools.count(1)  # of generations, and of the runs of their queries
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


class Served:
    """A generation on a real server, to be filled by a query and read. A test that ends leaves nothing there."""

    def __init__(self, server: ServerProcess, spec: GenerationSpec) -> None:
        self.server, self.spec, self.generation = server, spec, f"g{next(NUMBERS)}"
        self._sink = server.sink()
        self.url = self._sink.begin(self.generation, shapes(spec))

    def settle(self, records: int, seconds: float = SETTLE_SECONDS) -> None:
        """Return when the server has so many records, as rows or dead letters."""

        def is_settled() -> bool:
            self.check()
            return self.count() >= records

        try:
            wait_until(is_settled, f"{records} records are there", seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}, and {self.count()} are") from error

    def check(self) -> None:
        """Fail when what fills it does not work any more."""

    def count(self) -> int:
        """How many records are rows or dead letters; where tables have a limit, how many were taken."""
        stored = {each.name: each for each in self._sink.generations()}[self.generation]
        if any(table.retain for table in self.spec.tables):
            return sum(stored.records.values())
        return sum(stored.rows[name] for name in [*(table.publish for table in self.spec.tables), "dead_letters"])

    def positions(self) -> Mapping[str, Mapping[int, int]]:
        """How far it is in its topics, by table: the next offset of each partition."""
        return self._sink.positions()[self.generation]

    def rows(self, table: str, _generation: str | None = None) -> list[dict[str, Any]]:
        """All rows of a table. The server shows published tables, so this generation is published from now on."""
        self.publish()
        rows: list[dict[str, Any]] = self.server.table(table).to_pylist()
        return rows

    def publish(self) -> None:
        """Have the server show this generation."""
        self._sink.publish(self.generation)

    def drop(self) -> None:
        """Have the server forget this generation."""
        self._sink.drop(self.generation)

    def close(self) -> None:
        self.drop()
        self._sink.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Engine(Served):
    """A generation's query on a real server: it can be started in either mode, stopped, and read."""

    def __init__(
        self,
        spark: SparkSession,
        server: ServerProcess,
        spec: GenerationSpec,
        bootstrap: str,
        checkpoint: Path,
        *,
        kafka_properties: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(server, spec)
        self.query: StreamingQuery | None = None
        self._spark, self._checkpoints = spark, Checkpoints(spark, str(checkpoint))
        self._kafka_properties = kafka_properties or {"bootstrap.servers": bootstrap}

    def start(
        self,
        mode: Mode = "micro_batch",
        *,
        max_records: int = 10_000,
        max_bytes: int = BATCH_BYTES,
        batch_seconds: int = 300,
    ) -> StreamingQuery:
        """Start the query, or start it again where it was: as the orchestrator does it."""
        self.stop()
        if not self.has_commits():
            self._checkpoints.remove_state(self.generation)
        self.query = start_generation(
            self._spark,
            self.spec,
            generation=self.generation,
            kafka_properties=self._kafka_properties,
            checkpoint=self._checkpoints.path(self.generation),
            target=Target(self.url, TOKEN, next(NUMBERS)),
            mode=mode,
            limit=BatchLimit(max_records, max_bytes),
            batch_seconds=batch_seconds,
        )
        return self.query

    def stop(self) -> None:
        """Stop the query as it is, in the middle of a batch too: in real time always without a commit."""
        if self.query is not None:
            self.query.stop()
            self.query = None

    def finish(self) -> None:
        """Return when all that the topics have now is read, in micro-batches."""
        assert self.query is not None
        self.query.processAllAvailable()

    def is_in_batch(self) -> bool:
        """Whether a batch is under way; in real time always."""
        self.check()
        assert self.query is not None
        return bool(self.query.status["isTriggerActive"])

    def has_commits(self) -> bool:
        """Whether a batch has ended, so that the state can be read."""
        return self._checkpoints.has_commits(self.generation)

    def records_in_state(self, table: int) -> int:
        """How many records of a table the operator keeps, at the end of the last batch."""
        state = self._spark.read.format("statestore").option("stateVarName", f"rows_{table}")
        return state.load(str(self._checkpoints.path(self.generation))).count()

    def check(self) -> None:
        assert self.query is not None
        failure = self.query.exception()
        assert failure is None, failure

    def close(self) -> None:
        self.stop()
        super().close()


@dataclass
class Stage:
    """Two topics, and everything that was sent to them."""

    bootstrap: str
    topics: dict[Side, str]
    sent: list[Sent]
    limits: Mapping[Side, Limit] = field(default_factory=dict)

    @classmethod
    def open(cls, bootstrap: str) -> Stage:
        topics: dict[Side, str] = {"users": unique_topic("user"), "accounts": unique_topic("account")}
        for topic in topics.values():
            create_topic(bootstrap, topic, config=ANY_TIME)
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
        spec = preset_spec(self.topics["users"], self.topics["accounts"], joins)
        retain: dict[str, Retain] = {side: Retain(each.rows, each.seconds) for side, each in self.limits.items()}
        return replace(spec, tables=tuple(replace(table, retain=retain.get(table.name)) for table in spec.tables))

    def engine(self, spark: SparkSession, server: ServerProcess, joins: Sequence[JoinType], checkpoint: Path) -> Engine:
        return Engine(spark, server, self.spec(joins), self.bootstrap, checkpoint)

    def differences(self, sink: Tables, joins: Sequence[JoinType]) -> dict[str, tuple[list[Any], list[Any]]]:
        """As `view_differences`, where each view is called like its join."""
        return self.view_differences(sink, {join: join for join in joins}, None)

    def lasting_differences(self, tables: Tables, joins: Sequence[JoinType]) -> dict[str, tuple[list[Any], list[Any]]]:
        """The differences that do not pass: after a crash all records may be there before all are read again."""
        found: list[dict[str, tuple[list[Any], list[Any]]]] = []

        def are_none() -> bool:
            found.append(self.differences(tables, joins))
            return not found[-1]

        with suppress(AssertionError):
            wait_until(are_none, "there is no difference", SETTLE_SECONDS)
        return found[-1]

    def view_differences(
        self, tables: Tables, views: Mapping[str, JoinType], generation: str | None
    ) -> dict[str, tuple[list[Any], list[Any]]]:
        """For each table that is not what the oracle says: some rows that are too many, and some that lack."""
        found, expected = content(tables, list(views), generation), self.expected(views)
        return {name: _difference(found[name], rows) for name, rows in expected.items() if found[name] != rows}

    def expected(self, views: Mapping[str, JoinType]) -> dict[str, list[tuple[Any, ...]]]:
        """What the oracle says of each table, and of views by name."""
        oracle = Oracle(self.sent, self.limits)
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
