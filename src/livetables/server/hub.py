"""One evaluation for each distinct viewport that changed, however many look at it.

A viewport that somebody looks at is followed by one task: when its table changes it is evaluated once, compared with
what it was, and told to all subscribers. It then rests at least TICK_SECONDS, and at least as long as the evaluation
took: a dear viewport takes at most half of one worker's time, and changes that come meanwhile are taken together.

Everything here but `changed` runs on the event loop; evaluations run on worker threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
from prometheus_client import Counter

from livetables.errors import RequestError
from livetables.log import Throttle
from livetables.server import protocol
from livetables.server.metrics import Metrics
from livetables.server.rows import encoded_rows
from livetables.server.store import Changed, Store
from livetables.server.viewport import ViewOptions, column_type, patch
from livetables.server.websocket import text_frame

TICK_SECONDS = 0.02
WORKERS = 2
FRAMES_KEPT = 8
SLOW_SECONDS = 1.0  # an evaluation that is worth a warning

log = logging.getLogger(__name__)
throttle = Throttle()


@dataclass(frozen=True)
class State:
    """What a viewport shows at one time, and the frames that say so, made when first needed."""

    heading: protocol.Heading
    options: ViewOptions
    columns: tuple[tuple[str, str], ...]
    ids: tuple[int, ...]
    arrow: pa.Table
    rows: list[list[Any]]
    total: int
    rows_sent: Counter  # of all clients, of the table
    patch: str | None = None  # what makes the state before this one, unless a snapshot is shorter
    patch_rows: int = 0  # that it brings or changes
    _framed: dict[tuple[int, int, bool], bytes] = field(default_factory=dict)

    @cached_property
    def schema(self) -> str:
        return protocol.schema(self.heading, self.columns)

    @cached_property
    def snapshot(self) -> str:
        return protocol.snapshot(self.heading, self.options.offset, self.total, self.ids, self.rows)

    def framed(self, sub: int, revision: int, *, follows: bool) -> bytes:
        """The frame for a client that has the state before this one, or that has not, as the wire has it.

        Most clients choose the same numbers, so most frames are made once for all.
        """
        key = (sub, revision, follows and self.patch is not None)
        if key not in self._framed:
            if len(self._framed) >= FRAMES_KEPT:
                self._framed.clear()
            self._framed[key] = text_frame(protocol.about(sub, revision, self.news(follows=follows)))
        return self._framed[key]

    def news(self, *, follows: bool) -> str:
        """What to send to a client that has the state before this one, or that has not."""
        return self.patch if follows and self.patch is not None else self.snapshot

    def count_sent(self, *, follows: bool) -> None:
        """What `news` gives was sent to a client."""
        self.rows_sent.inc(self.patch_rows if follows and self.patch is not None else len(self.ids))

    def after(self, before: State) -> State:
        """This state with the patch that makes it of the one before; or that one, if both show the same."""
        if before.heading.generation != self.heading.generation or before.columns != self.columns:
            return self
        change = patch(before.numbered(), self.numbered())
        if change is None:
            return self
        if change.is_empty and before.total == self.total:
            return before
        changed = len(change.inserted) + len({position for position, _, _ in change.updated})
        return replace(self, patch=protocol.patch(self.heading, self.total, change), patch_rows=changed)

    def numbered(self) -> list[tuple[int, tuple[Any, ...]]]:
        return [(row_id, tuple(row)) for row_id, row in zip(self.ids, self.rows, strict=True)]


@dataclass(eq=False)
class Viewport:
    """A distinct (table, options) with everybody who looks at it. `state` is None until it was evaluated once."""

    table: str
    options: ViewOptions
    subscribers: set[Callable[[], None]] = field(default_factory=set)
    state: State | RequestError | None = None
    sequence: int = 0
    stale: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class Hub:
    """All viewports. `start` it on the event loop that its subscribers run on."""

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics
        self._viewports: dict[tuple[str, str], Viewport] = {}
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="viewport")
        self._loop: asyncio.AbstractEventLoop | None = None
        store.listen(self.changed)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    async def stop(self) -> None:
        tasks = [viewport.task for viewport in self._viewports.values() if viewport.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._loop = None
        self._pool.shutdown()

    def changed(self, change: Changed) -> None:
        """Have the viewports of changed tables evaluated; from any thread."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop has ended: nobody looks any more
                loop.call_soon_threadsafe(self._mark, change.names)

    def subscribe(self, table: str, options: ViewOptions, subscriber: Callable[[], None]) -> Viewport:
        """Look at a table. The subscriber is called whenever the viewport has a new state."""
        key = (table, options.model_dump_json())
        viewport = self._viewports.get(key)
        if viewport is None:
            viewport = self._viewports[key] = Viewport(table, options)
            viewport.stale.set()
            viewport.task = asyncio.create_task(self._follow(viewport))
            self._metrics.viewports.set(len(self._viewports))
        viewport.subscribers.add(subscriber)
        self._metrics.subscriptions.inc()
        return viewport

    def unsubscribe(self, viewport: Viewport, subscriber: Callable[[], None]) -> None:
        """Look no more; the last one to leave ends the viewport."""
        viewport.subscribers.discard(subscriber)
        self._metrics.subscriptions.dec()
        if not viewport.subscribers and viewport.task:
            viewport.task.cancel()
            del self._viewports[viewport.table, viewport.options.model_dump_json()]
            self._metrics.viewports.set(len(self._viewports))

    def _mark(self, names: frozenset[str]) -> None:
        for viewport in self._viewports.values():
            if viewport.table in names:
                viewport.stale.set()

    async def _follow(self, viewport: Viewport) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await viewport.stale.wait()
            viewport.stale.clear()
            started = time.monotonic()
            state = await loop.run_in_executor(self._pool, self._evaluate, viewport)
            cost = time.monotonic() - started
            if state is not viewport.state:
                viewport.state = state
                self._tell(viewport)
            await asyncio.sleep(max(TICK_SECONDS, cost))

    def _tell(self, viewport: Viewport) -> None:
        for subscriber in viewport.subscribers:
            try:
                subscriber()
            except Exception:  # one bad client must not take the others down
                log.exception("cannot tell a subscriber of %s", viewport.table)

    def _evaluate(self, viewport: Viewport) -> State | RequestError:
        """The viewport's state now: the one it has, if nothing in view changed."""
        before = viewport.state
        try:
            return self._evaluated(viewport, before)
        except RequestError as problem:
            found = problem
        except Exception:
            log.exception("cannot evaluate a viewport of %s", viewport.table)
            found = RequestError(
                "internal", f"the rows of {viewport.table} cannot be read", "the server's log tells why"
            )
        return before if isinstance(before, RequestError) and str(before) == str(found) else found

    def _evaluated(self, viewport: Viewport, before: State | RequestError | None) -> State:
        started = time.monotonic()
        table, window = self._store.window(viewport.table, viewport.options)
        heading = protocol.Heading(
            table=viewport.table, generation=table.generation, sequence=viewport.sequence + 1, newest=table.newest
        )
        columns = tuple((column.name, column_type(column.type)) for column in window.rows.schema)
        rows = encoded_rows(window.rows)
        sent = self._metrics.rows_sent.labels(table.shape.name, "websocket")
        state = State(heading, viewport.options, columns, window.ids, window.rows, rows, window.total, sent)
        self._metrics.evaluations.inc()
        seconds = time.monotonic() - started
        self._metrics.evaluation_seconds.observe(seconds)
        if seconds > SLOW_SECONDS:
            throttle.tell(log, "slow_viewport", logging.WARNING, table=viewport.table, seconds=f"{seconds:.1f}")
        if isinstance(before, State):
            state = state.after(before)
        viewport.sequence = state.heading.sequence
        return state
