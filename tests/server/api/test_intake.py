"""Frames over HTTP: staged and whole ones, sent again, fenced, refused, and what is left after a restart."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from livetables.model.change import Batch, TableChanges
from livetables.model.errors import RequestError
from livetables.model.wire import RUNS_PER_PIPELINE, ChangesHeader, FramePart, FrameStream, Place
from livetables.server.api import gate, intake
from livetables.server.api.http import create_app
from livetables.server.api.services import Services
from livetables.server.storage import merge, staging
from livetables.server.storage.frames import FrameError
from livetables.server.storage.generation import Frame
from livetables.server.storage.listeners import Changed
from livetables.server.storage.pending import Outcome, PendingBatch, ShownChanges
from livetables.server.storage.store import Store
from livetables.server.storage.writer import Applied
from livetables.server.viewports.viewport import Selection, ViewOptions
from tests.server.api.test_http import KEY, Answer, Client, services_of
from tests.support.frames import (
    EPOCH,
    SHAPES,
    USERS,
    Operator,
    Record,
    encode_part,
    marks_of,
    part,
    streams,
)
from tests.support.kafka import wait_until

FRAMES = "/api/frames"
PATIENCE = 0.3  # for a thread that may have to wait until the one that looks at it goes on
LETTER = {"source": "users_ui", "_id": 4, "ts": EPOCH, "raw": b"\xff\xfe"}


@dataclass
class Served:
    """A server's HTTP endpoint and its store, with a generation that has been begun and published."""

    services: Services
    client: Client

    @property
    def store(self) -> Store:
        return self.services.store

    def send(self, sent: FramePart, client: Client | None = None) -> Answer:
        return (client or self.client).request("POST", FRAMES, body=encode_part(sent))

    def ids(self, table: str = "users_ui") -> list[int]:
        return [row["_id"] for row in rows(self.store, table)]

    def metric(self, name: str, **labels: str) -> float | None:
        return self.services.metrics._registry.get_sample_value(name, labels)


def rows(store: Store, table: str) -> list[dict[str, Any]]:
    with store.reader.scan(table, Selection()) as reader:
        found: list[dict[str, Any]] = reader.read_all().to_pylist()
        return found


def user(number: int, partition: int = 0) -> Record:
    return Record("users", partition, number, "a", number)


def frame(*numbers: int, **fields: Any) -> FramePart:
    """Users with these offsets."""
    records = [user(number) for number in numbers]
    return part([each for record in records for each in Operator().process(record)], marks_of(records), **fields)


def progress(answer: Answer) -> tuple[bool, int, int]:
    """Whether a frame was applied, the last commit, and the last frame of the attempt that is on disk."""
    body = answer.json()
    assert body.keys() == {"applied", "sequence", "stored"}
    return body["applied"], body["sequence"], body["stored"]


def outcome(answer: Answer) -> tuple[int, str]:
    """An answer's status, and the code of its problem."""
    body = answer.json()
    if answer.status_code == 200:
        return 200, ""
    assert body.keys() == {"code", "problem", "cure"}
    return answer.status_code, body["code"]


@pytest.fixture
def served() -> Iterator[Served]:
    with closing(Store(None)) as store:
        services = services_of(store)
        store.begin("g", SHAPES)
        store.publish("g")
        yield Served(services, Client(create_app(services), KEY))
        services.intake.close()


def test_a_frame_is_applied_and_answered_with_its_commit(served: Served) -> None:
    assert progress(served.send(frame(1, 2))) == (True, 0, 0)
    assert progress(served.send(frame(3, frame=1))) == (True, 1, 1)
    assert served.ids() == [1, 2, 3]
    assert served.store.reader.window("users_ui", ViewOptions())[1].ids == (0, 1, 2)
    assert served.store.table("users_ui").newest == user(3).ts
    assert served.metric("livetables_frames_received_total") == 2
    assert served.metric("livetables_frame_seconds_count") == 2
    assert served.metric("livetables_records_total", table="users_ui") == 3
    assert served.metric("livetables_rows_total", table="left_ui", change="upsert") == 3
    assert served.services.pulse.status().pipeline_seen


