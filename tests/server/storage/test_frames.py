"""What a frame changes: every table is what all records make it, whatever came twice and in whatever order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from livetables.model.change import TableShape
from livetables.model.spec import DEAD_LETTERS, record_id
from livetables.model.wire import FramePart, FrameStream
from livetables.server.storage import merge
from livetables.server.storage.frames import (
    FrameError,
    TableNews,
    WriterMarks,
    advanced,
    combined,
    frame_changes,
    positions,
)
from livetables.server.storage.generation import Frame
from livetables.server.storage.store import Store
from livetables.server.viewports.viewport import Selection
from tests.support.frames import (
    ACCOUNTS,
    ASOF,
    EPOCH,
    LEFT,
    LETTERS,
    NATURAL,
    OWN_SCHEMA,
    SHAPES,
    USERS,
    Emitted,
    Record,
    Row,
    Story,
    expected,
    joined,
    marks_of,
    part,
    streams,
)

BY_NAME = {shape.name: shape for shape in SHAPES}
GENERATIONS = count()


@st.composite
def histories(draw: st.DrawFn) -> list[Record]:
    """Records of two topics with two partitions each, over few keys and times; one in ten is dead."""
    offsets: dict[tuple[str, int], Iterator[int]] = {}
    records = []
    for source, partition, key, time, kind in draw(
        st.lists(
            st.tuples(
                st.sampled_from(["users", "accounts"]),
                st.integers(0, 1),
                st.sampled_from(["a", "b", "a", "b", "c", None]),
                st.integers(0, 4),
                st.integers(0, 9),
            ),
            max_size=24,
        )
    ):
        offset = next(offsets.setdefault((source, partition), count(draw(st.integers(0, 2)))))
        records.append(Record(source, partition, offset, key, time, is_dead=kind == 0, is_odd=kind == 1))
    return records


def key_of(shape: TableShape, row: Row) -> tuple[Any, ...]:
    return tuple(row[column] for column in shape.key)


def version_of(shape: TableShape, row: Row) -> list[tuple[bool, Any]]:
    return [(row[column] is not None, row[column]) for column in shape.version]


class Tables:
    """Applies frames as the store should, and looks that nothing comes twice, is missing, or goes back."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[tuple[Any, ...], Row]] = {shape.name: {} for shape in SHAPES}
        self.marks: dict[int, WriterMarks] = {}
        self.records: dict[str, int] = {}
        self.odd: dict[str, int] = {}

    def take(self, last: FramePart, whole: tuple[FrameStream, ...]) -> None:
        before = {name: dict(rows) for name, rows in self.rows.items()}
        changes = frame_changes(BY_NAME, whole, self.marks.get(last.writer, {}), last.marks, {})
        self.marks[last.writer] = changes.marks
        for name, news in changes.tables.items():
            shape, rows = BY_NAME[name], self.rows[name]
            for row in [] if news.gone is None else news.gone.to_pylist():
                rows.pop(key_of(shape, row), None)
            for row in [] if news.newer is None else news.newer.to_pylist():
                if version_of(shape, row) > version_of(shape, rows[key_of(shape, row)]):
                    rows[key_of(shape, row)] = row
            for row in [] if news.perhaps is None else news.perhaps.to_pylist():
                rows.setdefault(key_of(shape, row), row)
            for row in [] if news.new is None else news.new.to_pylist():
                assert key_of(shape, row) not in rows, "a row that is there already counts as new"
                rows[key_of(shape, row)] = row
        for table, number in changes.records.items():
            self.records[table] = self.records.get(table, 0) + number
        for source, fields in changes.unknown_fields.items():
            self.odd[source] = self.odd.get(source, 0) + fields["odd"]
        self._check(before)

    def _check(self, before: dict[str, dict[tuple[Any, ...], Row]]) -> None:
        for name, rows in self.rows.items():
            gone = before[name].keys() - rows.keys()
            assert name == "left_ui" or not gone, f"{name} lost {gone}"
            assert all(right is None for _, right in gone if name == "left_ui"), "a pair is gone"
            for key in before[name].keys() & rows.keys():
                shape = BY_NAME[name]
                assert version_of(shape, before[name][key]) <= version_of(shape, rows[key]), f"{name} goes back"
        matched = {left for left, right in self.rows["left_ui"] if right is not None}
        unmatched = {left for left, right in self.rows["left_ui"] if right is None}
        users, accounts = ({each for (each,) in self.rows[table]} for table in ("users_ui", "accounts_ui"))
        assert matched | unmatched == users, "a user is not in the join"
        assert not matched & unmatched, "a user with accounts is shown without"
        assert {left for (left,) in self.rows["natural_ui"]} == users
        assert {right for (right,) in self.rows["asof_ui"]} == accounts


