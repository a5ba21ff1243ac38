"""Frames as the pipeline makes them: shapes, parts, and a model of its operator with crashes and replays."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from livetables.model.change import TableShape
from livetables.model.joins import JoinType
from livetables.model.spec import record_id
from livetables.model.wire import LENGTH, PART_FIELDS, FramePart, FrameStream, Marks, StreamKind

Row = dict[str, Any]
Emitted = tuple[str, StreamKind, Row]

TIME = pa.timestamp("us", "UTC")
EPOCH = datetime(2026, 1, 31, 12, tzinfo=UTC)
OWN_SCHEMA = pa.schema([("_id", pa.int64()), ("k", pa.string()), ("n", pa.int64()), ("ts", TIME)])
VIEW_SCHEMA = pa.schema(
    [("_left_id", pa.int64()), ("_right_id", pa.int64()), ("k", pa.string()), ("users_ts", TIME), ("accounts_ts", TIME)]
)
DEAD_LETTER_SCHEMA = pa.schema(
    [
        ("_id", pa.int64()),
        ("source", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int64()),
        ("offset", pa.int64()),
        ("ts", TIME),
        ("reason", pa.string()),
        ("raw", pa.string()),
    ]
)
STREAM_SCHEMAS: Mapping[tuple[str, StreamKind], pa.Schema] = {
    ("users_ui", "rows"): OWN_SCHEMA,
    ("accounts_ui", "rows"): OWN_SCHEMA,
    ("dead_letters", "rows"): pa.schema(
        [("source", pa.string()), ("_id", pa.int64()), ("ts", TIME), ("raw", pa.binary())]
    ),
}
UNKNOWN_SCHEMA = pa.schema([("_id", pa.int64()), ("field", pa.string())])
REMOVED_SCHEMA = pa.schema([("_left_id", pa.int64())])

USERS = TableShape(
    "users_ui",
    OWN_SCHEMA,
    ("_id",),
    appends=True,
    sources=("users",),
    scope="k",
    topic="user",
    aliases=("user",),
    times=("ts",),
)
ACCOUNTS = TableShape(
    "accounts_ui",
    OWN_SCHEMA,
    ("_id",),
    appends=True,
    sources=("accounts",),
    scope="k",
    topic="account",
    times=("ts",),
)
LETTERS = TableShape("dead_letters", DEAD_LETTER_SCHEMA, ("source", "_id"), appends=True)


def view(join: JoinType) -> TableShape:
    keys = {"natural": ("_left_id",), "asof": ("_right_id",)}.get(join, ("_left_id", "_right_id"))
    version = {"natural": ("accounts_ts", "_right_id"), "asof": ("users_ts", "_left_id")}.get(join, ())
    return TableShape(
        f"{join}_ui",
        VIEW_SCHEMA,
        keys,
        version,
        appends=not version,
        sources=("users", "accounts"),
        scope="k",
        join=join,
        times=("users_ts", "accounts_ts"),
        sides=(("_left_id", "users_ts"), ("_right_id", "accounts_ts")),
    )


INNER, LEFT, NATURAL, ASOF = VIEWS = (view("inner"), view("left"), view("natural"), view("asof"))
SHAPES = (USERS, ACCOUNTS, *VIEWS, LETTERS)


def streams(emitted: Iterable[Emitted]) -> tuple[FrameStream, ...]:
    """What was emitted, in order, as a part carries it."""
    rows: dict[tuple[str, StreamKind], list[Row]] = defaultdict(list)
    for table, kind, row in emitted:
        rows[table, kind].append(row)
    return tuple(
        FrameStream.of(table, kind, pa.Table.from_pylist(each, schema=_schema(table, kind)))
        for (table, kind), each in rows.items()
    )


def _schema(table: str, kind: StreamKind) -> pa.Schema:
    if kind != "rows":
        return {"removed": REMOVED_SCHEMA, "unknown": UNKNOWN_SCHEMA}[kind]
    return STREAM_SCHEMAS.get((table, kind), VIEW_SCHEMA)


def encode_part(part: FramePart) -> bytes:
    """The body that the pipeline's writer, which is in Java, makes of a part."""
    header = {
        **{name: getattr(part, name) for name in PART_FIELDS},
        "streams": [{"table": stream.table, "kind": stream.kind} for stream in part.streams],
        "lengths": [stream.data.size for stream in part.streams],
        "marks": part.marks,
    }
    text = json.dumps(header).encode()
    padded = text + b" " * (-(len(text) + LENGTH.size) % 64)  # keeps the Arrow data after it aligned
    return b"".join([LENGTH.pack(len(padded)), padded, *(stream.data for stream in part.streams)])