def test_the_time_to_leave_spark_is_measured_by_when_a_frame_was_sent(served: Served) -> None:
    sent_ms = round((user(1).ts + timedelta(milliseconds=250)).timestamp() * 1000)
    served.send(frame(1, sent_ms=sent_ms))
    assert served.metric("livetables_spark_seconds_sum", table="users_ui") == pytest.approx(0.25, abs=0.001)
    assert served.metric("livetables_spark_seconds_count", table="users_ui") == 1
    arrival = served.metric("livetables_arrival_seconds_sum", table="users_ui")
    latency = served.metric("livetables_latency_seconds_sum", table="users_ui")
    assert arrival is not None
    assert latency is not None
    assert 0.25 < arrival <= latency


def test_a_body_may_come_in_pieces(served: Served) -> None:
    body = encode_part(frame(1))
    answer = served.client.request("POST", FRAMES, body=[body[:10], body[10:200], body[200:]])
    assert (answer.status_code, served.ids()) == (200, [1])


def test_parts_are_seen_when_the_last_one_is_there(served: Served) -> None:
    assert progress(served.send(frame(9, part=0, commit=False))) == (False, -1, -1)
    assert progress(served.send(frame(3, part=1, commit=False))) == (False, -1, -1)
    assert served.ids() == []
    assert progress(served.send(frame(5, 10, part=2))) == (True, 0, 0)
    assert sorted(served.ids()) == [3, 5, 9, 10]
    assert (served.store.staging.frames, served.store.staging.memory_bytes) == (0, 0)


def test_a_batch_is_refused_where_one_before_it_is_missing(served: Served) -> None:
    assert outcome(served.send(frame(1, epoch=0, end=True))) == (200, "")
    assert outcome(served.send(frame(2, attempt="b", epoch=1))) == (200, "")
    assert outcome(served.send(frame(3, attempt="c", epoch=2))) == (409, "refused"), "batch 1 has not ended"
    assert outcome(served.send(frame(frame=1, attempt="b", epoch=1, end=True))) == (200, "")
    assert outcome(served.send(frame(3, attempt="c", epoch=2))) == (200, "")
    assert served.ids() == [1, 2, 3]


def test_a_batch_may_come_again_after_it_has_ended(served: Served) -> None:
    for attempt in ("a", "b"):
        assert outcome(served.send(frame(1, attempt=attempt, epoch=0, end=True))) == (200, "")
    assert served.ids() == [1]


def test_a_restart_of_the_store_keeps_which_batches_have_ended(tmp_path: Path) -> None:
    for epoch in range(2):
        with closing(Store(tmp_path / "store.duckdb")) as store:
            store.begin("g", SHAPES)
            sent = frame(epoch, attempt=str(epoch), epoch=epoch, end=True)
            (sequence,) = store.apply([Frame(sent, sent.streams)]).outcomes
            assert sequence == epoch
            late = frame(9, attempt="late", epoch=epoch + 2)
            (refused,) = store.apply([Frame(late, late.streams)]).outcomes
            assert isinstance(refused, FrameError)


@pytest.mark.parametrize("memory_bytes_max", [0, 5_000, 1_000_000])
def test_parts_beyond_the_memory_go_to_files_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory_bytes_max: int
) -> None:
    monkeypatch.setattr(staging, "MEMORY_BYTES_MAX", memory_bytes_max)
    with closing(Store(tmp_path / "store.duckdb")) as store:
        services = services_of(store)
        store.begin("g", SHAPES)
        store.publish("g")
        served = Served(services, Client(create_app(services), KEY))
        for number in range(5):
            served.send(frame(number, part=number, commit=False))
        assert store.staging.memory_bytes <= memory_bytes_max
        assert {path.name for path in tmp_path.iterdir()} <= {"store.duckdb", "store.duckdb.wal"}
        assert served.send(frame(5, part=5)).status_code == 200
        assert served.ids() == list(range(6))
        services.intake.close()