def comparable(rows: list[Row]) -> list[str]:
    return sorted(repr([(name, str(value)) for name, value in row.items()]) for row in rows)


def without_reason(row: Row) -> Row:
    return {"source": row["source"], "_id": row["_id"], "ts": row["ts"], "raw": row["raw"].encode()}


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(records=histories(), writers=st.integers(1, 2), data=st.data())
def test_tables_are_what_all_records_make_them_whatever_was_sent_again(
    records: list[Record], writers: int, data: st.DataObject
) -> None:
    tables = Tables()
    chance = data.draw(st.randoms(use_true_random=False))
    Story(records, writers, chance.randrange, tables.take).play()
    for name, rows in expected(records).items():
        found = list(tables.rows[name].values())
        assert comparable(list(map(without_reason, found)) if name == DEAD_LETTERS else found) == comparable(rows), name
    for source in ("users", "accounts"):
        mine = [record for record in records if record.source == source]
        assert tables.records.get(f"{source}_ui", 0) == len(mine)
        assert tables.odd.get(source, 0) == sum(record.is_odd and not record.is_dead for record in mine)
        reached = positions(SHAPES, tables.marks.values()).get(source, {})
        assert reached == {
            partition: max(each.offset for each in mine if each.partition == partition) + 1
            for partition in {each.partition for each in mine}
        }


@pytest.fixture(scope="module")
def shared_store() -> Iterator[Store]:
    store = Store(None)
    yield store
    store.close()


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(records=histories(), writers=st.integers(1, 2), few=st.sampled_from([0, 1, merge.FEW]), data=st.data())
def test_the_store_applies_frames_as_the_model_does(
    shared_store: Store, records: list[Record], writers: int, few: int, data: st.DataObject
) -> None:
    generation = f"g{next(GENERATIONS)}"
    shared_store.begin(generation, SHAPES)
    shared_store.publish(generation)
    chance = data.draw(st.randoms(use_true_random=False))
    waiting: list[Frame] = []

    def deliver(last: FramePart, whole: tuple[FrameStream, ...]) -> None:
        waiting.append(Frame(replace(last, generation=generation), whole))
        if chance.randrange(2):
            flush()

    def flush() -> None:
        for outcome in shared_store.apply(waiting).outcomes:
            assert isinstance(outcome, int), outcome
        waiting.clear()

    with patch.object(merge, "FEW", few):
        Story(records, writers, chance.randrange, deliver).play()
        flush()
    for name, rows in expected(records).items():
        with shared_store.reader.scan(name, Selection()) as reader:
            found = reader.read_all().to_pylist()
        assert comparable(list(map(without_reason, found)) if name == DEAD_LETTERS else found) == comparable(rows), name
    shared_store.drop(generation)


# One rule at a time

USER, ACCOUNT = Record("users", 0, 5, "a", 1), Record("accounts", 1, 7, "a", 2)
UNTIL_BOTH = advanced({}, marks_of([USER, ACCOUNT]))


def changed(table: str, marks: WriterMarks, *emitted: Emitted) -> dict[str, list[Row]]:
    news = frame_changes(BY_NAME, streams(emitted), marks, {}, {}).tables.get(table)
    return rows_of(news) if news else {}


def rows_of(news: TableNews) -> dict[str, list[Row]]:
    kinds = ("new", "perhaps", "newer", "gone")
    return {kind: rows.to_pylist() for kind in kinds if (rows := getattr(news, kind)) is not None}


def sizes_of(news: TableNews) -> dict[str, int]:
    kinds = ("new", "perhaps", "newer", "gone")
    return {kind: rows.num_rows for kind in kinds if (rows := getattr(news, kind)) is not None}


def test_a_row_without_a_match_is_not_inserted_when_its_match_is_in_the_frame() -> None:
    pair, alone = joined(USER, ACCOUNT), joined(USER, None)
    emitted: list[Emitted] = [
        ("left_ui", "rows", alone),
        ("left_ui", "rows", pair),
        ("left_ui", "removed", {"_left_id": USER.id}),
    ]
    assert changed("left_ui", {}, *emitted) == {"new": [pair]}
    gone = [{"_left_id": USER.id, "_right_id": None}]
    assert changed("left_ui", advanced({}, marks_of([USER])), *emitted) == {"new": [pair], "gone": gone}
    assert changed("left_ui", UNTIL_BOTH, *emitted) == {"perhaps": [pair], "gone": gone}