def part(emitted: Iterable[Emitted] = (), marks: Marks | None = None, **fields: Any) -> FramePart:
    """A part of a frame: a whole one by default."""
    values: dict[str, Any] = {
        "generation": "g",
        "run": 1,
        "writer": 0,
        "attempt": "a",
        "frame": 0,
        "part": 0,
        "commit": True,
        "sent_ms": 0,
        **fields,
    }
    return FramePart(**values, streams=streams(emitted), marks=marks or {})


@dataclass(frozen=True)
class Record:
    """A record of a topic. A dead one is a dead letter; `odd` ones have a field that is no column."""

    source: str  # users or accounts
    partition: int
    offset: int
    key: str | None
    time: int
    is_dead: bool = False
    is_odd: bool = False

    @property
    def id(self) -> int:
        return record_id(self.partition, self.offset)

    @property
    def ts(self) -> datetime:
        return EPOCH + timedelta(seconds=self.time)

    @property
    def order(self) -> tuple[int, int]:
        return self.time, self.id

    @property
    def row(self) -> Row:
        return {"_id": self.id, "k": self.key, "n": self.offset, "ts": self.ts}

    @property
    def letter(self) -> Row:
        return {"source": f"{self.source}_ui", "_id": self.id, "ts": self.ts, "raw": b"no JSON"}


def joined(left: Record | None, right: Record | None) -> Row:
    own = left or right
    assert own
    return {
        "_left_id": left.id if left else None,
        "_right_id": right.id if right else None,
        "k": own.key,
        "users_ts": left.ts if left else None,
        "accounts_ts": right.ts if right else None,
    }


def latest(records: Iterable[Record]) -> Record | None:
    return max(records, key=lambda record: record.order, default=None)


def match_at(lefts: Iterable[Record], right: Record) -> Record | None:
    return latest(left for left in lefts if left.time <= right.time)


@dataclass
class Operator:
    """What a writer's partition knows of its keys, and what it emits for each record: everything together."""

    lefts: dict[str, list[Record]] = field(default_factory=lambda: defaultdict(list))
    rights: dict[str, list[Record]] = field(default_factory=lambda: defaultdict(list))

    def copy(self) -> Operator:
        copied = Operator()
        for mine, its in ((self.lefts, copied.lefts), (self.rights, copied.rights)):
            its.update({key: list(records) for key, records in mine.items()})
        return copied

    def process(self, record: Record) -> Iterator[Emitted]:
        if record.is_dead:
            yield "dead_letters", "rows", record.letter
            return
        yield f"{record.source}_ui", "rows", record.row
        if record.is_odd:
            yield f"{record.source}_ui", "unknown", {"_id": record.id, "field": "odd"}
        is_left = record.source == "users"
        yield from self._left(record) if is_left else self._right(record)

    def _left(self, left: Record) -> Iterator[Emitted]:
        rights = self.rights[left.key] if left.key is not None else []
        for right in rights:
            yield "inner_ui", "rows", joined(left, right)
            yield "left_ui", "rows", joined(left, right)
        if rights:
            yield "left_ui", "removed", {"_left_id": left.id}
        else:
            yield "left_ui", "rows", joined(left, None)
        yield "natural_ui", "rows", joined(left, latest(rights))
        if left.key is not None:
            self.lefts[left.key].append(left)
            for right in rights:
                if match_at(self.lefts[left.key], right) is left:
                    yield "asof_ui", "rows", joined(left, right)

    def _right(self, right: Record) -> Iterator[Emitted]:
        lefts = self.lefts[right.key] if right.key is not None else []
        for left in lefts:
            yield "inner_ui", "rows", joined(left, right)
            yield "left_ui", "rows", joined(left, right)
        if right.key is not None:
            if not self.rights[right.key]:
                for left in lefts:
                    yield "left_ui", "removed", {"_left_id": left.id}
            self.rights[right.key].append(right)
            if latest(self.rights[right.key]) is right:
                for left in lefts:
                    yield "natural_ui", "rows", joined(left, right)
        yield "asof_ui", "rows", joined(match_at(lefts, right), right)


def expected(records: Sequence[Record]) -> dict[str, list[Row]]:
    """The tables of all records, by brute force."""
    alive = [record for record in records if not record.is_dead]
    users = [record for record in alive if record.source == "users"]
    accounts = [record for record in alive if record.source == "accounts"]

    def matches(record: Record, others: Sequence[Record]) -> list[Record]:
        return [other for other in others if record.key is not None and other.key == record.key]

    pairs = [joined(user, account) for user in users for account in matches(user, accounts)]
    return {
        "users_ui": [user.row for user in users],
        "accounts_ui": [account.row for account in accounts],
        "inner_ui": pairs,
        "left_ui": [*pairs, *(joined(user, None) for user in users if not matches(user, accounts))],
        "natural_ui": [joined(user, latest(matches(user, accounts))) for user in users],
        "asof_ui": [joined(match_at(matches(account, users), account), account) for account in accounts],
        "dead_letters": [record.letter for record in records if record.is_dead],
    }


