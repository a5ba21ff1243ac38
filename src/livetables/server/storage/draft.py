"""A generation as the frames of one transaction make it, before they are written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from livetables.model.wire import NO_BATCH, FramePart
from livetables.server.storage.frames import FrameChanges, TableNews, combined, frame_changes
from livetables.server.storage.generation import Frame, Generation, StoredTable, Writer, counted
from livetables.server.storage.pending import FrameTimes


class Draft:
    """A generation as the frames of a group make it."""

    def __init__(self, generation: Generation) -> None:
        self.before = self.after = generation
        self.changes: list[FrameChanges] = []
        self.news: dict[str, TableNews] = {}
        self._parts: dict[str, list[FramePart]] = {}  # the last of each frame, by table that it changed

    def add(self, frame: Frame) -> None:
        part, after = frame.last, self.after
        writer = after.writers.get(part.writer)
        marks = writer.marks if writer else {}
        shapes = {name: table.shape for name, table in after.tables.items()}
        changes = frame_changes(shapes, frame.streams, marks, part.marks, after.horizons)
        ended_before = writer.ended if writer else NO_BATCH
        ended = max(ended_before, part.epoch) if part.end else ended_before
        records = counted(writer, changes.records)
        writers = {**after.writers, part.writer: Writer(frame.place, changes.marks, ended, records)}
        self.after = replace(after, run=max(after.run, part.run), writers=writers)
        if changes.tables or changes.marks is not marks or ended != ended_before or part.durable:
            self.changes.append(changes)
        for name in changes.tables:
            self._parts.setdefault(name, []).append(part)

    def finish(self) -> None:
        """Take all frames together."""
        names = dict.fromkeys(name for changes in self.changes for name in changes.tables)
        self.news = {
            name: combined([changes.tables[name] for changes in self.changes if name in changes.tables])
            for name in names
        }
        if self.changes:
            tables = {**self.after.tables, **{name: self._advanced(name) for name in names}}
            self.after = replace(self.after, tables=tables, sequence=self.before.sequence + 1)

    def times(self) -> dict[str, FrameTimes]:
        """Those of the newest record by table, now that the frames are applied."""
        found = {name: FrameTimes.newest(map(FrameTimes.of, parts)) for name, parts in self._parts.items()}
        return {name: times for name, times in found.items() if times}

    def _advanced(self, name: str) -> StoredTable:
        news = self.news[name]
        numbered = sum(rows.num_rows for rows in (news.new, news.perhaps) if rows is not None)
        return self.after.tables[name].with_rows(numbered, *news.rows)


def groups(frames: Sequence[Frame]) -> Iterator[Sequence[Frame]]:
    """The frames in order, in groups in which each writer has one: the next may change what that one brings."""
    group: dict[tuple[str, int], Frame] = {}
    for frame in frames:
        key = (frame.last.generation, frame.last.writer)
        if key in group:
            yield list(group.values())
            group = {}
        group[key] = frame
    if group:
        yield list(group.values())