def test_a_removal_alone_deletes() -> None:
    removed: Emitted = ("left_ui", "removed", {"_left_id": USER.id})
    assert changed("left_ui", UNTIL_BOTH, removed, removed) == {"gone": [{"_left_id": USER.id, "_right_id": None}]}
    assert changed("left_ui", {}, removed) == {}


@pytest.mark.parametrize("shape", [NATURAL, ASOF], ids=lambda shape: shape.name)
def test_only_the_last_row_of_a_key_counts(shape: TableShape) -> None:
    pair = joined(USER, ACCOUNT)
    alone = joined(USER, None) if shape is NATURAL else joined(None, ACCOUNT)
    rows: list[Emitted] = [(shape.name, "rows", row) for row in (alone, pair)]
    assert changed(shape.name, {}, *rows) == {"new": [pair]}
    assert changed(shape.name, UNTIL_BOTH, *rows) == {"newer": [pair]}
    assert changed(shape.name, UNTIL_BOTH, rows[0]) == {}


def test_marks_are_of_one_partition_and_never_go_back() -> None:
    marks = advanced({}, {"users": {"k": {2: 9}}})
    assert marks == {("users", "k"): (-1, -1, 9)}
    assert advanced(marks, {"users": {"k": {2: 4}}}) is marks
    rows = [Record("users", partition, offset, None, 0).row for partition in (0, 2, 3) for offset in (9, 10)]
    new = changed("users_ui", marks, *(("users_ui", "rows", row) for row in rows))["new"]
    assert [row["_id"] for row in new] == [row["_id"] for row in rows if row["_id"] != record_id(2, 9)]


def test_scopes_have_marks_of_their_own() -> None:
    other = advanced({}, {"users": {"another": {0: 9}}})
    assert changed("users_ui", other, ("users_ui", "rows", USER.row)) == {"new": [USER.row]}


RAW = [
    None,
    b"",
    b"\xff\xfe",
    b'{"k": "\xc3',
    b'\xef\xbb\xbf{"k": "a"}',
    b'{"n": "\\ud800"}',
    b"\xed\xa0\x80",
    b'{"n": 1e999}',
    b'{"n": NaN}',
    b"\x00",
    b'{"n": ' + b"9" * 5000 + b"}",
    *(b'{"n": ' + b"[" * depth + b"]" * depth + b"}" for depth in (10, 985, 991, 995, 100_000)),
]


@given(raws=st.lists(st.sampled_from(RAW) | st.binary(max_size=30), min_size=1))
@settings(deadline=None, max_examples=50)
def test_dead_letters_of_any_bytes_have_a_reason_and_a_text(shared_store: Store, raws: list[bytes | None]) -> None:
    generation = f"g{next(GENERATIONS)}"
    letters = [{"source": "users_ui", "_id": record_id(3, n), "ts": EPOCH, "raw": raw} for n, raw in enumerate(raws)]
    shared_store.begin(generation, SHAPES)
    last = part((("dead_letters", "rows", letter) for letter in letters), generation=generation)
    (outcome,) = shared_store.apply([Frame(last, last.streams)]).outcomes
    assert isinstance(outcome, int), outcome
    shared_store.publish(generation)
    with shared_store.reader.scan(DEAD_LETTERS, Selection()) as reader:
        found = reader.read_all().to_pylist()
    for raw, letter in zip(raws, found, strict=True):
        assert (letter["source"], letter["topic"], letter["partition"]) == ("users_ui", "user", 3)
        assert letter["reason"]
        assert letter["raw"] == (None if raw is None else raw.decode(errors="backslashreplace"))
    assert shared_store.reader.dead_letter_summary(generation) == {"users_ui": (len(raws), found[0]["reason"])}
    shared_store.drop(generation)


def test_a_reason_names_the_column_and_its_type() -> None:
    letter = {"source": "accounts_ui", "_id": 1, "ts": EPOCH, "raw": b'{"n": "many", "k": "a"}'}
    (found,) = changed("dead_letters", {}, ("dead_letters", "rows", letter))["new"]
    assert found["reason"] == 'n: expected int64, found the string "many"'
    assert (found["topic"], found["partition"], found["offset"]) == ("account", 0, 1)


