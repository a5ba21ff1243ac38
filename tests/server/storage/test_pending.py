"""Frames that are shown before they are stored: nothing is lost or doubled, whatever is stored or killed when."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from livetables.model.change import Batch, TableChanges, TableShape
from livetables.model.spec import DEAD_LETTERS
from livetables.model.wire import RUNS_PER_PIPELINE, ChangesHeader, FramePart, FrameStream, Place
from livetables.server.storage import pending as pending_module
from livetables.server.storage import recent
from livetables.server.storage.frames import FrameError
from livetables.server.storage.generation import Frame, Generation
from livetables.server.storage.listeners import Changed
from livetables.server.storage.pending import Outcome, ShownChanges, StoreFirstError
from livetables.server.storage.store import Store
from livetables.server.viewports.row import Row, rows_of
from livetables.server.viewports.viewport import Selection, ViewOptions
from tests.server.storage.test_frames import Tables, comparable, without_reason
from tests.support.frames import SHAPES, USERS, Operator, Record, Story, expected, marks_of, part

NOTES = TableShape("notes", pa.schema([("id", pa.int64()), ("text", pa.string())]), ("id",))
ALL = (*SHAPES, NOTES)
BY_NAME = {shape.name: shape for shape in ALL}
PATIENCE = 0.3  # for a thread that may have to wait until the one that started it goes on
EVERY_ROW = ViewOptions(size=10_000)


# What looks at a store


class Copy:
    """A copy of every table as viewers are shown it, and as they read it again where they are not."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.rows: dict[str, dict[int, Row]] = {}
        self.last: dict[str, int] = {}  # the highest number ever seen, by table
        for name in BY_NAME:
            self._read(name)
        store.show_to(self)
        store.listen(self.changed)

    def show(self, shown: ShownChanges) -> None:
        is_left_over = bool(self._store.pending._storing)  # it could not be stored, and nothing is meanwhile
        assert shown.sequence == self._store.generations()["g"].sequence + 1 + is_left_over
        for name, delta in shown.deltas.items():
            rows = self.rows[name]
            for was, now in delta.changed:
                assert rows.pop(was.number).values == was.values, "another row is there"
                if now is not None:
                    assert now.number == was.number
                    rows[now.number] = now
            for row in delta.new:
                assert row.number > self.last[name], "a number is given twice"
                self.last[name] = row.number
                rows[row.number] = row

    def stored(self, generation: str, sequence: int) -> None:
        assert sequence == self._store.generations()[generation].sequence

    def changed(self, changed: Changed) -> None:
        if not changed.shown:
            for name in changed.names & BY_NAME.keys():
                self._read(name)

    def _read(self, name: str) -> None:
        kept = self._store.reader.kept(name, EVERY_ROW, 10)
        self.rows[name] = {row.number: row for row in rows_of(kept.rows)}
        assert len(self.rows[name]) == kept.total, "a number is given twice"
        self.last[name] = max(self.last.get(name, -1), *self.rows[name], -1)

    def table(self, name: str) -> list[dict[str, Any]]:
        columns = BY_NAME[name].schema.names
        return [dict(zip(columns, row.values, strict=True)) for row in self.rows[name].values()]


class Follower:
    """Somebody who follows a table over Flight: its rows by key, up to a place."""

    def __init__(self, name: str) -> None:
        self.shape = BY_NAME[name]
        self.rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        self.place: Place | None = None

    def follow(self, store: Store) -> None:
        """Get to where the table is."""
        name = self.shape.name
        changes = store.changes.since(name, self.place, 0, lambda: False) if self.place else None
        if changes is None:
            with store.changes.whole(name) as reader:
                changes = reader.read_all()
            self.rows = {}
        self.place = ChangesHeader.of(changes.schema).place
        keys = []
        for row in changes.to_pylist():
            key = tuple(row[column] for column in self.shape.key)
            keys.append(key)
            if row.pop("_deleted"):
                self.rows.pop(key, None)
            else:
                assert self.rows.get(key) != row, "a change comes twice"
                self.rows[key] = row
        assert len(set(keys)) == len(keys)


