"""The hub by itself: what viewports show, whom it notifies, and what it survives."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from livetables.model.change import Batch, TableChanges, TableShape
from livetables.model.errors import RequestError, SinkError
from livetables.model.wire import FramePart, FrameStream
from livetables.server.health.metrics import Metrics
from livetables.server.live import hub as hub_module
from livetables.server.live.hub import Hub, Viewport
from livetables.server.live.state import State
from livetables.server.storage import pending as pending_module
from livetables.server.storage import query
from livetables.server.storage import reader as reader_module
from livetables.server.storage.frames import FrameError
from livetables.server.storage.generation import Frame
from livetables.server.storage.pending import StoreFirstError
from livetables.server.storage.reader import Kept
from livetables.server.storage.store import Store
from livetables.server.viewports import window as window_module
from livetables.server.viewports.encoding import encoded_rows
from livetables.server.viewports.viewport import Filter, Patch, Sort, ViewOptions
from tests.server.storage.test_pending import NOTES, frame, random_history
from tests.support.checksum import checksum
from tests.support.frames import SHAPES, Story
from tests.support.tables import APPENDS, batch, numbered
from tests.support.windows import patched


async def until(condition: Callable[[], bool], what: str = "it came to be") -> None:
    try:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"waited in vain until {what}") from None


def test_a_subscriber_that_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    store = Store(None)
    store.begin("g1", [APPENDS])
    store.publish("g1")

    async def watch() -> list[int]:
        hub = Hub(store, Metrics())
        hub.start()
        seen: list[int] = []

        def bad() -> None:
            raise RuntimeError("this client is broken")

        def good() -> None:
            assert isinstance(viewport.state, State)
            seen.append(viewport.state.total)

        viewport = hub.subscribe("appends", ViewOptions(), bad)
        assert hub.subscribe("appends", ViewOptions(), good) is viewport
        for batch_id in range(3):
            await until(lambda batch_id=batch_id: seen == list(range(batch_id + 1)))  # type: ignore[misc]
            store.put(batch("g1", batch_id, {APPENDS: (numbered(batch_id, 1), [])}))
        await until(lambda: seen == [0, 1, 2, 3])
        await hub.stop()
        return seen

    assert asyncio.run(watch()) == [0, 1, 2, 3]
    assert "cannot notify a subscriber of appends" in caplog.text
    store.close()


def test_a_viewport_that_takes_long_is_logged_with_its_table(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "SLOW_SECONDS", -1.0)  # every one does
    store = Store(None)
    store.begin("g1", [APPENDS])
    store.publish("g1")

    async def look() -> None:
        hub = Hub(store, Metrics())
        hub.start()
        viewport = hub.subscribe("appends", ViewOptions(), lambda: None)
        await until(lambda: viewport.state is not None)
        await hub.stop()

    asyncio.run(look())
    assert "event=slow_viewport table=appends seconds=" in caplog.text
    store.close()


# Whatever happens to the tables


@dataclass
class Client:
    """Somebody who keeps a viewport's rows by the frames of its states, as a page does."""

    viewport: Viewport | None = None
    rows: list[tuple[int, tuple[Any, ...]]] = field(default_factory=list)
    total: int = -1
    sequence: int = 0
    generation: str = ""
    patches: int = 0
    problems: list[str] = field(default_factory=list)

    def look(self) -> None:
        """Take a new state. It must not raise: the hub survives that."""
        assert self.viewport
        state = self.viewport.state
        if isinstance(state, RequestError):
            self.sequence = 0
            return
        assert isinstance(state, State)
        whole = json.loads("{" + state.snapshot)
        expected = [(row_id, tuple(values)) for row_id, values in zip(whole["ids"], whole["rows"], strict=True)]
        if state.patch is not None and self.sequence + 1 == state.heading.sequence:
            given = json.loads("{" + state.patch)
            inserted = tuple((position, row_id, tuple(values)) for position, row_id, values in given["inserted"])
            change = Patch(tuple(given["removed"]), inserted, tuple(map(tuple, given["updated"])))
            self.rows, self.total = patched(self.rows, change), given["total"]
            self.patches += 1
            if (self.rows, self.total, self.generation) != (expected, state.total, state.heading.generation):
                self.problems.append(f"patch {state.heading.sequence} leads elsewhere")
        self.rows, self.total, self.sequence = expected, state.total, state.heading.sequence
        self.generation = state.heading.generation
        if state.checksum != checksum(whole["total"], whole["ids"], whole["rows"]):
            self.problems.append(f"the checksum of {state.heading.sequence} is another")