def test_what_is_sent_again_changes_nothing(served: Served) -> None:
    for sent in (frame(1, commit=False), frame(2, part=1, commit=False), frame(3, part=2)):
        first = served.send(sent)
        assert first.status_code == 200
        assert served.send(sent).json() == first.json()
    assert served.ids() == [1, 2, 3]
    assert served.store.generations()["g"].sequence == 0


def test_a_replay_is_known_by_its_marks(served: Served) -> None:
    served.send(frame(1, 2))
    assert progress(served.send(frame(1, 2, attempt="b", durable=False))) == (True, 0, -1), "nothing of it is new"
    assert progress(served.send(frame(2, 3, attempt="b", frame=1))) == (True, 1, 1)
    assert served.ids() == [1, 2, 3]
    assert served.metric("livetables_records_total", table="users_ui") == 3


@pytest.mark.parametrize(
    "sent",
    [
        frame(1, part=1),
        frame(1, part=1, commit=False),
        frame(1, part=2, attempt="b"),
        frame(1, part=2, frame=1),
        frame(1, part=3),
    ],
)
def test_a_part_without_those_before_it_is_refused(served: Served, sent: FramePart) -> None:
    if sent.part != 1:
        for number in range(2):
            served.send(frame(5 + number, part=number, commit=False))
    assert outcome(served.send(sent)) == (409, "missing_parts")
    assert served.ids() == []


def test_another_frame_throws_an_unfinished_one_away(served: Served) -> None:
    served.send(frame(1, commit=False))
    served.send(frame(2, attempt="b"))
    assert outcome(served.send(frame(3, part=1))) == (409, "missing_parts")
    served.send(frame(4, commit=False, attempt="c", writer=1))
    served.send(frame(5, attempt="b", frame=1))
    assert served.send(frame(6, part=1, attempt="c", writer=1)).status_code == 200
    assert served.ids() == [2, 5, 4, 6]


def test_dropping_a_generation_throws_away_what_is_staged(served: Served) -> None:
    served.send(frame(1, commit=False))
    served.store.drop("g")
    assert (served.store.staging.frames, served.store.staging.memory_bytes) == (0, 0)
    assert outcome(served.send(frame(2, part=1))) == (409, "unknown_generation")


def test_an_older_run_is_fenced(served: Served) -> None:
    assert served.send(frame(1, run=2)).status_code == 200
    for sent in (frame(2, run=1, attempt="b"), frame(2, run=1, attempt="b", commit=False)):
        assert outcome(served.send(sent)) == (409, "fenced")
    assert served.send(frame(2, run=3, commit=False)).status_code == 200
    assert outcome(served.send(frame(2, run=2, attempt="c"))) == (409, "fenced")
    assert served.ids() == [1]


def test_an_older_pipeline_is_fenced_and_so_is_one_that_the_server_did_not_start(served: Served) -> None:
    assert [served.store.fencing.start_pipeline() for _ in range(2)] == [1, 2]
    assert outcome(served.send(frame(1, run=RUNS_PER_PIPELINE + 7))) == (409, "fenced")
    assert served.send(frame(1, run=2 * RUNS_PER_PIPELINE)).status_code == 200
    assert outcome(served.send(frame(2, frame=1, run=5 * RUNS_PER_PIPELINE + 3))) == (409, "fenced")
    assert served.send(frame(2, frame=1, run=2 * RUNS_PER_PIPELINE)).status_code == 200
    assert served.store.fencing.start_pipeline() == 3
    with pytest.raises(FrameError, match="pipeline 2 asks, but this server belongs to pipeline 3"):
        served.store.fencing.check(2)


def test_a_store_that_was_lost_belongs_to_the_pipeline_that_still_runs(served: Served) -> None:
    assert served.send(frame(1, run=5 * RUNS_PER_PIPELINE + 3)).status_code == 200
    assert outcome(served.send(frame(2, frame=1, run=4 * RUNS_PER_PIPELINE))) == (409, "fenced")
    assert served.store.fencing.start_pipeline() == 6