BAD = {
    "unknown table": FrameStream.of("nowhere", "rows", OWN_SCHEMA.empty_table()),
    "other columns": FrameStream.of("users_ui", "rows", pa.table({"_id": [1]})),
    "other type": FrameStream.of(
        "users_ui", "rows", pa.Table.from_pylist([USER.row], OWN_SCHEMA.set(2, pa.field("n", pa.float64())))
    ),
    "a column twice": FrameStream.of("left_ui", "removed", pa.table([[1], [1]], names=["_left_id", "_left_id"])),
    "no removals there": FrameStream.of("inner_ui", "removed", pa.table({"_left_id": [1]})),
    "no unknown there": FrameStream.of("inner_ui", "unknown", pa.table({"_id": [1], "field": ["x"]})),
    "no id": FrameStream.of("users_ui", "rows", pa.Table.from_pylist([{**USER.row, "_id": None}], OWN_SCHEMA)),
    "an id below zero": FrameStream.of("users_ui", "rows", pa.Table.from_pylist([{**USER.row, "_id": -1}], OWN_SCHEMA)),
    "a dead letter of a view": streams(
        [("dead_letters", "rows", {"source": "left_ui", "_id": 1, "ts": EPOCH, "raw": b""})]
    )[0],
    "no Arrow": FrameStream("users_ui", "rows", pa.py_buffer(b"\xff\xff\xff\xff\x10\x00\x00\x00" + b"x" * 64)),
}


@pytest.mark.parametrize("stream", BAD.values(), ids=BAD)
def test_what_does_not_match_the_shapes_is_refused(stream: FrameStream) -> None:
    with pytest.raises(FrameError, match="cure: ") as caught:
        frame_changes(BY_NAME, [stream], {}, {}, {})
    assert caught.value.code == "refused"


def test_columns_may_come_in_another_order_and_not_nullable() -> None:
    rows = pa.Table.from_pylist([USER.row], OWN_SCHEMA).select(["ts", "n", "k", "_id"])
    required = pa.schema([field.with_nullable(False) for field in rows.schema], {"a": "b"})
    both = [FrameStream.of("users_ui", "rows", each) for each in (rows, rows.cast(required))]
    assert rows_of(frame_changes(BY_NAME, both, {}, {}, {}).tables["users_ui"]) == {"new": [USER.row] * 2}


def test_large_frames_are_taken() -> None:
    number = 500_000
    ids = pa.array(range(number))
    times = pa.repeat(pa.scalar(EPOCH, OWN_SCHEMA.field("ts").type), number)
    rows = pa.Table.from_arrays([ids, pa.repeat("a", number), ids, times], schema=OWN_SCHEMA)
    pairs = pa.Table.from_arrays([ids, ids, pa.repeat("a", number), times, times], schema=NATURAL.schema)
    given_streams = [
        FrameStream.of("users_ui", "rows", rows),
        *(FrameStream.of(shape.name, "rows", pairs) for shape in (LEFT, NATURAL, ASOF)),
    ]
    marks = advanced({}, {"users": {"k": {0: number // 2 - 1}}, "accounts": {"k": {0: number}}})
    changes = frame_changes(BY_NAME, given_streams, marks, {}, {})
    half = number // 2
    assert changes.records == {"users_ui": half}
    news = changes.tables
    assert sizes_of(news["left_ui"]) == {"new": half, "perhaps": half}
    assert sizes_of(news["natural_ui"]) == {"new": half, "newer": half}
    assert sizes_of(news["asof_ui"]) == {"newer": number}


def test_news_of_several_writers_are_taken_together() -> None:
    one, two = (
        frame_changes(BY_NAME, streams([("users_ui", "rows", record.row)]), {}, {}, {}).tables["users_ui"]
        for record in (USER, Record("users", 1, 0, "b", 0))
    )
    assert [row["k"] for row in rows_of(combined([one, two]))["new"]] == ["a", "b"]


def test_only_topics_have_positions() -> None:
    marks = advanced({}, {"users": {"k": {0: 4, 2: 0}, "other": {1: 9}}, "accounts": {"k": {1: 3}}})
    assert positions([USERS, LEFT, LETTERS], [marks, advanced({}, {"users": {"k": {0: 7}}})]) == {"users": {0: 8, 2: 1}}
    assert positions([ACCOUNTS], []) == {}