def is_as_stored(store: Store, client: Client) -> bool:
    """Whether a client has what the store would show it."""
    assert client.viewport
    try:
        table, window = store.reader.window(client.viewport.table, client.viewport.options)
    except RequestError as problem:
        return isinstance(client.viewport.state, RequestError) and client.viewport.state.code == problem.code
    rows = list(zip(window.ids, map(tuple, encoded_rows(window.rows)), strict=True))
    return (client.generation, client.total, repr(client.rows)) == (table.generation, window.total, repr(rows))


def random_view(chance: Random, shape: TableShape) -> ViewOptions:
    columns = shape.schema.names
    sorts = [
        Sort(column=each, descending=chance.random() < 0.5) for each in chance.sample(columns, chance.randrange(3))
    ]
    filters = [
        [],
        [],
        [Filter(column="k", op="contains", value="A")] if "k" in columns else [],
        [Filter(column="k", op="is_null")] if "k" in columns else [],
        [Filter(column=columns[0], op=">", value=2)],
    ]
    return ViewOptions(
        sort=sorts,
        filters=chance.choice(filters),
        quick=chance.choice(["", "", "b", "12:00", "1"]),
        columns=chance.choice([None, None, chance.sample(columns, 2)]),
        offset=chance.choice([0, 0, 1, 3, 7, 30]),
        size=chance.choice([0, 1, 2, 4, 300]),
    )


def show_or_apply(store: Store, each: Frame) -> None:
    try:
        store.show(each)
    except StoreFirstError:
        (outcome,) = store.apply([each]).outcomes
        if isinstance(outcome, Exception):
            raise outcome from None


def play(store: Store, generation: str, chance: Random) -> None:
    """Have a generation filled by a pipeline with crashes and replays, until it is dropped."""

    def deliver(last: FramePart, whole: tuple[FrameStream, ...]) -> None:
        show_or_apply(store, Frame(replace(last, generation=generation, kafka_ms=1), whole))

    with suppress(FrameError):
        Story(random_history(chance), 2, chance.randrange, deliver).play()


def store_all_the_time(store: Store, is_over: threading.Event) -> None:
    while not is_over.wait(0.003):
        store.store_shown()


def put_all_the_time(store: Store, generation: str, is_over: threading.Event) -> None:
    for batch_id in count():
        if is_over.wait(0.01) or generation not in store.generations():
            return
        rows = pa.Table.from_pylist([{"id": batch_id % 7, "text": str(batch_id)}], NOTES.schema)
        with suppress(SinkError):  # it was dropped meanwhile
            store.put(Batch(generation, batch_id, (TableChanges("notes", rows, NOTES.key_schema.empty_table()),)))