def stored_rows(store: Store, name: str) -> list[dict[str, Any]]:
    with store.reader.scan(name, Selection()) as reader:
        found: list[dict[str, Any]] = reader.read_all().to_pylist()
        return found


class Failing:
    """Lets transactions of a store fail where they would commit, as if there were no memory left."""

    def __init__(self, store: Store, fails: Callable[[], bool]) -> None:
        transaction = store.database.transaction

        @contextmanager
        def failing() -> Iterator[Callable[..., object]]:
            with transaction() as run:
                yield run
                if fails():
                    raise duckdb.OutOfMemoryException("no memory left")

        store.database.transaction = failing  # type: ignore[method-assign]


def has_pending(store: Store) -> bool:
    return bool(store.pending._open or store.pending._storing)


def as_micros(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with their times as viewers keep them."""
    return [
        {
            name: round(value.timestamp() * 1_000_000) if hasattr(value, "timestamp") else value
            for name, value in row.items()
        }
        for row in rows
    ]


# A pipeline with a server that may be killed


class Kept:
    """What a writer keeps until the server has stored it, as FrameWriter does."""

    def __init__(self) -> None:
        self.frames: dict[tuple[int, str], list[Frame]] = {}

    def of(self, last: FramePart) -> list[Frame]:
        return self.frames.setdefault((last.writer, last.attempt), [])

    def after(self, last: FramePart, stored: int) -> list[Frame]:
        """What to send again to a server that has stored an attempt so far."""
        again = [each for each in self.of(last) if each.last.frame > stored]
        assert again[0].last.frame == stored + 1, "the writer has forgotten what the server has not"
        return again


class Server:
    """A store in a file with everybody who looks at it, and what it should hold."""

    def __init__(self, path: Path, writers: int, choose: Callable[[int], int]) -> None:
        self._path = path
        self._choose = choose
        self._kept = Kept()
        self._epoch = 0
        self._last: dict[int, FramePart] = {}  # of this batch, by writer
        self.writers = writers
        self.shown, self.stored = Tables(), Tables()
        self._unstored: list[Frame] = []  # that were shown
        self.notes: dict[int, str] = {}
        self.counts = {"shown": 0, "applied": 0, "killed": 0, "resent": 0}
        self.followers = [Follower(name) for name in BY_NAME]
        self.store = Store(path)
        self.store.begin("g", ALL)
        self.store.publish("g")
        self._open()

    def _open(self) -> None:
        Failing(self.store, self._fails)
        self.copy = Copy(self.store)

    def _fails(self) -> bool:
        return self._choose(4) == 0

    def deliver(self, last: FramePart, whole: tuple[FrameStream, ...]) -> None:
        last = replace(last, epoch=self._epoch, durable=self._choose(4) == 0)
        self._last[last.writer] = last
        self._kept.of(last).append(Frame(last, whole))
        self._send(Frame(last, whole))
        match self._choose(8):
            case 0:
                self.kill()
            case 1 | 2:
                self.store_shown()
            case 3:
                self.put()
            case 4:
                self.followers[self._choose(len(self.followers))].follow(self.store)

    def end(self, run: int) -> None:
        """A batch ends when all that its writers sent is on disk, whatever happens to the server meanwhile."""
        for writer in range(self.writers):
            before = self._last.get(writer)
            before = before if before and before.run == run else None
            attempt, number = (before.attempt, before.frame + 1) if before else (f"end {self._epoch}", 0)
            last = part(writer=writer, attempt=attempt, frame=number, run=run, epoch=self._epoch, end=True)
            frame = Frame(last, last.streams)
            self._kept.of(frame.last).append(frame)
            self._send(frame)
            while self.store.stored_frame(frame.last) < number:
                if self._choose(3) == 0:
                    self.kill()
                    self._send(frame)
                else:
                    self.store_shown()
        self._epoch += 1
        self._last = {}

    def close(self) -> None:
        self.store.close()

    def kill(self) -> None:
        """What was shown and not stored is gone; the file is as it was after the last commit."""
        self.store.close()
        self.store = Store(self._path)
        self.counts["killed"] += 1
        self.shown, self._unstored = deepcopy(self.stored), []
        self.check_stored()
        self._open()
        self.check_copy()

    def store_shown(self) -> None:
        """Try to store what was shown."""
        try:
            self.store.store_shown()
        except duckdb.OutOfMemoryException:
            self._has_failed()
        else:
            self._has_stored()

    def put(self) -> None:
        """A batch of another table of the generation."""
        batch_id = (self.store.generations()["g"].last_batch_id or 0) + 1 if self.notes else 0
        note, text = self._choose(5), str(batch_id)
        rows = pa.Table.from_pylist([{"id": note, "text": text}])
        changes = TableChanges("notes", rows.cast(NOTES.schema), NOTES.key_schema.empty_table())
        batch, is_stored = Batch("g", batch_id, (changes,)), False
        while not is_stored:
            try:
                is_stored = self.store.put(batch)
            except duckdb.OutOfMemoryException:
                self._has_failed()
        self.notes[note] = text
        self._has_stored()

    def check_copy(self) -> None:
        """What viewers were shown is what all frames so far make of the tables."""
        for name, rows in self._of(self.shown).items():
            found = self.copy.table(name)
            assert comparable(_plain(name, found)) == comparable(as_micros(rows)), name

    def check_stored(self) -> None:
        for name, rows in self._of(self.stored).items():
            assert comparable(_plain(name, stored_rows(self.store, name))) == comparable(rows), name

    def check_followers(self) -> None:
        for follower in self.followers:
            follower.follow(self.store)
            name = follower.shape.name
            assert comparable(list(follower.rows.values())) == comparable(stored_rows(self.store, name)), name

    def _of(self, tables: Tables) -> dict[str, list[dict[str, Any]]]:
        found = {name: _plain(name, list(rows.values())) for name, rows in tables.rows.items()}
        return {**found, "notes": [{"id": key, "text": text} for key, text in self.notes.items()]}

    def _send(self, frame: Frame) -> None:
        """Send a frame, and before it those that the server has lost."""
        due = [frame]
        while due:
            try:
                self._show(due[0])
            except FrameError as error:
                if error.code != "missing_frames" or error.stored is None:
                    raise
                due = self._kept.after(frame.last, error.stored)
                self.counts["resent"] += len(due)
                continue
            except duckdb.OutOfMemoryException:
                self._has_failed()
                if self._choose(3) == 0:
                    self.kill()
                continue
            sent = due.pop(0).last
            stored = self.store.stored_frame(sent)
            kept = self._kept.of(sent)
            kept[:] = [each for each in kept if each.last.frame > stored]

    def _show(self, frame: Frame) -> None:
        is_known = self.store.generations()["g"].has(frame.last)
        try:
            self.store.show(frame)
            self.counts["shown"] += 1
            is_stored = False
        except StoreFirstError:
            (outcome,) = self.store.apply([frame]).outcomes
            if isinstance(outcome, Exception):
                raise outcome from None
            self.counts["applied"] += 1
            is_stored = True
        if not is_known:
            self.shown.take(frame.last, frame.streams)
            self._unstored.append(frame)
        if is_stored:
            self._has_stored()
        self.check_copy()

    def _has_stored(self) -> None:
        assert not has_pending(self.store)
        self._take_stored(len(self._unstored))

    def _has_failed(self) -> None:
        """Some of what was shown may be on disk, and nothing before it is missing there."""
        places = (
            place for place, each in enumerate(self._unstored) if self.store.stored_frame(each.last) >= each.last.frame
        )
        self._take_stored(1 + max(places, default=-1))

    def _take_stored(self, frames: int) -> None:
        for each in self._unstored[:frames]:
            self.stored.take(each.last, each.streams)
        del self._unstored[:frames]
        self.check_stored()
        self.check_copy()


def _plain(name: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Dead letters as the model has them."""
    if name != DEAD_LETTERS:
        return rows
    return [{"source": row["source"], "_id": row["_id"], "raw": row["raw"]} for row in rows]


def random_history(chance: Random) -> list[Record]:
    """Records of two topics with two partitions each, over few keys and times; one in ten is dead."""
    offsets = {
        (source, partition): count(chance.randrange(3)) for source in ("users", "accounts") for partition in (0, 1)
    }
    records = []
    for _ in range(chance.randrange(4, 30)):
        source, partition = place = chance.choice(list(offsets))
        key, kind = chance.choice(["a", "b", "a", "b", "c", None]), chance.randrange(10)
        record = Record(source, partition, next(offsets[place]), key, chance.randrange(5), kind == 0, kind == 1)
        records.append(record)
    return records


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_lost_or_doubled_whatever_is_stored_and_killed_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = Random(seed)
    monkeypatch.setattr(pending_module, "SHOWN_ROWS_MAX", chance.choice([3, 10, 5_000, 5_000]))
    monkeypatch.setattr(recent, "ROWS_MAX", chance.choice([0, 1, 3, 20_000]))
    monkeypatch.setattr(recent, "BYTES_MAX", chance.choice([0, 5_000, 64_000_000]))
    records = random_history(chance)
    server = Server(tmp_path / "store.duckdb", 1 + seed % 2, chance.randrange)
    with closing(server):
        Story(records, server.writers, chance.randrange, server.deliver, server.end).play()
        server.store_shown()
        server.check_followers()
        for name, rows in expected(records).items():
            found = stored_rows(server.store, name)
            found = list(map(without_reason, found)) if name == DEAD_LETTERS else found
            assert comparable(found) == comparable(rows), name
    assert server.counts["shown"], "nothing was tried"


# One thing at a time


@dataclass
class Looking:
    """A viewer that counts what it is shown and what is stored."""

    shown_frames: list[ShownChanges] = field(default_factory=list)
    stored_sequences: list[int] = field(default_factory=list)

    def show(self, shown: ShownChanges) -> None:
        self.shown_frames.append(shown)

    def stored(self, generation: str, sequence: int) -> None:
        assert generation == "g"
        self.stored_sequences.append(sequence)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(tmp_path / "store.duckdb")) as opened:
        opened.begin("g", ALL)
        opened.publish("g")
        yield opened