def test_an_unknown_generation_and_other_columns_are_refused(served: Served) -> None:
    assert outcome(served.send(frame(1, generation="h"))) == (409, "unknown_generation")
    bad = replace(frame(1), streams=(FrameStream.of("users_ui", "rows", pa.table({"_id": [1]})),))
    assert outcome(served.send(bad)) == (409, "refused")
    assert served.ids() == []


def test_the_key_and_the_method_are_looked_at(served: Served) -> None:
    stranger = Client(served.client.app, {"Authorization": "Bearer wrong"})
    assert outcome(served.send(frame(1), stranger)) == (401, "unauthorized")
    assert outcome(served.client.get(FRAMES)) == (405, "method_not_allowed")
    assert served.ids() == []


GOOD = encode_part(frame(1))
UNREADABLE = {
    "nothing": b"",
    "text": b"hello, is this the server?",
    "cut off": GOOD[:-100],
    "no header": GOOD[:70],
    "a field missing": GOOD.replace(b'"writer"', b'"wrighter"'),
    "a field of another type": GOOD.replace(b'"run": 1', b'"run": 1.5'),
    "no kind": GOOD.replace(b'"kind": "rows"', b'"kind": "cows"'),
    "no partition": GOOD.replace(b'{"0": 1}', b'{"-": 1}'),
    "a huge partition": GOOD.replace(b'{"0": 1}', b'{"999999999999": 1}'),
    "an offset below zero": GOOD.replace(b'{"0": 1}', b'{"0": -1}'),
}


@pytest.mark.parametrize("body", UNREADABLE.values(), ids=UNREADABLE)
def test_what_is_no_frame_is_refused(served: Served, body: bytes) -> None:
    assert outcome(served.client.request("POST", FRAMES, body=body)) in ((400, "bad_frame"), (409, "refused"))
    assert served.ids() == []


