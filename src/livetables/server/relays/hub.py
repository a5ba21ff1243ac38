"""A relay's viewports: each is looked at once in the server, and shown to all clients of the relay that look at it."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
from pydantic_core import from_json

from livetables.model.columns import COLUMN_KINDS
from livetables.model.errors import RequestError
from livetables.server.health.metrics import Metrics
from livetables.server.live.state import State
from livetables.server.relays.link import Outbox
from livetables.server.relays.messages import Failure, News, Subscribe, Unsubscribe
from livetables.server.viewports.row import Checksums, Entry
from livetables.server.viewports.viewport import ViewOptions

log = logging.getLogger(__name__)


@dataclass(eq=False)
class RelayViewport:
    """A distinct (table, options) with everybody here who looks at it. `state` is None until the server sent one."""

    sub: int
    table: str
    options: ViewOptions
    subscribers: set[Callable[[], None]] = field(default_factory=set)
    state: State | RequestError | None = None
    checksums: Checksums = field(default_factory=Checksums)


class RelayHub:
    """All viewports of a relay."""

    def __init__(self, outbox: Outbox, metrics: Metrics) -> None:
        self._outbox = outbox
        self._metrics = metrics
        self._viewports: dict[tuple[str, str], RelayViewport] = {}
        self._by_sub: dict[int, RelayViewport] = {}
        self._subs = itertools.count(1)  # never used again: what is on its way for an old one finds nobody

    def subscribe(self, table: str, options: ViewOptions, subscriber: Callable[[], None]) -> RelayViewport:
        """Look at a table. The subscriber is called whenever the viewport has a new state."""
        key = (table, options.model_dump_json())
        viewport = self._viewports.get(key)
        if viewport is None:
            viewport = self._viewports[key] = RelayViewport(next(self._subs), table, options)
            self._by_sub[viewport.sub] = viewport
            subscribe = Subscribe(sub=viewport.sub, table=table, options=options)
            self._outbox.put(("subscribe", viewport.sub), lambda: subscribe)
        viewport.subscribers.add(subscriber)
        return viewport

    def unsubscribe(self, viewport: RelayViewport, subscriber: Callable[[], None]) -> None:
        """Look no more; the last one to leave ends the viewport."""
        viewport.subscribers.discard(subscriber)
        if not viewport.subscribers:
            del self._viewports[viewport.table, viewport.options.model_dump_json()], self._by_sub[viewport.sub]
            if not self._outbox.take_back(("subscribe", viewport.sub)):
                self._outbox.put(("unsubscribe", viewport.sub), partial(Unsubscribe, sub=viewport.sub))

    def take(self, news: News | Failure) -> None:
        """Show what the server has sent to everybody who looks at it."""
        viewport = self._by_sub.get(news.sub)
        if viewport is None:
            return
        if isinstance(news, Failure):
            viewport.state = news.problem.error()
        else:
            sent = self._metrics.rows_sent.labels(news.counted_as, "websocket")
            columns, entries = _window(viewport.state, news)
            viewport.state = State(
                heading=news.heading,
                options=viewport.options,
                columns=columns,
                numbered=entries,
                total=news.total,
                rows_sent=sent,
                checksums=viewport.checksums,
                arrow=partial(arrow_rows, columns, entries),
                patch=news.patch,
                patch_rows=news.patch_rows,
            )
        for subscriber in viewport.subscribers:
            try:
                subscriber()
            except Exception:  # one bad client must not take the others down
                log.exception("cannot notify a subscriber of %s", viewport.table)


_Columns = tuple[tuple[str, str], ...]


def _window(before: State | RequestError | None, news: News) -> tuple[_Columns, Sequence[Entry]]:
    """Columns and rows after the news."""
    if news.window is not None:
        return news.window.columns, news.window.entries
    assert isinstance(before, State)
    assert news.patch is not None
    return before.columns, patched_entries(before.numbered, from_json("{" + news.patch))


def patched_entries(entries: Sequence[Entry], frame: Mapping[str, Any]) -> list[Entry]:
    """A window after a patch frame. Rows that stay as they are are the same objects."""
    new = list(entries)
    for position in reversed(frame["removed"]):
        del new[position]
    for position, row_id, values in frame["inserted"]:
        new.insert(position, (row_id, tuple(values)))
    for position, column, value in frame["updated"]:
        row_id, values = new[position]
        new[position] = (row_id, (*values[:column], value, *values[column + 1 :]))
    return new


def arrow_rows(columns: _Columns, entries: Sequence[Entry]) -> pa.Table:
    """Rows as JSON has them in their own types again: each value's text means the same to Arrow."""
    schema = pa.schema([(name, COLUMN_KINDS[kind].arrow) for name, kind in columns])
    texts = (
        [None if values[index] is None else str(values[index]) for _, values in entries]
        for index in range(len(columns))
    )
    return pa.table(
        [pa.array(column, pa.string()).cast(own.type) for column, own in zip(texts, schema, strict=True)], schema=schema
    )