class Story:
    """A query over the records of a topic: real time and micro-batches, boundaries, crashes and replays.

    `choose(n)` draws a number below n. `deliver` is given each whole frame; `end` is called with a run that is at the
    end of a batch, before that counts: what was delivered of it is not read again.
    """

    def __init__(
        self,
        records: Sequence[Record],
        writers: int,
        choose: Callable[[int], int],
        deliver: Callable[[FramePart, tuple[FrameStream, ...]], None],
        end: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._end = end
        self._partitions: dict[tuple[str, int], list[Record]] = defaultdict(list)
        for record in records:
            self._partitions[record.source, record.partition].append(record)
        self._writers = writers
        self._choose = choose
        self._deliver = deliver
        self._run = 0
        self._attempts = 0
        self._done = dict.fromkeys(self._partitions, 0)  # of each partition, at the last boundary
        self._operators = [Operator() for _ in range(writers)]  # at the last boundary

    def play(self) -> None:
        """Until all records are committed."""
        crashes = 0
        while self._done != {key: len(records) for key, records in self._partitions.items()}:
            self._run += 1
            is_crash = crashes < 6 and self._choose(3) > 0
            crashes += is_crash
            until = {
                key: len(records)
                if crashes == 6
                else self._done[key] + self._choose(len(records) + 1 - self._done[key])
                for key, records in self._partitions.items()
            }
            frames_max = self._choose(12) if is_crash else None
            self._batch(until, is_real_time=self._choose(2) == 1, frames_max=frames_max)

    def _batch(self, until: Mapping[tuple[str, int], int], *, is_real_time: bool, frames_max: int | None) -> None:
        """Up to the next boundary, or to a crash after so many frames."""
        operators = [operator.copy() for operator in self._operators]
        shares: list[list[list[Record]]] = [[] for _ in range(self._writers)]  # by writer and partition, in order
        for key, records in self._partitions.items():
            for writer in range(self._writers):
                mine = [each for each in records[self._done[key] : until[key]] if self._writer_of(each) == writer]
                shares[writer].append(mine)
        make = self._real_time if is_real_time else self._micro_batch
        queues = [make(writer, operators[writer], share) for writer, share in enumerate(shares)]
        while any(queues):
            if frames_max == 0:
                return
            frames_max = None if frames_max is None else frames_max - 1
            waiting = [queue for queue in queues if queue]
            self._deliver(*waiting[self._choose(len(waiting))].pop(0))
        if frames_max is None:
            self._end(self._run)
            self._done, self._operators = dict(until), operators

    def _writer_of(self, record: Record) -> int:
        return (ord(record.key) if record.key else 0) % self._writers

    def _real_time(
        self, writer: int, operator: Operator, share: list[list[Record]]
    ) -> list[tuple[FramePart, tuple[FrameStream, ...]]]:
        """Frames of whole records, each partition in its order."""
        frames = []
        queues = [list(records) for records in share]
        while any(queues):
            taken = []
            for _ in range(1 + self._choose(3)):
                waiting = [queue for queue in queues if queue]
                if waiting:
                    taken.append(waiting[self._choose(len(waiting))].pop(0))
            emitted = [each for record in taken for each in operator.process(record)]
            frames.append((emitted, taken))
        return self._numbered(writer, [(streams(emitted), taken) for emitted, taken in frames])

    def _micro_batch(
        self, writer: int, operator: Operator, share: list[list[Record]]
    ) -> list[tuple[FramePart, tuple[FrameStream, ...]]]:
        """One frame, of records by key and in no other order, in parts."""
        taken = [record for records in share for record in records]
        if not taken:
            return []
        shuffled = sorted(taken, key=lambda record: (record.key or "", self._choose(1000)))
        parts: list[list[Emitted]] = [[]]
        for record in shuffled:
            if self._choose(3) == 0:
                parts.append([])
            parts[-1] += operator.process(record)
        whole = tuple(stream for emitted in parts for stream in streams(emitted))
        return self._numbered(writer, [(whole, taken)])

    def _numbered(
        self, writer: int, frames: Iterable[tuple[tuple[FrameStream, ...], list[Record]]]
    ) -> list[tuple[FramePart, tuple[FrameStream, ...]]]:
        self._attempts += 1
        return [
            (
                part(marks=marks_of(records), run=self._run, writer=writer, attempt=str(self._attempts), frame=number),
                whole,
            )
            for number, (whole, records) in enumerate(frames)
        ]


def marks_of(records: Iterable[Record]) -> dict[str, dict[str, dict[int, int]]]:
    marks: dict[str, dict[str, dict[int, int]]] = {}
    for record in records:
        offsets = marks.setdefault(record.source, {}).setdefault("k", {})
        offsets[record.partition] = max(offsets.get(record.partition, -1), record.offset)
    return marks