@pytest.mark.parametrize("seed", range(8))
def test_viewports_end_as_the_tables_are_whatever_happens(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Frames are shown, stored and applied, batches put, generations published and dropped, each on its own thread."""
    chance = Random(seed)
    monkeypatch.setattr(pending_module, "SHOWN_ROWS_MAX", chance.choice([4, 5_000]))
    if chance.random() < 0.7:
        for name, value in {"KEPT_FROM_THE_TOP": 2, "BESIDE_MIN": 1, "BESIDE_MAX": 3, "MANY": 2}.items():
            monkeypatch.setattr(window_module, name, value)

    async def watch(store: Store) -> None:
        hub = Hub(store, Metrics())
        hub.start()
        clients = []
        for _ in range(12):
            client = Client()
            shape = chance.choice([*SHAPES, NOTES])
            client.viewport = hub.subscribe(shape.name, random_view(chance, shape), client.look)
            clients.append(client)

        async def quiet(moment: str) -> None:
            await asyncio.to_thread(store.store_shown)
            for client in clients:
                assert client.viewport
                view = f"{client.viewport.table} {client.viewport.options!r}"
                await until(lambda client=client: is_as_stored(store, client), f"{moment}: {view}: {client}")  # type: ignore[misc]
                assert client.problems == []

        for generation in ("g0", "g1", "g2"):
            store.begin(generation, [*SHAPES, NOTES])
        store.publish("g0")
        is_over = threading.Event()
        others = [
            asyncio.create_task(asyncio.to_thread(store_all_the_time, store, is_over)),
            *(asyncio.create_task(asyncio.to_thread(put_all_the_time, store, each, is_over)) for each in ("g0", "g1")),
        ]
        first = asyncio.create_task(asyncio.to_thread(play, store, "g0", Random(seed + 100)))
        second = asyncio.create_task(asyncio.to_thread(play, store, "g1", Random(seed + 200)))
        await first
        await asyncio.to_thread(store.publish, "g1")
        third = asyncio.create_task(asyncio.to_thread(play, store, "g2", Random(seed + 300)))
        await asyncio.to_thread(store.drop, "g0")
        await second
        is_over.set()
        await asyncio.gather(*others)
        await quiet("the second generation is there")
        await asyncio.to_thread(store.publish, "g2")
        await third
        await quiet("the third generation is there")
        await asyncio.to_thread(store.drop, "g2")
        await quiet("there is none")
        await hub.stop()

    with closing(Store(None)) as store:
        asyncio.run(watch(store))


@pytest.mark.parametrize("seed", range(4))
def test_viewports_are_as_the_tables_are_after_every_frame(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chance = Random(seed)
    for name, value in {"KEPT_FROM_THE_TOP": 2, "BESIDE_MIN": 1, "BESIDE_MAX": 3, "MANY": 2}.items():
        monkeypatch.setattr(window_module, name, value)
    frames: list[Frame] = []
    Story(random_history(chance), 1, chance.randrange, lambda last, whole: frames.append(Frame(last, whole))).play()

    async def watch(store: Store) -> None:
        hub = Hub(store, Metrics())
        hub.start()
        store.begin("g", SHAPES)
        store.publish("g")
        clients = []
        for _ in range(10):
            client = Client()
            shape = chance.choice(SHAPES)
            client.viewport = hub.subscribe(shape.name, random_view(chance, shape), client.look)
            clients.append(client)
        for each in frames:
            with suppress(FrameError):  # of a run that was started before, which was crashed
                show_or_apply(store, each)
            await asyncio.sleep(0)
            store.store_shown()
            for client in clients:
                await until(lambda client=client: is_as_stored(store, client), f"{client}")  # type: ignore[misc]
                assert client.problems == []
        assert sum(client.patches for client in clients), "nothing was tried"
        await hub.stop()

    with closing(Store(None)) as store:
        asyncio.run(watch(store))


# One thing at a time


@pytest.fixture
def store() -> Iterator[Store]:
    with closing(Store(None)) as opened:
        opened.begin("g", [*SHAPES, NOTES])
        opened.publish("g")
        yield opened


def state_of(viewport: Viewport) -> State:
    assert isinstance(viewport.state, State), viewport.state
    return viewport.state


def evaluations(metrics: Metrics) -> float:
    value = metrics._registry.get_sample_value("livetables_viewport_evaluations_total")
    assert value is not None
    return value


def with_hub(store: Store, act: Callable[[Hub, Metrics], Any]) -> None:
    async def run() -> None:
        metrics = Metrics()
        hub = Hub(store, metrics)
        hub.start()
        await act(hub, metrics)
        await hub.stop()

    asyncio.run(run())


def test_frames_at_the_top_of_a_window_never_ask_the_store(store: Store) -> None:
    async def act(hub: Hub, metrics: Metrics) -> None:
        newest = ViewOptions(sort=[Sort(column="n", descending=True)], size=5)
        viewports = [hub.subscribe("users_ui", each, lambda: None) for each in (newest, ViewOptions(size=5))]
        await until(lambda: all(viewport.state for viewport in viewports))
        before = evaluations(metrics)
        for number in range(20):
            store.show(frame(number, frame=number))
            await until(lambda number=number: all(state_of(each).total == number + 1 for each in viewports))  # type: ignore[misc]
            if number % 3 == 0:
                store.store_shown()
        assert state_of(viewports[0]).rows[0][0] == 19
        assert state_of(viewports[0]).patch
        assert evaluations(metrics) == before

    with_hub(store, act)


def test_what_is_shown_is_seen_before_it_is_stored_also_by_those_who_come_later(store: Store) -> None:
    async def act(hub: Hub, _: Metrics) -> None:
        store.show(frame(1))
        viewport = hub.subscribe("users_ui", ViewOptions(), lambda: None)
        await until(lambda: viewport.state is not None)
        assert state_of(viewport).ids == [0]
        assert store.reader.window("users_ui", ViewOptions())[1].total == 0

    with_hub(store, act)


def test_what_is_stored_while_a_window_is_read_is_in_it_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the store had it or not when it was asked."""
    kept = store.reader.kept

    async def act(hub: Hub, _: Metrics) -> None:
        def kept_meanwhile(*asked: Any) -> Kept:
            store.show(frame(1))
            store.store_shown()
            store.show(frame(2, frame=1))
            found = kept(*asked)
            store.store_shown()
            store.show(frame(3, frame=2))
            return found

        with monkeypatch.context() as patched_store:
            patched_store.setattr(store.reader, "kept", kept_meanwhile)
            viewport = hub.subscribe("users_ui", ViewOptions(), lambda: None)
            await until(lambda: viewport.state is not None)
        assert [row[0] for row in state_of(viewport).rows] == [1, 2, 3]

    with_hub(store, act)


SHOWN_TABLES = ("users_ui", "left_ui", "natural_ui")  # of a frame of users


def test_the_log_keeps_only_what_an_evaluation_that_runs_may_need(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each evaluation ends after the next one has begun, so that there is always one: the store waits on purpose."""
    kept, running = store.reader.kept, list[threading.Event]()

    def kept_when_told(*asked: Any) -> Kept:
        found = kept(*asked)
        may_end = threading.Event()
        running.append(may_end)
        assert may_end.wait(10)
        return found

    monkeypatch.setattr(store.reader, "kept", kept_when_told)

    async def act(hub: Hub, _: Metrics) -> None:
        viewports: list[Viewport] = []
        for number in range(8):
            viewports.append(hub.subscribe("users_ui", ViewOptions(size=10 + number), lambda: None))
            await until(lambda number=number: len(running) == number + 1)  # type: ignore[misc]
            store.show(frame(number, frame=number))
            store.store_shown()
            if number:
                running[number - 1].set()
                await until(lambda number=number: viewports[number - 1].state is not None)  # type: ignore[misc]
                assert state_of(viewports[number - 1]).total == number + 1
            assert len(hub._log) <= 2 * len(SHOWN_TABLES), "that of the one before, and its own"
        running[-1].set()
        await until(lambda: viewports[-1].state is not None)
        await until(lambda: [state_of(each).total for each in viewports] == [8] * 8)
        assert len(hub._log) == 0

    with_hub(store, act)


def test_a_dear_view_does_not_delay_cheap_ones(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is slow on purpose: as long as the test wants."""
    kept = store.reader.kept
    is_waiting, may_go_on = threading.Event(), threading.Event()
    dear = [ViewOptions(sort=[Sort(column=each) for each in ("k", "n", "ts")][:number]) for number in (1, 2, 3)]

    def kept_slowly(name: str, options: ViewOptions, seconds_max: float) -> Kept:
        if options in dear:
            if seconds_max == hub_module.QUICK_SECONDS:
                raise TimeoutError
            is_waiting.set()
            assert may_go_on.wait(10)
        return kept(name, options, seconds_max)

    monkeypatch.setattr(store.reader, "kept", kept_slowly)

    async def act(hub: Hub, _: Metrics) -> None:
        waiting = [hub.subscribe("users_ui", each, lambda: None) for each in dear]
        await until(is_waiting.is_set)
        cheap = [hub.subscribe("users_ui", ViewOptions(size=size), lambda: None) for size in range(1, 9)]
        await until(lambda: all(viewport.state for viewport in cheap))
        assert [viewport.state for viewport in waiting] == [None, None, None]
        may_go_on.set()
        await until(lambda: all(viewport.state for viewport in waiting))

    with_hub(store, act)


def test_a_view_that_waited_long_for_its_turn_does_not_rest_for_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All threads are taken for an hour of the hub's clock, which goes as the test wants."""
    kept, hours = store.reader.kept, 0
    may_go_on, are_taken = threading.Event(), threading.Semaphore(0)
    monkeypatch.setattr(hub_module, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + hours * 3600))

    def kept_in_turn(name: str, options: ViewOptions, seconds_max: float) -> Kept:
        if options.size != 1:
            are_taken.release()
            assert may_go_on.wait(10)
        return kept(name, options, seconds_max)

    monkeypatch.setattr(store.reader, "kept", kept_in_turn)

    async def act(hub: Hub, _: Metrics) -> None:
        nonlocal hours
        for number in range(hub_module.QUICK_WORKERS):
            hub.subscribe("users_ui", ViewOptions(size=2 + number), lambda: None)
            await asyncio.to_thread(are_taken.acquire)
        viewport = hub.subscribe("users_ui", ViewOptions(size=1), lambda: None)
        await asyncio.sleep(0)  # it waits for its turn now
        hours += 1
        may_go_on.set()
        await until(lambda: viewport.state is not None)
        store.show(frame(1))
        await until(lambda: state_of(viewport).total == 1, "the next frame is shown")

    with_hub(store, act)


def test_a_dear_view_says_how_far_it_may_be_behind(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "QUICK_SECONDS", 0.0)  # every one is expensive
    monkeypatch.setattr(hub_module, "EXPENSIVE_RESTS", 1_000_000)  # and rests for longer than the test takes

    async def act(hub: Hub, _: Metrics) -> None:
        viewport = hub.subscribe("users_ui", ViewOptions(), lambda: None)
        await until(lambda: viewport.state is not None)
        store.apply([frame(1)])  # by the store itself, so that it has to be asked: now it is known to be dear
        await until(lambda: state_of(viewport).total == 1)
        before = state_of(viewport)
        assert before.heading.hint is None, "it is as new as the table"
        store.apply([frame(2, frame=1)])
        await until(lambda: state_of(viewport).heading.hint is not None)
        limited = state_of(viewport)
        assert "s to compute" in str(limited.heading.hint)
        assert (limited.numbered, limited.heading.sequence) == (before.numbered, before.heading.sequence + 1)
        assert json.loads("{" + str(limited.patch))["hint"] == limited.heading.hint
        assert json.loads("{" + limited.first)["hint"] == limited.heading.hint

    with_hub(store, act)


def test_a_view_that_takes_too_long_is_reported_and_tried_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(hub_module, "EXPENSIVE_RESTS", 0)
    kept = store.reader.kept
    is_slow = True

    def kept_slowly(*asked: Any) -> Kept:
        if is_slow:
            raise TimeoutError
        return kept(*asked)

    monkeypatch.setattr(store.reader, "kept", kept_slowly)

    async def act(hub: Hub, _: Metrics) -> None:
        nonlocal is_slow
        viewport = hub.subscribe("users_ui", ViewOptions(), lambda: None)
        await until(lambda: viewport.state is not None)
        assert isinstance(viewport.state, RequestError)
        assert (viewport.state.code, viewport.state.cure) == ("timeout", "filter more, or sort by fewer columns")
        is_slow = False
        await until(lambda: isinstance(viewport.state, State))

    with_hub(store, act)


def test_the_store_stops_when_its_time_is_up(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "INTERRUPT_SECONDS", 0.001)  # a fast machine might be ready before the second one
    rows = 400_000
    text = pa.array([f"{number * 7919 % rows} and some more text" for number in range(rows)])
    ids = pa.array(range(rows), pa.int64())
    many = pa.Table.from_arrays(
        [ids, text, ids, pa.nulls(rows, SHAPES[0].schema.field("ts").type)], schema=SHAPES[0].schema
    )
    store.put(Batch("g", 0, (TableChanges("users_ui", many, SHAPES[0].key_schema.empty_table()),)))
    dear = ViewOptions(sort=[Sort(column="k"), Sort(column="n")], quick="more TEXT", offset=300_000, size=10_000)
    with pytest.raises(TimeoutError):
        store.reader.kept("users_ui", dear, 0.001)
    assert store.reader.kept("users_ui", ViewOptions(size=3), 10).total == rows, "and goes on"


def test_a_shortage_of_memory_is_reported_and_tried_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "RETRY_SECONDS", 0.01)
    window_rows = reader_module._window_rows
    tries = count()

    def short_once(*asked: Any) -> Any:
        if next(tries) == 0:
            raise duckdb.OutOfMemoryException("Out of Memory Error: none is left")
        return window_rows(*asked)

    monkeypatch.setattr(reader_module, "_window_rows", short_once)
    states: list[Any] = []

    async def act(hub: Hub, _: Metrics) -> None:
        viewport = hub.subscribe("users_ui", ViewOptions(), lambda: states.append(viewport.state))
        await until(lambda: len(states) == 2)
        assert isinstance(states[0], RequestError)
        assert states[0].code == "limit"
        assert isinstance(states[1], State)

    with_hub(store, act)