def test_a_part_may_be_large_but_not_too_large(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    assert served.send(frame(*range(2_000))).status_code == 200  # more than other bodies may have
    monkeypatch.setattr(gate, "MAX_PART_BYTES", 1_000)
    assert outcome(served.send(frame(1))) == (413, "limit")
    body = encode_part(frame(1))
    assert outcome(served.client.request("POST", FRAMES, body=[body[:600], body[600:]])) == (413, "limit")


def test_when_too_much_waits_a_writer_is_to_try_again(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "WAITING_BYTES_MAX", 1_000)
    with served.store.database.writing:
        first = served.services.intake.take(encode_part(frame(1)))
        assert outcome(served.send(frame(1, writer=1))) == (503, "unavailable")
    assert first.result(10).applied
    assert served.send(frame(2, frame=1)).status_code == 200


@pytest.mark.parametrize("error", [duckdb.OutOfMemoryException("none left"), duckdb.IOException("disk is full")])
def test_a_shortage_is_to_be_tried_again(served: Served, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(served.store.writer, "_commit_shown", fail)
        assert outcome(served.send(frame(1))) == (503, "unavailable")
    assert progress(served.send(frame(1))) == (True, 0, 0)
    assert served.ids() == [1]


class Looking:
    """A viewer that keeps what it is shown."""

    def __init__(self, store: Store) -> None:
        self.frames: list[ShownChanges] = []
        store.show_to(self)

    def show(self, shown: ShownChanges) -> None:
        self.frames.append(shown)

    def stored(self, generation: str, sequence: int) -> None:
        """Nothing to do: it keeps all."""


def bytes_waiting(served: Served) -> int:
    with served.services.intake._news:
        return served.services.intake._bytes


def test_a_frame_that_need_not_be_durable_is_answered_before_it_is_stored(served: Served) -> None:
    viewer = Looking(served.store)
    with served.store.database.writing:  # nothing can be stored
        assert progress(served.send(frame(1, durable=False))) == (True, -1, -1)
        assert progress(served.send(frame(2, frame=1, durable=False))) == (True, -1, -1)
        assert [len(each.deltas["users_ui"].new) for each in viewer.frames] == [1, 1]
        assert served.ids() == []
        assert bytes_waiting(served) > 0
    assert progress(served.send(frame(3, frame=2)))[2] == 2, "with all before it"
    assert served.ids() == [1, 2, 3]
    wait_until(lambda: bytes_waiting(served) == 0, "room for others", 10)


def test_what_was_shown_is_stored_without_being_asked_for(served: Served) -> None:
    served.send(frame(1, durable=False))
    wait_until(lambda: served.ids() == [1], "row in the store", 10)


def test_frames_say_when_their_records_were_where(served: Served) -> None:
    viewer = Looking(served.store)
    served.send(frame(1, kafka_ms=1_000, sent_ms=2_000))
    served.send(frame(2, frame=1))
    first, second = (each.times for each in viewer.frames)
    assert first
    assert (first.kafka, first.spark) == (1_000, 2_000)
    assert first.applied > 1_700_000_000_000
    assert second is None, "it has no record of Kafka's"


def test_while_the_store_cannot_be_written_what_was_shown_is_kept_and_bounded(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "RETRY_SECONDS", 0.01)
    viewer = Looking(served.store)
    tried: list[int] = []

    def fail(batches: Sequence[object]) -> None:
        tried.append(len(batches))
        raise duckdb.IOException("disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(served.store.writer, "_commit_shown", fail)
        assert progress(served.send(frame(1, durable=False))) == (True, -1, -1)
        assert outcome(served.send(frame(2, frame=1))) == (503, "unavailable")
        wait_until(lambda: len(tried) > 3, "tries", 10)
        assert bytes_waiting(served) > 0, "what is not on disk takes its room"
        patched.setattr(intake, "WAITING_BYTES_MAX", bytes_waiting(served))
        assert outcome(served.send(frame(3, frame=2, durable=False))) == (503, "unavailable")
        assert len(viewer.frames) == 2, "viewers have seen what writers will send again"
    assert progress(served.send(frame(2, frame=1)))[2] == 1
    assert served.ids() == [1, 2]
    wait_until(lambda: bytes_waiting(served) == 0, "room for others", 10)


def test_what_was_shown_while_others_could_not_be_stored_is_stored_without_being_asked_for(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "RETRY_SECONDS", 0.01)
    commit = served.store.writer._commit_shown
    meanwhile: list[Future[intake.Taken]] = []

    def fail_once(batches: Sequence[PendingBatch]) -> list[list[TableChanges]]:
        if meanwhile:
            return commit(batches)
        meanwhile.append(served.services.intake.take(encode_part(frame(2, writer=1, durable=False))))
        assert meanwhile[0].result(10).applied
        raise duckdb.OutOfMemoryException("no memory left")

    monkeypatch.setattr(served.store.writer, "_commit_shown", fail_once)
    served.send(frame(1, durable=False))
    wait_until(lambda: served.ids() == [1, 2], "both rows in the store", 10)
    wait_until(lambda: bytes_waiting(served) == 0, "room for others", 10)


def test_stopping_stores_all_that_was_shown(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a frame that is being shown when the stop comes."""
    show = served.store.show
    showing, may_go_on = Event(), Event()

    def show_late(each: Frame) -> Outcome:
        showing.set()
        assert may_go_on.wait(10)
        return show(each)

    monkeypatch.setattr(intake, "STORE_SECONDS", 1_000)
    assert progress(served.send(frame(1, durable=False))) == (True, -1, -1)
    monkeypatch.setattr(served.store, "show", show_late)
    last = served.services.intake.take(encode_part(frame(2, frame=1)))
    assert showing.wait(10)
    closing_it = Thread(target=served.services.intake.close)
    closing_it.start()
    wait_until(lambda: served.services.intake._is_closed, "stop", 10)
    with pytest.raises(RequestError, match="is stopping"):
        served.services.intake.take(encode_part(frame(3, frame=2)))
    may_go_on.set()
    assert last.result(10).stored == 1
    closing_it.join(10)
    assert not closing_it.is_alive()
    assert served.ids() == [1, 2]


def test_a_generation_that_is_dropped_while_its_frame_is_shown_is_unknown(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    show = served.store.show

    def show_and_drop(each: Frame) -> Outcome:
        shown = show(each)
        served.store.drop("g")
        return shown

    monkeypatch.setattr(served.store, "show", show_and_drop)
    assert outcome(served.send(frame(1, durable=False))) == (409, "unknown_generation")
    served.services.intake.close()  # when its threads have ended, all is counted
    assert bytes_waiting(served) == 0


def test_dead_letters_and_unknown_fields_are_counted_once(served: Served) -> None:
    sent = part(
        [
            ("dead_letters", "rows", LETTER),
            ("users_ui", "rows", user(5).row),
            *(("users_ui", "unknown", {"_id": 5, "field": field}) for field in ("odd", "even")),
        ],
        {"users": {"k": {0: 5}}},
    )
    assert served.send(sent).status_code == 200
    assert served.send(replace(sent, attempt="b")).status_code == 200
    assert served.store.unknown_fields == {("users", "odd"): 1, ("users", "even"): 1}
    (letter,) = rows(served.store, "dead_letters")
    assert (letter["reason"], letter["raw"]) == ("the value is not UTF-8: byte 0 is 0xff", "\\xff\\xfe")
    assert served.metric("livetables_dead_letters_total", table="users_ui") == 1
    assert served.metric("livetables_records_total", table="users_ui") == 2


# Together


def shown_of(served: Served) -> int:
    """How many frames are shown and wait to be stored."""
    with served.store.pending.lock:
        batch = served.store.pending._open.get("g")
        return len(batch.waiting) if batch else 0


def waiting_together(served: Served, *sent: FramePart) -> list[Future[intake.Taken]]:
    """Send frames while another cannot be stored."""
    with served.store.database.writing:
        first = served.services.intake.take(encode_part(frame(1_000, writer=9)))
        answers = [served.services.intake.take(encode_part(each)) for each in sent]
        wait_until(lambda: shown_of(served) == 1 + len(sent), "all are shown", 10)
    assert first.result(10).applied
    return answers


def test_frames_that_wait_together_are_one_commit(served: Served) -> None:
    heard: list[Changed] = []
    served.store.listen(heard.append)
    answers = waiting_together(served, frame(1), frame(2, writer=1), frame(3, writer=2))
    assert [answer.result(10).sequence for answer in answers] == [0, 0, 0]
    assert served.ids() == [1_000, 1, 2, 3]
    assert len(heard) == 1


def test_frames_of_one_writer_are_applied_in_order(served: Served) -> None:
    account = Record("accounts", 0, 1, "a", 5)
    operator = Operator()
    first, second = (part(operator.process(each), marks_of([each])) for each in (user(1), account))
    answers = waiting_together(served, first, replace(second, frame=1), frame(2, writer=1))
    assert [answer.result(10).sequence for answer in answers] == [0, 0, 0]
    assert [(row["_left_id"], row["_right_id"]) for row in rows(served.store, "left_ui") if row["_left_id"] == 1] == [
        (1, 1)
    ]


def broken_text(**fields: Any) -> FramePart:
    """A row whose text is no UTF-8: only DuckDB finds it."""
    columns = [
        pa.array([b"\xff\xfe"], pa.binary()).view(pa.string()) if each.name == "k" else pa.array([7], each.type)
        for each in USERS.schema
    ]
    table = pa.Table.from_arrays(columns, schema=USERS.schema)
    return replace(part(**fields), streams=(FrameStream.of("users_ui", "rows", table),))


BAD: dict[str, Callable[[], FramePart]] = {
    "columns": lambda: replace(frame(7, writer=1), streams=(FrameStream.of("users_ui", "rows", pa.table({"x": [1]})),)),
    "generation": lambda: frame(7, writer=1, generation="nowhere"),
    "text": lambda: broken_text(writer=1),
}


@pytest.mark.parametrize("make", BAD.values(), ids=BAD)
def test_a_bad_frame_leaves_those_beside_it_be(served: Served, make: Callable[[], FramePart]) -> None:
    frames = [Frame(each, each.streams) for each in (frame(1), make(), frame(2, writer=2))]
    first, bad, last = served.store.apply(frames).outcomes
    assert isinstance(bad, Exception)
    assert (isinstance(first, int), isinstance(last, int)) == (True, True)
    assert served.ids() == [1, 2]
    assert served.store.generations()["g"].writers.keys() == {0, 2}
    assert served.store.table("users_ui").next_row == 2
    assert served.send(frame(7, writer=1)).status_code == 200


@pytest.fixture(params=[0, merge.FEW])
def _few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are looked for one by one, or by one scan for all."""
    monkeypatch.setattr(merge, "FEW", request.param)


@pytest.mark.usefixtures("_few")
def test_followers_get_what_frames_changed(served: Served) -> None:
    operator = Operator()
    records = [user(1), Record("accounts", 0, 1, "a", 0), Record("accounts", 0, 2, "a", 9)]
    places = []
    for number, record in enumerate(records):
        places.append(Place("g", served.store.generations()["g"].sequence))
        served.send(part(operator.process(record), marks_of([record]), frame=number))
    for table in ("left_ui", "natural_ui", "asof_ui"):
        changes = served.store.changes.since(table, places[1], 0, lambda: False)
        assert changes is not None
        assert ChangesHeader.of(changes.schema).place.sequence == 2
    left = served.store.changes.since("left_ui", places[1], 0, lambda: False)
    assert left is not None
    assert [(row["_left_id"], row["_right_id"], row["_deleted"]) for row in left.to_pylist()] == [
        (1, None, True),
        (1, 1, False),
        (1, 2, False),
    ]
    with served.store.changes.whole("left_ui") as reader:
        assert ChangesHeader.of(reader.schema).place.sequence == 2


@pytest.mark.usefixtures("_few")
def test_an_older_match_is_not_sent_to_followers(served: Served) -> None:
    operator = Operator()
    records = [user(1), user(2), Record("accounts", 0, 2, "a", 9)]
    for number, record in enumerate(records):
        served.send(part(operator.process(record), marks_of([record]), frame=number))
    late = Record("accounts", 1, 1, "a", 20)
    newer = {**rows(served.store, "natural_ui")[0], "_right_id": late.id, "accounts_ts": late.ts}
    older = {**rows(served.store, "natural_ui")[1], "accounts_ts": EPOCH}
    place = Place("g", served.store.generations()["g"].sequence)
    sent = part([("natural_ui", "rows", newer), ("natural_ui", "rows", older)], marks_of([late]), frame=3)
    assert served.send(sent).status_code == 200
    changes = served.store.changes.since("natural_ui", place, 0, lambda: False)
    assert changes is not None
    assert [(row["_left_id"], row["_right_id"]) for row in changes.to_pylist()] == [(1, late.id)]
    assert served.store.reader.window("natural_ui", ViewOptions())[1].ids == (0, 1)


# After a restart


def test_a_restart_keeps_marks_sequence_run_and_number(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"

    def apply(store: Store, sent: FramePart) -> int | Exception:
        return store.apply([Frame(sent, sent.streams)]).outcomes[0]

    with closing(Store(path)) as store:
        store.fencing.start_pipeline()
        store.begin("g", SHAPES)
        store.publish("g")
        run = RUNS_PER_PIPELINE + 4
        assert apply(store, frame(1, 2, run=run)) == 0
        assert apply(store, frame(3, part=2, frame=1, run=run)) == 1
        before = store.generations()
    with closing(Store(path)) as store:
        assert store.generations() == before
        assert store.generations()["g"].positions == {"users": {0: 4}, "accounts": {}}
        assert store.generations()["g"].records == {"users_ui": 3}
        assert store.check_part(frame(3, part=2, frame=1, run=run)), "it was applied before"
        assert isinstance(apply(store, frame(9, run=run - 1)), FrameError)
        assert apply(store, frame(2, 3, 4, attempt="b", run=run + 1)) == 2
        assert [row["_id"] for row in rows(store, "users_ui")] == [1, 2, 3, 4]
        assert store.generations()["g"].records == {"users_ui": 4}, "a record that comes again is counted once"
        assert store.reader.window("users_ui", ViewOptions())[1].ids == (0, 1, 2, 3)
        assert store.fencing.start_pipeline() == 2


def test_batches_and_frames_share_the_sequence(served: Served) -> None:
    rest = pa.Table.from_pylist([user(50).row], USERS.schema)
    served.send(frame(1))
    assert served.store.put(Batch("g", 0, (TableChanges("users_ui", rest, USERS.key_schema.empty_table()),)))
    served.send(frame(2, frame=1))
    generation = served.store.generations()["g"]
    assert (generation.sequence, generation.last_batch_id) == (2, 0)
    assert served.store.reader.window("users_ui", ViewOptions())[1].ids == (0, 1, 2)


def test_a_stream_of_nothing_is_nothing(served: Served) -> None:
    empty = replace(frame(durable=False), streams=streams([]), marks={"users": {"k": {}}})
    assert progress(served.send(empty)) == (True, -1, -1)


def test_a_batch_that_comes_again_is_on_disk_when_its_end_is_answered(served: Served) -> None:
    """Or FrameWriter takes the server for a liar, and the query never gets past this batch."""
    for attempt in ("a", "b"):
        served.send(frame(1, attempt=attempt, durable=False))
        applied, _, stored = progress(served.send(frame(attempt=attempt, frame=1, end=True)))
        assert (applied, stored) == (True, 1)
    assert served.ids() == [1]


def test_a_large_frame_holds_up_its_own_generation_and_no_other(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = [replace(shape, name=f"other_{shape.name}", aliases=()) for shape in (USERS,)]
    served.store.begin("h", other)
    served.store.publish("h")
    apply, may_go_on, is_reached = served.store.apply, threading.Event(), threading.Event()

    def wait_and_apply(frames: Sequence[Frame]) -> Applied:
        is_reached.set()
        assert may_go_on.wait(10)
        return apply(frames)

    monkeypatch.setattr(served.store, "apply", wait_and_apply)
    take = served.services.intake.take
    take(encode_part(frame(1, part=0, commit=False))).result(10)
    large = take(encode_part(frame(2, part=1)))  # in parts: it is left to the store
    assert is_reached.wait(10)
    behind = take(encode_part(frame(3, writer=1)))
    rest = pa.Table.from_pylist([user(7).row], USERS.schema)
    of_another = replace(
        part([], marks_of([user(7)]), generation="h"), streams=(FrameStream.of("other_users_ui", "rows", rest),)
    )
    assert take(encode_part(of_another)).result(10).applied
    assert not behind.running()
    may_go_on.set()
    assert (large.result(10).applied, behind.result(10).applied) == (True, True)
    assert served.ids() == [1, 2, 3]


def test_a_frame_that_comes_as_a_large_one_ends_is_applied(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing comes between the look whether it has to wait, and that. The pause there is not to be had otherwise."""
    apply, may_go_on, has_ended = served.store.apply, Event(), Event()

    class Behind(dict[str, Any]):
        def __contains__(self, generation: object) -> bool:
            return self.get(generation) is not None

        def get(self, generation: Any, default: Any = None) -> Any:
            found = super().get(generation, default)
            if found is not None:
                may_go_on.set()
                has_ended.wait(PATIENCE)
            return found

        def pop(self, *given: Any) -> Any:
            ended = super().pop(*given)
            has_ended.set()
            return ended

    def wait_and_apply(frames: Sequence[Frame]) -> Applied:
        assert may_go_on.wait(10)
        return apply(frames)

    monkeypatch.setattr(served.services.intake, "_behind", Behind())
    monkeypatch.setattr(served.store, "apply", wait_and_apply)
    take = served.services.intake.take
    take(encode_part(frame(1, part=0, commit=False))).result(10)
    large = take(encode_part(frame(2, part=1)))
    behind = take(encode_part(frame(3, writer=1)))
    assert (large.result(10).applied, behind.result(10).applied) == (True, True)
    assert served.ids() == [1, 2, 3]
