"""What a viewport shows at one time, and the frames that say so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import pyarrow as pa
from prometheus_client import Counter

from livetables.model.errors import RequestError
from livetables.server.live import protocol
from livetables.server.viewports.row import Checksums, Entry, Values
from livetables.server.viewports.viewport import Patch, ViewOptions, patch

FRAMES_KEPT = 8


@dataclass(frozen=True)
class State:
    """What a viewport shows at one time. Its frames are made when first needed, and once for all."""

    heading: protocol.Heading
    options: ViewOptions
    columns: tuple[tuple[str, str], ...]
    numbered: Sequence[Entry]  # the rows in view
    total: int
    rows_sent: Counter  # of all clients, of the table
    checksums: Checksums  # of the rows of this viewport
    arrow: Callable[[], pa.Table]
    patch: str | None = None  # what makes it of the state before, unless a snapshot is shorter
    patch_rows: int = 0  # that it brings or changes
    _framed: dict[tuple[int, int, str, bool], bytes] = field(default_factory=dict)

    @classmethod
    def after(
        cls,
        before: State | RequestError | None,
        heading: protocol.Heading,
        options: ViewOptions,
        columns: tuple[tuple[str, str], ...],
        numbered: Sequence[Entry],
        total: int,
        rows_sent: Counter,
        checksums: Checksums,
        arrow: Callable[[], pa.Table],
    ) -> State:
        """The next state, with the patch that makes it of the one before; or that one, if both show the same."""
        change = None
        if isinstance(before, State) and (before.heading.generation, before.columns) == (heading.generation, columns):
            change = patch(before.numbered, numbered)
            if change and change.is_empty and (before.total, before.heading.hint) == (total, heading.hint):
                return before
        text, changed = None, 0
        if change is not None:
            text = protocol.patch(heading, total, change)
            changed = len(change.inserted) + len({position for position, _, _ in change.updated})
        return cls(heading, options, columns, numbered, total, rows_sent, checksums, arrow, text, changed)

    @property
    def ids(self) -> list[int]:
        return [number for number, _ in self.numbered]

    @property
    def rows(self) -> list[Values]:
        return [values for _, values in self.numbered]

    @cached_property
    def schema(self) -> str:
        return protocol.schema(self.heading, self.columns)

    @cached_property
    def snapshot(self) -> str:
        """The whole window, for a client that has an older one."""
        return protocol.snapshot(self.heading, self.options.offset, self.total, self.ids, self.rows)

    @cached_property
    def first(self) -> str:
        """The whole window, for a client that has none: no record has caused it."""
        heading = replace(self.heading, receipt=None)
        return protocol.snapshot(heading, self.options.offset, self.total, self.ids, self.rows)

    @cached_property
    def checksum(self) -> str:
        return self.checksums.of_window(self.total, self.numbered)

    def framed(self, sub: int, revision: int, *, follows: bool, has_checksum: bool) -> bytes:
        """The frame for a client that has a state, the one before this or an older one, as the wire has it.

        Most clients choose the same numbers, so most frames are made once for all.
        """
        kind = "patch" if follows and self.patch is not None else "snapshot"
        key = (sub, revision, kind, has_checksum)
        if key not in self._framed:
            if len(self._framed) >= FRAMES_KEPT:
                self._framed.clear()
            rest = self.news(follows=follows, is_first=False, has_checksum=has_checksum)
            self._framed[key] = protocol.text_frame(protocol.about(sub, revision, rest))
        return self._framed[key]

    def news(self, *, follows: bool, is_first: bool, has_checksum: bool) -> str:
        """What to send to a client that has the state before this one, an older one, or none."""
        rest = self.patch if follows else None
        if rest is None:
            rest = self.first if is_first else self.snapshot
        return protocol.with_checksum(rest, self.checksum) if has_checksum else rest

    def count_sent(self, *, follows: bool) -> None:
        """What `news` gives was sent to a client."""
        self.rows_sent.inc(self.patch_rows if follows and self.patch is not None else len(self.numbered))

    def limited(self, sequence: int, hint: str) -> State:
        """The same rows once more, with a sentence that says why they are not newer."""
        heading = replace(self.heading, sequence=sequence, hint=hint, receipt=None)
        patch = protocol.patch(heading, self.total, Patch((), (), ()))
        return replace(self, heading=heading, patch=patch, patch_rows=0, _framed={})