def test_an_error_while_a_window_is_compared_does_not_end_its_viewport(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The error is a fake: none is known."""
    from_window, is_broken = Hub._from_window, threading.Event()

    def broken(hub: Hub, viewport: Viewport) -> State | None:
        if is_broken.is_set():
            raise ValueError("this cannot happen")
        return from_window(hub, viewport)

    monkeypatch.setattr(Hub, "_from_window", broken)

    async def act(hub: Hub, _: Metrics) -> None:
        is_broken.set()
        viewport = hub.subscribe("users_ui", ViewOptions(), lambda: None)
        await until(lambda: isinstance(viewport.state, RequestError))
        assert "cannot evaluate a viewport of users_ui" in caplog.text
        is_broken.clear()
        store.show(frame(0))
        await until(lambda: isinstance(viewport.state, State) and viewport.state.total == 1)

    with_hub(store, act)


def test_receipts_are_of_the_newest_frame_and_none_of_the_first_window(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"BESIDE_MIN": 0, "BESIDE_MAX": 0, "KEPT_FROM_THE_TOP": 0}.items():
        monkeypatch.setattr(window_module, name, value)

    async def act(hub: Hub, metrics: Metrics) -> None:
        store.show(frame(1, kafka_ms=10, sent_ms=20))
        store.store_shown()
        top = hub.subscribe("users_ui", ViewOptions(), lambda: None)
        below = hub.subscribe("users_ui", ViewOptions(sort=[Sort(column="n", descending=True)], offset=1), lambda: None)
        await until(lambda: top.state is not None and below.state is not None)
        assert state_of(top).heading.receipt is None
        before = evaluations(metrics)
        store.show(frame(2, frame=1, kafka_ms=30, sent_ms=40))
        store.store_shown()  # the second can only be answered by the store
        await until(lambda: (state_of(top).total, state_of(below).total) == (2, 2))
        assert evaluations(metrics) > before, "the second had to ask the store"
        for viewport in (top, below):
            receipt = state_of(viewport).heading.receipt
            assert receipt, viewport
            assert (receipt.kafka, receipt.spark) == (30, 40)
        sent = json.loads("{" + (state_of(top).patch or ""))["receipt"]
        assert list(sent) == ["kafka", "spark", "applied", "sent"]
        assert sent["applied"] <= sent["sent"]
        assert json.loads("{" + state_of(top).first)["receipt"] is None, "a resync"
        rows = pa.Table.from_pylist([{**SHAPES_ROW, "_id": 77}], SHAPES[0].schema)
        store.put(Batch("g", 0, (TableChanges("users_ui", rows, SHAPES[0].key_schema.empty_table()),)))
        await until(lambda: state_of(top).total == 3)
        assert state_of(top).heading.receipt is None, "no record of Kafka's has caused it"

    with_hub(store, act)


SHAPES_ROW: Mapping[str, Any] = dict.fromkeys(SHAPES[0].schema.names)


def test_a_generation_that_is_being_dropped_is_no_error_of_the_server(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    transaction = store.database.transaction

    async def act(hub: Hub, _: Metrics) -> None:
        states: list[Any] = []
        viewport = hub.subscribe("users_ui", ViewOptions(), lambda: states.append(viewport.state))
        await until(lambda: viewport.state is not None)
        loop = asyncio.get_running_loop()

        def transaction_meanwhile() -> Any:
            asyncio.run_coroutine_threadsafe(wake(), loop).result(10)
            return transaction()

        async def wake() -> None:
            viewport.news.set()
            await until(lambda: not viewport.news.is_set())

        monkeypatch.setattr(store.database, "transaction", transaction_meanwhile)
        await asyncio.to_thread(store.drop, "g")
        await until(lambda: isinstance(viewport.state, RequestError))
        assert [each.code for each in states if isinstance(each, RequestError)] == ["unknown_table"]

    with_hub(store, act)
    assert "cannot evaluate" not in caplog.text


# Memory


def test_viewports_beyond_the_memory_are_refused_until_there_is_room_and_what_is_open_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hub_module, "RETRY_SECONDS", 0.01)
    wide = [ViewOptions(size=1000, filters=[Filter(column="_id", op=">", value=number - 1)]) for number in range(3)]

    async def watch(store: Store) -> None:
        hub = Hub(store, Metrics(), memory_megabytes=1)
        hub.start()
        first, second = (hub.subscribe("appends", each, lambda: None) for each in wide[:2])
        await until(lambda: first.state is not None and second.state is not None)
        third = hub.subscribe("appends", wide[2], lambda: None)
        await until(lambda: third.state is not None)
        assert isinstance(third.state, RequestError)
        assert (third.state.code, third.state.problem) == ("limit", "the open views take 1 MB, the most that they may")
        assert third.state.cure == "close other views, ask for fewer rows, or set server.memory_megabytes higher"

        def nothing() -> None: ...

        assert hub.subscribe("appends", wide[0], nothing) is first, "it is open already"
        store.begin("g2", [APPENDS])
        store.put(batch("g2", 0, {APPENDS: (numbered(0, 1500), [])}))
        store.publish("g2")
        await until(lambda: [state_of(each).total for each in (first, second)] == [1500, 1499])
        assert isinstance(third.state, RequestError)
        hub.unsubscribe(first, nothing)
        assert isinstance(third.state, RequestError)
        for each in (first, second):
            for subscriber in list(each.subscribers):
                hub.unsubscribe(each, subscriber)
        await until(lambda: isinstance(third.state, State))
        store.put(batch("g2", 1, {APPENDS: (numbered(2000, 1), [])}))
        await until(lambda: state_of(third).total == 1499)
        hub.unsubscribe(third, *third.subscribers)
        assert hub._memory_bytes == 0
        await hub.stop()

    with closing(Store(None)) as store:
        store.begin("g", [APPENDS])
        store.put(batch("g", 0, {APPENDS: (numbered(0, 1000), [])}))
        store.publish("g")
        asyncio.run(watch(store))


def test_a_window_that_grows_counts_with_what_it_takes_then(store: Store) -> None:
    async def watch() -> None:
        hub = Hub(store, Metrics(), memory_megabytes=1)
        hub.start()
        first = hub.subscribe("users_ui", ViewOptions(size=2000), lambda: None)
        await until(lambda: first.state is not None)
        store.show(frame(*range(1500)))
        await until(lambda: state_of(first).total == 1500)
        second = hub.subscribe("users_ui", ViewOptions(size=10), lambda: None)
        await until(lambda: isinstance(second.state, RequestError))
        await hub.stop()

    asyncio.run(watch())


# Rows of a megabyte


@pytest.mark.parametrize(
    "view", [ViewOptions(), ViewOptions(offset=25), ViewOptions(offset=30, sort=[Sort(column="age")], quick="user")]
)
def test_a_window_of_large_rows_is_cut_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, view: ViewOptions
) -> None:
    """Also after a restart; and rows that are shown count as those that are stored."""
    if view.offset == 30:
        for name, value in {"BESIDE_MIN": 5, "BESIDE_MAX": 5, "KEPT_FROM_THE_TOP": 10}.items():
            monkeypatch.setattr(window_module, name, value)
    megabyte = 1024**2
    rows = [{**row, "name": f"{row['name']} " + "x" * megabyte} for row in numbered(0, 60)]
    path = tmp_path / "store.duckdb"
    with closing(Store(path)) as store:
        store.begin("g", [APPENDS])
        store.publish("g")
        store.put(batch("g", 0, {APPENDS: (rows, [])}))
    with closing(Store(path)) as store:
        kept = store.reader.kept("appends", view, 10)
        assert kept.rows.nbytes < 20 * megabyte

        async def act(hub: Hub, _: Metrics) -> None:
            viewport = hub.subscribe("appends", view, lambda: None)
            await until(lambda: viewport.state is not None)
            state = state_of(viewport)
            assert state.total == 60
            assert [row[0] for row in state.rows] == [view.offset, view.offset + 1, view.offset + 2]
            assert len(state.snapshot) < 5 * megabyte
            wanted = 60 - view.offset
            assert state.heading.hint == (f"only 3 of {wanted} rows are sent: more is over 4 MB; ask for fewer rows")
            assert json.loads("{" + state.snapshot)["hint"] == state.heading.hint

        with_hub(store, act)