def user(number: int, key: str = "a") -> Record:
    return Record("users", 0, number, key, number)


def frame(*numbers: int, **fields: Any) -> Frame:
    records = [user(number) for number in numbers]
    made = part([each for record in records for each in Operator().process(record)], marks_of(records), **fields)
    return Frame(made, made.streams)


def ids(store: Store) -> list[int]:
    return [row["_id"] for row in stored_rows(store, "users_ui")]


def in_a_thread(act: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    return thread


def test_a_frame_is_shown_at_once_and_stored_later(store: Store) -> None:
    viewer = Looking()
    store.show_to(viewer)
    outcome = store.show(frame(1))
    assert outcome.stored
    assert (ids(store), len(viewer.shown_frames), outcome.stored.done()) == ([], 1, False)
    assert (outcome.records, {each.table for each in outcome.taken}) == (
        {"users_ui": 1},
        {"users_ui", "left_ui", "natural_ui"},
    )
    assert store.stored_frame(frame(1).last) == -1
    store.store_shown()
    assert (ids(store), outcome.stored.result(0), viewer.stored_sequences) == ([1], 0, [0])
    assert store.stored_frame(frame(1).last) == 0
    assert viewer.shown_frames[0].sequence == 0


def test_nobody_is_shown_what_is_not_published(tmp_path: Path) -> None:
    with closing(Store(tmp_path / "store.duckdb")) as store:
        viewer = Looking()
        store.show_to(viewer)
        store.begin("g", ALL)
        store.show(frame(1))
        assert viewer.shown_frames == []
        store.publish("g")
        assert ids(store) == [1], "what readers come to see is stored"


def test_a_frame_with_a_gap_before_it_changes_nothing(store: Store) -> None:
    store.show(frame(1))
    store.store_shown()
    store.show(frame(2, frame=1))
    with pytest.raises(FrameError) as caught:
        store.show(frame(4, frame=3))
    assert (caught.value.code, caught.value.stored) == ("missing_frames", 0)
    (refused,) = store.apply([frame(4, frame=3)]).outcomes
    assert isinstance(refused, FrameError)
    assert ids(store) == [1, 2]


def test_a_frame_that_comes_again_waits_for_the_same_commit(store: Store) -> None:
    first = store.show(frame(1)).stored
    again = store.show(frame(1)).stored
    assert first
    assert again
    store.store_shown()
    assert (first.result(0), again.result(0), ids(store)) == (0, 0, [1])
    assert store.show(frame(1)).stored is None, "it is on disk"


def fail_once(store: Store) -> None:
    """Let the next transaction fail."""
    failures = iter([True])
    Failing(store, lambda: next(failures, False))


def test_what_cannot_be_stored_is_kept_and_stored_with_what_comes_later(store: Store) -> None:
    first = store.show(frame(1)).stored
    assert first
    fail_once(store)
    with pytest.raises(duckdb.OutOfMemoryException):
        store.store_shown()
    assert isinstance(first.exception(0), duckdb.OutOfMemoryException)
    again = store.show(frame(1)).stored
    later = store.show(frame(2, frame=1)).stored
    assert again
    assert later
    store.store_shown()
    assert (ids(store), again.result(0), later.result(0)) == ([1, 2], 0, 1)


def test_a_frame_that_the_store_applies_comes_after_all_that_was_shown_also_where_that_could_not_be_stored(
    tmp_path: Path,
) -> None:
    """Otherwise it would bring the marks of records that are not on disk, and remove rows that are not there yet."""
    path = tmp_path / "store.duckdb"
    operator = Operator()
    records = [user(1), user(2), Record("accounts", 0, 1, "a", 5)]
    parts = [part(list(operator.process(each)), marks_of([each]), frame=number) for number, each in enumerate(records)]
    first, second, matched = (Frame(each, each.streams) for each in parts)
    with closing(Store(path)) as store:
        store.begin("g", ALL)
        store.publish("g")
        store.show(first)
        fail_once(store)
        with pytest.raises(duckdb.OutOfMemoryException):
            store.store_shown()
        store.show(second)
        assert store.apply([matched]).outcomes == (2,), "each commit has a sequence of its own"
        assert store.stored_frame(matched.last) == matched.last.frame
    with closing(Store(path)) as store:
        for name, rows in expected(records).items():
            assert comparable(stored_rows(store, name)) == comparable(rows), name


def test_a_frame_shown_while_others_are_stored_is_in_the_commit_after(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = store.writer._commit_shown

    def commit_late(batches: Any) -> Any:
        store.show(frame(2, frame=1))
        return commit(batches)

    viewer = Looking()
    store.show_to(viewer)
    store.show(frame(1))
    with monkeypatch.context() as patched:
        patched.setattr(store.writer, "_commit_shown", commit_late)
        store.store_shown()
    assert ids(store) == [1]
    assert [each.sequence for each in viewer.shown_frames] == [0, 1]
    assert store.stored_frame(frame(1).last) == 0
    store.store_shown()
    assert ids(store) == [1, 2]


def test_a_frame_shown_right_after_a_commit_has_a_later_sequence(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    done = store.pending.done

    def done_and_shown() -> None:
        done()
        in_a_thread(lambda: store.show(frame(2, frame=1))).join(PATIENCE)

    viewer = Looking()
    store.show_to(viewer)
    store.show(frame(1))
    with monkeypatch.context() as patched:
        patched.setattr(store.pending, "done", done_and_shown)
        store.store_shown()
    wait_for(lambda: len(viewer.shown_frames) == 2)
    assert [each.sequence for each in viewer.shown_frames] == [0, 1]
    store.store_shown()
    assert viewer.stored_sequences == [0, 1]


def test_what_is_taken_to_be_stored_has_its_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame that is shown while storing begins is stored with its marks or not at all."""
    path = tmp_path / "store.duckdb"
    with closing(Store(path)) as store:
        store.begin("g", ALL)
        store.publish("g")
        store.show(frame(1))
        take = store.pending.take

        def take_late(*given_generations: Any) -> Any:
            in_a_thread(lambda: store.show(frame(2, frame=1))).join(PATIENCE)
            return take(*given_generations)

        with monkeypatch.context() as patched:
            patched.setattr(store.pending, "take", take_late)
            store.store_shown()
        stored = ids(store)
        assert store.stored_frame(frame(1).last) == len(stored) - 1
    with closing(Store(path)) as store:
        for again in (frame(1), frame(2, frame=1)):
            store.show(again)
        store.store_shown()
        assert ids(store) == [1, 2]
        assert store.reader.window("users_ui", EVERY_ROW)[1].ids == (0, 1)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = threading.Event()
    for _ in range(2_000):
        if condition():
            return
        deadline.wait(0.005)
    raise AssertionError("it did not come to be")


@pytest.mark.parametrize("act", [Store.show, lambda store, each: store.check_part(each.last)], ids=["show", "check"])
def test_an_older_pipeline_is_refused_while_others_are_stored(
    store: Store, monkeypatch: pytest.MonkeyPatch, act: Callable[[Store, Frame], object]
) -> None:
    """Whoever is refused waits for no one who waits for them."""
    store.fencing.start_pipeline()
    store.show(frame(1, run=RUNS_PER_PIPELINE))
    commit = store.writer._commit_shown
    refused: list[Exception] = []

    def refuse() -> None:
        try:
            act(store, frame(1, run=1, writer=1))
        except FrameError as error:
            refused.append(error)

    threads: list[threading.Thread] = []

    def commit_meanwhile(batches: Any) -> Any:
        threads.append(in_a_thread(refuse))
        threads[0].join(PATIENCE)
        return commit(batches)

    monkeypatch.setattr(store.writer, "_commit_shown", commit_meanwhile)
    storing = in_a_thread(store.store_shown)
    storing.join(10)
    assert not storing.is_alive(), "they wait for each other"
    threads[0].join(10)
    assert [error.code for error in refused if isinstance(error, FrameError)] == ["fenced"]
    assert ids(store) == [1]


def test_a_batch_and_a_frame_at_the_same_time_have_numbers_and_sequences_of_their_own(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = store.batches._commit
    threads: list[threading.Thread] = []

    def commit_meanwhile(*given_arguments: Any) -> Any:
        threads.append(in_a_thread(lambda: show_or_apply(store, frame(2))))
        threads[0].join(PATIENCE)
        return commit(*given_arguments)

    monkeypatch.setattr(store.batches, "_commit", commit_meanwhile)
    rows = pa.Table.from_pylist([user(50).row], USERS.schema)
    store.put(Batch("g", 0, (TableChanges("users_ui", rows, USERS.key_schema.empty_table()),)))
    threads[0].join(10)
    store.store_shown()
    assert sorted(ids(store)) == [2, 50]
    assert store.reader.window("users_ui", EVERY_ROW)[1].ids == (0, 1)
    assert store.generations()["g"].sequence == 1
    changes = store.changes.since("users_ui", Place("g", -1), 0, lambda: False)
    assert changes is not None
    assert sorted(changes["_id"].to_pylist()) == [2, 50]


def show_or_apply(store: Store, each: Frame) -> Outcome | None:
    try:
        return store.show(each)
    except StoreFirstError:
        (outcome,) = store.apply([each]).outcomes
        assert isinstance(outcome, int), outcome
        return None


def test_a_frame_shown_while_another_is_applied_by_the_store_is_kept(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes between what was stored before that one, and that one."""
    store_shown = store.writer.store_shown
    threads: list[threading.Thread] = []

    def store_and_more() -> None:
        store_shown()
        if not threads:
            threads.append(in_a_thread(lambda: show_or_apply(store, frame(2, writer=1))))
            threads[0].join(PATIENCE)

    monkeypatch.setattr(store.writer, "store_shown", store_and_more)
    (outcome,) = store.apply([frame(1)]).outcomes
    assert isinstance(outcome, int)
    threads[0].join(10)
    store.store_shown()
    assert sorted(ids(store)) == [1, 2]
    assert store.generations()["g"].sequence == 1
    assert store.reader.window("users_ui", EVERY_ROW)[1].ids == (0, 1)


def test_a_generation_that_cannot_be_dropped_keeps_what_was_shown(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.show(frame(1))

    def fail(*_: object) -> None:
        raise duckdb.IOException("disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(store.database, "transaction", fail)
        with pytest.raises(duckdb.IOException):
            store.drop("g")
    store.store_shown()
    assert ids(store) == [1]


def test_dropping_a_generation_answers_those_who_wait_for_it(store: Store) -> None:
    waiting = store.show(frame(1)).stored
    assert waiting
    store.drop("g")
    assert isinstance(waiting.exception(0), StoreFirstError)
    assert not has_pending(store)
    store.store_shown()


def test_nothing_of_a_dropped_generation_counts_as_stored(store: Store) -> None:
    store.show(frame(1))
    store.store_shown()
    assert store.stored_frame(frame(1).last) == 0
    store.drop("g")
    assert store.stored_frame(frame(1).last) == -1


def test_a_durable_frame_is_on_disk_also_if_it_brings_nothing(store: Store) -> None:
    """A batch that Spark runs again after its end: FrameWriter takes it for ended only when that is on disk."""
    for attempt in ("a", "b"):
        sent = frame(1, attempt=attempt, end=True)
        outcome = store.show(sent)
        store.store_shown()
        assert outcome.stored
        assert store.stored_frame(sent.last) == 0
    nothing = frame(1, attempt="c", durable=False)
    assert store.show(nothing).stored is None, "nobody waits for a commit that changes nothing"
    assert ids(store) == [1]


def test_rows_that_are_known_without_asking_the_store_are_bounded_by_their_bytes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent, "BYTES_MAX", 4 * 50_000)  # two large rows in each of the views that change rows
    lookup, asked = store.pending._lookup, list[int]()

    def noted(generation: Generation, shape: TableShape, column: str, ids: Sequence[int]) -> pa.Table:
        asked.extend(ids)
        return lookup(generation, shape, column, ids)

    monkeypatch.setattr(store.pending, "_lookup", noted)
    keys = [str(number) * 25_000 for number in range(8)]
    operator = Operator()
    records = [user(number, key) for number, key in enumerate(keys)]
    records += [Record("accounts", 0, number, key, 9) for number, key in enumerate(keys)]
    for number, record in enumerate(records):
        sent = part(list(operator.process(record)), marks_of([record]), frame=number)
        store.show(Frame(sent, sent.streams))
        store.store_shown()
    assert set(asked) == {user(number).id for number in range(8)}, "the old ones are not remembered"
    for name, rows in expected(records).items():
        assert comparable(stored_rows(store, name)) == comparable(rows), name


def test_a_row_that_is_gone_is_not_looked_for_in_the_store_before_that_has_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although it is forgotten that it was there, to save memory."""
    monkeypatch.setattr(recent, "ROWS_MAX", 0)
    viewer = Looking()
    store.show_to(viewer)
    account = Record("accounts", 0, 1, "a", 5)
    operator = Operator()
    alone, matched = (
        part(operator.process(each), marks_of([each]), frame=number) for number, each in enumerate((user(1), account))
    )
    store.show(Frame(alone, alone.streams))
    store.store_shown()
    store.show(frame(7, writer=1))
    commit = store.writer._commit_shown

    def commit_meanwhile(batches: Any) -> Any:
        store.show(Frame(matched, matched.streams))
        return commit(batches)

    with monkeypatch.context() as patched:
        patched.setattr(store.writer, "_commit_shown", commit_meanwhile)
        store.store_shown()
    removed = part([("left_ui", "removed", {"_left_id": user(1).id})], frame=2)
    viewer.shown_frames.clear()
    show_or_apply(store, Frame(removed, removed.streams))
    assert [each.deltas for each in viewer.shown_frames if each.deltas] == [], "the row goes a second time"
