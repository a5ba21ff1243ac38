"""One window for each distinct viewport that somebody looks at, however many do.

A viewport is evaluated in the store once. From then on, what frames change is taken into its window
(`viewports/window.py`), and the store is asked again only where that cannot tell. A viewport that has changed is
compared with what it was, and its subscribers are sent the difference. It then rests for the interval that they asked
for, and at least as long as that took, so that it takes at most half of the server's time; changes that come meanwhile
are taken together. Waiting for a turn is not counted: of hundreds that start at once, the last would rest longest.

Evaluations are made on worker threads. An expensive one is stopped after QUICK_SECONDS and made again on a thread for
those alone, where each waits for its turn: a cheap one never waits for it.

`show`, `stored` and `changed` may be called on any thread; everything else runs on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

from livetables.log import Throttle
from livetables.model.errors import RETRYABLE, RequestError
from livetables.server.health.metrics import Metrics
from livetables.server.live import protocol
from livetables.server.live.delta_log import DeltaLog
from livetables.server.live.state import State
from livetables.server.storage.listeners import Changed
from livetables.server.storage.pending import FrameTimes, ShownChanges
from livetables.server.storage.reader import Kept
from livetables.server.storage.store import Store
from livetables.server.viewports.masking import hidden_columns
from livetables.server.viewports.row import rows_of
from livetables.server.viewports.viewport import ViewOptions
from livetables.server.viewports.window import VIEW_BYTES_MAX, LiveWindow

QUICK_WORKERS = 2
QUICK_SECONDS = 0.25
SECONDS_MAX = 10.0  # for the most expensive evaluation
EXPENSIVE_RESTS = 4  # times as long as it took
RETRY_SECONDS = 5.0  # after an error that may pass
STORED_SECONDS = 0.1  # after which the store has what was shown
# A view is evaluated again after these too: with other rows it may be within the limit, or not meet the fault.
RETRIED = RETRYABLE | {"limit", "internal"}
SLOW_SECONDS = 1.0  # an evaluation that is worth a warning

log = logging.getLogger(__name__)
throttle = Throttle()


@dataclass(eq=False)
class Viewport:
    """A distinct (table, options) with everybody who looks at it. `state` is None until it was evaluated once."""

    table: str
    options: ViewOptions
    subscribers: set[Callable[[], None]] = field(default_factory=set)
    state: State | RequestError | None = None
    sequence: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)  # of what follows
    kept: Kept | None = None  # what the store had of it; None: it is to be asked
    window: LiveWindow | None = None  # that, and what was shown since
    memory_bytes: int = 0  # that its window takes; while it has none, the last one
    times: FrameTimes | None = None  # of the newest frame since the last state
    expensive_seconds: float = 0.0  # what its last evaluation took, if that was long
    rests_until: float = 0.0  # before which it is not evaluated again
    reading_seconds: float = 0.0  # that the store was read for its next state, without waiting for a turn


class Hub:
    """All viewports. `start` it on the event loop that its subscribers run on.

    Their windows take no more than `memory_megabytes` together, or little more: as long as they do, there is an error
    for further ones, and those that are open stay.
    """

    def __init__(self, store: Store, metrics: Metrics, *, memory_megabytes: int = 1024) -> None:
        self._memory_megabytes = memory_megabytes
        self._store = store
        self._metrics = metrics
        self._viewports: dict[tuple[str, str], Viewport] = {}
        self._quick = ThreadPoolExecutor(QUICK_WORKERS, thread_name_prefix="viewport")
        self._expensive = ThreadPoolExecutor(1, thread_name_prefix="expensive-viewport")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()  # of what follows; held before a viewport's own
        self._log = DeltaLog()
        self._bound: dict[tuple[str, str], set[Viewport]] = {}  # those with a window, by generation and table
        self._memory_bytes = 0  # of all windows
        self._changes: Counter[str] = Counter()  # how often a table has changed in another way than by what is shown
        store.listen(self.changed)
        store.show_to(self)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    async def stop(self) -> None:
        tasks = [viewport.task for viewport in self._viewports.values() if viewport.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._loop = None
        self._quick.shutdown()
        self._expensive.shutdown()

    # From any thread

    def show(self, changes: ShownChanges) -> None:
        """Take what frames have changed into the windows of those tables."""
        with self._lock:
            has_news = []
            for table, delta in changes.deltas.items():
                key = (changes.generation, table)
                self._log.add(key, changes.sequence, delta)
                for viewport in self._bound.get(key, ()):
                    with viewport.lock:
                        if viewport.window is not None and viewport.window.advance(delta):
                            viewport.times = changes.times
                            has_news.append(viewport)
                            self._count_memory(viewport, viewport.window.memory_bytes)
        self._metrics.advances.inc(len(has_news))
        self._call(_wake, has_news)

    def stored(self, generation: str, sequence: int) -> None:
        """Forget what the store has now."""
        with self._lock:
            self._log.stored(generation, sequence)

    def changed(self, change: Changed) -> None:
        """Have the viewports of changed tables evaluated, unless they were shown what changed."""
        if change.shown:
            return
        with self._lock:
            self._changes.update(change.names)
            for key, viewports in list(self._bound.items()):
                for viewport in [each for each in viewports if each.table in change.names]:
                    self._unbind(key, viewport)
            if change.rebound:
                self._log.keep_only({name for name, each in self._store.generations().items() if each.published})
        self._call(self._wake_tables, change.names)

    # On the event loop

    def subscribe(self, table: str, options: ViewOptions, subscriber: Callable[[], None]) -> Viewport:
        """Look at a table. The subscriber is called whenever the viewport has a new state."""
        key = (table, options.model_dump_json())
        viewport = self._viewports.get(key)
        if viewport is None:
            viewport = self._viewports[key] = Viewport(table, options)
            viewport.news.set()
            viewport.task = asyncio.create_task(self._follow(viewport))
            self._metrics.viewports.set(len(self._viewports))
        viewport.subscribers.add(subscriber)
        return viewport

    def unsubscribe(self, viewport: Viewport, subscriber: Callable[[], None]) -> None:
        """Look no more; the last one to leave ends the viewport."""
        viewport.subscribers.discard(subscriber)
        if not viewport.subscribers and viewport.task:
            viewport.task.cancel()
            del self._viewports[viewport.table, viewport.options.model_dump_json()]
            self._metrics.viewports.set(len(self._viewports))
            with self._lock:
                for key in [key for key, viewports in self._bound.items() if viewport in viewports]:
                    self._unbind(key, viewport)
                self._count_memory(viewport, 0)

    def _call(self, act: Callable[..., None], argument: object) -> None:
        loop = self._loop
        if loop is not None and argument:
            with suppress(RuntimeError):  # the loop has ended: nobody looks any more
                loop.call_soon_threadsafe(act, argument)

    def _wake_tables(self, names: frozenset[str]) -> None:
        _wake([viewport for viewport in self._viewports.values() if viewport.table in names])

    async def _follow(self, viewport: Viewport) -> None:
        while True:
            await viewport.news.wait()
            viewport.news.clear()
            started = time.monotonic()
            viewport.reading_seconds = comparing_seconds = 0.0
            state: State | RequestError | None
            try:
                state = self._from_window(viewport)
                comparing_seconds = time.monotonic() - started
                state = state or await self._evaluated(viewport)
            except RequestError as problem:
                state = _as_before(viewport.state, problem)
            except Exception:
                log.exception("cannot evaluate a viewport of %s", viewport.table)
                unknown = RequestError(
                    "internal", f"the rows of {viewport.table} cannot be read", "see the server's log"
                )
                state = _as_before(viewport.state, unknown)
            if isinstance(state, RequestError) and state.code in RETRIED:  # nothing else would have it tried again
                asyncio.get_running_loop().call_later(RETRY_SECONDS, viewport.news.set)
            if state is not viewport.state:
                viewport.state = state
                self._notify(viewport)
            await asyncio.sleep(max(viewport.options.interval_ms / 1000, comparing_seconds + viewport.reading_seconds))

    def _notify(self, viewport: Viewport) -> None:
        for subscriber in viewport.subscribers:
            try:
                subscriber()
            except Exception:  # one bad client must not take the others down
                log.exception("cannot notify a subscriber of %s", viewport.table)

    def _from_window(self, viewport: Viewport) -> State | None:
        """The state that a viewport's window shows; None if the store has to be asked."""
        with viewport.lock:
            kept, window = viewport.kept, viewport.window
            if kept is None or window is None:
                return None
            return self._state_of(viewport, kept, window)

    def _state_of(self, viewport: Viewport, kept: Kept, window: LiveWindow) -> State | None:
        """The state that a window shows; None if it cannot tell, or its generation is gone."""
        rows, total = window.rows, window.total
        # Its newest time may be that of a frame that comes right after; no client can tell.
        generation = self._store.generations().get(kept.table.generation)
        if rows is None or generation is None:
            return None
        entries = window.shown(len(rows))
        times, viewport.times = viewport.times, None
        table = generation.tables[kept.table.shape.name]
        heading = protocol.Heading(
            table=viewport.table,
            generation=table.generation,
            sequence=viewport.sequence + 1,
            newest=table.newest,
            receipt=protocol.Receipt(kafka=times.kafka, spark=times.spark, applied=times.applied) if times else None,
            hint=_hint(viewport, shown=len(rows), total=total),
        )
        sent = self._metrics.rows_sent.labels(table.shape.name, "websocket")
        view = window.view
        state = State.after(
            viewport.state,
            heading,
            view.options,
            view.columns,
            entries,
            total,
            sent,
            view.checksums,
            lambda: view.arrow(rows),
        )
        viewport.sequence = state.heading.sequence
        return state

    async def _evaluated(self, viewport: Viewport) -> State | RequestError | None:
        """The state after the store has been asked. One that takes long is asked for again, in its turn."""
        if not isinstance(viewport.state, State) and self._memory_bytes >= self._memory_megabytes * 1024**2:
            raise RequestError(
                "limit",
                f"the open views take {self._memory_megabytes:,} MB, the most that they may",
                "close other views, ask for fewer rows, or set server.memory_megabytes higher",
            )
        loop, now = asyncio.get_running_loop(), time.monotonic()
        if now < viewport.rests_until:
            loop.call_later(viewport.rests_until - now, viewport.news.set)
            return self._limited(viewport)
        loaded: tuple[Kept, LiveWindow] | None = None
        if not viewport.expensive_seconds:
            with suppress(TimeoutError):
                loaded = await loop.run_in_executor(self._quick, self._load, viewport, QUICK_SECONDS)
        if loaded is None:
            try:
                loaded = await loop.run_in_executor(self._expensive, self._load, viewport, SECONDS_MAX)
            except TimeoutError:
                viewport.expensive_seconds = SECONDS_MAX
                raise RequestError(
                    "timeout", f"this view takes longer than {SECONDS_MAX:g} s", "filter more, or sort by fewer columns"
                ) from None
            finally:
                viewport.rests_until = time.monotonic() + viewport.expensive_seconds * EXPENSIVE_RESTS
        state = self._from_window(viewport)
        if (
            state is None and viewport.window is not None
        ):  # its rows have moved on, and the store does not have them yet
            loop.call_later(STORED_SECONDS, viewport.news.set)
        elif (
            state is None
        ):  # the table has changed in this very moment: what it was may be seen, until it is asked again
            viewport.news.set()
            kept, window = loaded
            state = None if window.has_advanced else self._state_of(viewport, kept, window)
        return state or viewport.state

    def _limited(self, viewport: Viewport) -> State | RequestError | None:
        """The state that a viewport has, with the reason why it is not the newest one."""
        state = viewport.state
        if not isinstance(state, State) or state.heading.hint is not None:
            return state
        behind = viewport.expensive_seconds * (1 + EXPENSIVE_RESTS)
        hint = (
            f"this view takes {viewport.expensive_seconds:.1f} s to compute, so it is up to {behind:.0f} s behind; "
            "filter more, or sort by fewer columns"
        )
        viewport.sequence += 1
        return state.limited(viewport.sequence, hint)

    # On worker threads

    def _load(self, viewport: Viewport, seconds_max: float) -> tuple[Kept, LiveWindow]:
        """Ask the store for a viewport's window, and take in what was shown and is not stored.

        It is kept current from now on, unless its table has changed meanwhile in another way than by what is shown.
        """
        with self._lock:
            reading = self._log.begin()
            changes = self._changes[viewport.table]
        started = time.monotonic()
        try:
            kept = self._store.reader.kept(viewport.table, viewport.options, seconds_max)
            schema = kept.table.shape.schema
            hidden = hidden_columns(kept.table.shape, masked=viewport.options.masked)
            window = LiveWindow(schema, viewport.options, kept.start, rows_of(kept.rows), kept.total, hidden)
            key = (kept.table.generation, kept.table.shape.name)
            with self._lock:
                for delta in self._log.since(key, kept.sequence):
                    window.advance(delta)
                if changes == self._changes[viewport.table] and viewport.subscribers:
                    self._bind(key, viewport)
                    with viewport.lock:
                        viewport.kept, viewport.window = kept, window
                    self._count_memory(viewport, window.memory_bytes)
            self._count(viewport, time.monotonic() - started)
            return kept, window
        finally:
            viewport.reading_seconds += time.monotonic() - started
            with self._lock:
                self._log.end(reading)

    def _count(self, viewport: Viewport, seconds: float) -> None:
        viewport.expensive_seconds = seconds if seconds > QUICK_SECONDS else 0.0
        self._metrics.evaluations.inc()
        self._metrics.evaluation_seconds.observe(seconds)
        if seconds > SLOW_SECONDS:
            throttle.log_event(log, "slow_viewport", logging.WARNING, table=viewport.table, seconds=f"{seconds:.1f}")

    # With the lock

    def _bind(self, key: tuple[str, str], viewport: Viewport) -> None:
        for other in [other for other, viewports in self._bound.items() if viewport in viewports and other != key]:
            self._unbind(other, viewport)
        self._bound.setdefault(key, set()).add(viewport)

    def _unbind(self, key: tuple[str, str], viewport: Viewport) -> None:
        self._bound[key].discard(viewport)
        if not self._bound[key]:
            del self._bound[key]
        with viewport.lock:
            viewport.kept = viewport.window = viewport.times = None

    def _count_memory(self, viewport: Viewport, memory_bytes: int) -> None:
        self._memory_bytes += memory_bytes - viewport.memory_bytes
        viewport.memory_bytes = memory_bytes


def _wake(viewports: Iterable[Viewport]) -> None:
    for viewport in viewports:
        viewport.news.set()


def _as_before(before: State | RequestError | None, found: RequestError) -> RequestError:
    """The problem that a viewport has already, if it is the same."""
    return before if isinstance(before, RequestError) and str(before) == str(found) else found


def _hint(viewport: Viewport, *, shown: int, total: int) -> str | None:
    """The hint for a client that gets fewer rows than it asked for."""
    wanted = min(viewport.options.size, max(0, total - viewport.options.offset))
    if shown < wanted:
        megabytes = VIEW_BYTES_MAX // 1024**2
        return f"only {shown:,} of {wanted:,} rows are sent: more is over {megabytes} MB; ask for fewer rows"
    return None
