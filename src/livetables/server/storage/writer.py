"""The writer of frames: small ones are shown first and stored together, the others are applied by the database.

Locks are taken in this order: that of a generation, the database's `writing`, that of the pending frames.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import duckdb

from livetables.model.change import TableChanges
from livetables.model.wire import NO_BATCH, RUNS_PER_PIPELINE, FramePart
from livetables.server.storage.catalogue import facts_update
from livetables.server.storage.context import StoreContext
from livetables.server.storage.draft import Draft, groups
from livetables.server.storage.frames import FrameError, TableNews
from livetables.server.storage.generation import Frame, Generation, names_of
from livetables.server.storage.listeners import Changed
from livetables.server.storage.merge import Given, bring, store
from livetables.server.storage.pending import Outcome, PendingBatch, StoreFirstError


@dataclass(frozen=True)
class Commit:
    """What frames changed in a generation, in one transaction."""

    generation: str
    is_published: bool
    taken: tuple[TableChanges, ...]
    records: Mapping[str, int]  # by what readers call their table


@dataclass(frozen=True)
class Applied:
    """The outcome of frames: of each the sequence that it is in, or why it was not applied."""

    outcomes: tuple[int | Exception, ...]
    commits: tuple[Commit, ...]


class TableWriter:
    """Writes frames, on any thread; one that writes to the database holds its `writing`."""

    def __init__(self, context: StoreContext) -> None:
        self._database = context.database
        self._catalogue = context.catalogue
        self._fencing = context.fencing
        self._pending = context.pending
        self._staging = context.staging
        self._feed = context.feed
        self._listeners = context.listeners
        self._unknown_fields = context.unknown_fields
        self._given = Given(context.database.writer)
        self._applying: dict[str, threading.RLock] = {}  # of generations
        self._closed_to: str | None = None  # the generation whose frames are not shown; with the lock of `pending`
        self._stored_writers = {name: each.writers for name, each in context.catalogue.generations.items()}

    def show(self, frame: Frame) -> Outcome:
        """Apply a small frame in memory and show it; it is stored by the next `store_shown`.

        A StoreFirstError means that it has to be applied by the store instead.
        """
        self._fencing.check(frame.last.run // RUNS_PER_PIPELINE)
        with self._lock_of(frame.last.generation), self._pending.lock:
            generation = self._checked(frame.last)
            if generation.name == self._closed_to:
                raise StoreFirstError("a batch of its generation is being stored")
            if generation.has(frame.last):
                return Outcome({}, (), self._pending.waiting(generation.name))
            self._check_no_gap(generation, frame.last)
            after, changes, outcome = self._pending.show(generation, frame)
            self._catalogue.update(generation.name, tables=after.tables, run=after.run, writers=after.writers)
            if changes.deltas and generation.published and self._listeners.viewers:
                self._listeners.viewers.show(changes)
            return outcome

    def store_shown(self) -> None:
        """Store everything that was shown so far: in one transaction, or in two where one has failed before."""
        with self._database.writing:
            if self._pending.is_left_over:
                self._store_taken()
            self._store_taken()

    def _store_taken(self) -> None:
        with self._pending.lock:
            batches = self._pending.take(self._catalogue.generations)
        if not batches:
            return
        try:
            taken = self._database.before_queries(lambda: self._commit_shown(batches))
        except Exception as error:
            self._pending.answer(error)
            raise
        with self._pending.lock:  # what is shown next has the next sequence
            for batch in batches:
                assert batch.after
                self._catalogue.update(batch.after.name, sequence=batch.sequence)
            self._pending.done()
        for batch, changes in zip(batches, taken, strict=True):
            self._has_stored(batch, changes)

    def stored_frame(self, part: FramePart) -> int:
        """The last frame of a writer's attempt that is on disk; -1 if there is none."""
        writer = self._stored_writers.get(part.generation, {}).get(part.writer)
        return writer.last[1] if writer and writer.last[0] == part.attempt else -1

    def apply(self, frames: Sequence[Frame]) -> Applied:
        """Apply frames whole, durably, once, in as few transactions as can be. One that fails leaves the others be.

        Frames of the same generations that are to be shown wait for the end of it, those of others do not.
        """
        outcomes: list[int | Exception] = []
        commits: list[Commit] = []
        for group in groups(frames):
            with ExitStack() as locks:
                for name in sorted({frame.last.generation for frame in group}):
                    locks.enter_context(self._lock_of(name))
                locks.enter_context(self._database.writing)
                self.store_shown()
                applied = self._apply(group)
            outcomes += applied.outcomes
            commits += applied.commits
        return Applied(tuple(outcomes), tuple(commits))

    def check_part(self, part: FramePart) -> bool:
        """Refuse a part of a frame that is not to be applied; return whether it was applied before."""
        self._fencing.check(part.run // RUNS_PER_PIPELINE)
        with self._pending.lock:
            return self._checked(part).has(part)

    @contextmanager
    def nothing_pending(self, generation: str) -> Iterator[None]:
        """Write something else to a generation: until the end of the block, no frame of it is shown or not stored."""
        with self._database.writing:
            with self._pending.lock:
                self._closed_to = generation
            try:
                self.store_shown()
                yield
            finally:
                self._closed_to = None

    def forget(self, generation: str) -> None:
        """Forget a generation that was dropped."""
        self._pending.forget(generation)
        self._applying.pop(generation, None)
        self._stored_writers.pop(generation, None)
        self._staging.forget(generation)
        self._given.forget(generation)

    def _apply(self, frames: Sequence[Frame]) -> Applied:
        """Apply frames of different writers in one transaction, or one by one where that fails."""
        outcomes: list[int | Exception] = []
        drafts: dict[str, Draft] = {}
        for frame in frames:
            try:
                self._fencing.check(frame.last.run // RUNS_PER_PIPELINE)
                name = self._checked(frame.last).name
                draft = drafts.setdefault(name, Draft(self._catalogue.generations[name]))
                if not draft.after.has(frame.last):
                    self._check_no_gap(draft.after, frame.last)
                    draft.add(frame)
                outcomes.append(NO_BATCH)
            except Exception as error:  # of this frame alone
                outcomes.append(error)
        for draft in drafts.values():
            draft.finish()
        changed = [draft for draft in drafts.values() if draft.changes]
        try:
            commits = self._database.before_queries(lambda: self._commit_frames(changed)) if changed else []
        except duckdb.Error as error:
            if len(frames) > 1:
                alone = [self._apply([frame]) for frame in frames]
                return Applied(
                    tuple(outcome for each in alone for outcome in each.outcomes),
                    tuple(commit for each in alone for commit in each.commits),
                )
            return Applied((error,), ())
        for draft in drafts.values():
            self._catalogue.remember(draft.after)
        for draft in changed:
            self._stored_writers[draft.after.name] = draft.after.writers
            self._pending.forget_rows(draft.after.name)
        for draft, commit in zip(changed, commits, strict=True):
            if commit.is_published:
                self._feed.add(commit.generation, draft.after.sequence, commit.taken, commit.taken, draft.times())
            for changes in draft.changes:
                self._unknown_fields.add(changes.unknown_fields)
        names = [name for draft in changed for name, table in names_of(draft.before).items() if table in draft.news]
        self._listeners.notify(Changed(frozenset(names)))
        return Applied(
            tuple(
                outcome if isinstance(outcome, Exception) else drafts[frame.last.generation].after.sequence
                for frame, outcome in zip(frames, outcomes, strict=True)
            ),
            tuple(commits),
        )

    def _commit_frames(self, drafts: Sequence[Draft]) -> list[Commit]:
        for draft in drafts:
            for name, news in draft.news.items():
                self._given.make_room(draft.before.name, draft.before.tables[name].shape, news)
        # Readers that see the new rows must not see the old `next_row`, see StoredTable.
        self._catalogue.remember(*(replace(draft.before, tables=draft.after.tables) for draft in drafts))
        try:
            commits = []
            with self._database.transaction() as run:
                for draft in drafts:
                    taken = [self._bring(draft.before, name, news) for name, news in draft.news.items()]
                    run(*facts_update(draft.after))
                    records = sum((Counter(changes.records) for changes in draft.changes), Counter())
                    is_published = draft.before.published is not None
                    commits.append(Commit(draft.before.name, is_published, tuple(taken), records))
            return commits
        except BaseException:
            self._catalogue.remember(*(draft.before for draft in drafts))
            raise
        finally:
            self._given.clear()

    def _bring(self, generation: Generation, name: str, news: TableNews) -> TableChanges:
        table = generation.tables[name]
        is_followed = generation.published is not None
        writer = self._database.writer
        return bring(writer, self._given, generation.name, table.shape, news, table.next_row, is_followed)

    def _commit_shown(self, batches: Sequence[PendingBatch]) -> list[list[TableChanges]]:
        """Store what was shown; what the tables took, as followers get it, by batch."""
        taken: list[list[TableChanges]] = []
        stored = []
        for batch in batches:
            assert batch.after
            changes = {name: batch.changes_of(batch.after.tables[name].shape) for name in batch.tables}
            for name, each in changes.items():
                self._given.make_room(batch.after.name, batch.after.tables[name].shape, TableNews(each.inserts))
            stored.append((batch.after, changes))
        try:
            with self._database.transaction() as run:
                for after, changes in stored:
                    for name, each in changes.items():
                        store(self._database.writer, self._given, after.name, after.tables[name].shape, each)
                    run(*facts_update(after))
                    taken.append([each.as_changes(after.tables[name].shape) for name, each in changes.items()])
            return taken
        finally:
            self._given.clear()

    def _has_stored(self, batch: PendingBatch, taken: Sequence[TableChanges]) -> None:
        assert batch.after
        name = batch.after.name
        self._stored_writers[name] = batch.after.writers
        generation = self._catalogue.generations[name]
        if generation.published:
            self._feed.add(name, batch.sequence, taken, taken, batch.times)
            if self._listeners.viewers:
                self._listeners.viewers.stored(name, batch.sequence)
        for fields in batch.unknown_fields:
            self._unknown_fields.add(fields)
        changed = {changes.table for changes in taken}
        names = (stable for stable, table in names_of(generation).items() if table in changed)
        self._listeners.notify(Changed(frozenset(names), shown=True))
        batch.answer(batch.sequence)

    def _lock_of(self, generation: str) -> threading.RLock:
        is_known = generation in self._catalogue.generations
        return self._applying.setdefault(generation, threading.RLock()) if is_known else threading.RLock()

    def _check_no_gap(self, generation: Generation, part: FramePart) -> None:
        if generation.misses_before(part):
            raise FrameError(
                "missing_frames",
                f"frame {part.frame} of writer {part.writer} came without those before it",
                "send them again, from the one after `stored` on",
                self.stored_frame(part),
            )

    def _checked(self, part: FramePart) -> Generation:
        """The generation that a part is for, if it may be. Its pipeline is known, see `Fencing.check`."""
        self._fencing.check_known(part.run // RUNS_PER_PIPELINE)
        generation = self._catalogue.generations.get(part.generation)
        if generation is None:
            raise FrameError(
                "unknown_generation", f"generation {ascii(part.generation)[:120]} was not begun", "begin it first"
            )
        if part.run < generation.run:
            raise FrameError(
                "fenced",
                f"run {part.run} of generation {generation.name} sends a frame, but run {generation.run} is there",
                "stop the query that was started before",
            )
        writer = generation.writers.get(part.writer)
        due = (writer.ended if writer else NO_BATCH) + 1
        if part.epoch > due:
            raise FrameError(
                "refused",
                f"batch {part.epoch} of generation {generation.name} came to writer {part.writer} where {due} was due",
                "build a new generation: the store does not hold what the checkpoint counts as delivered",
            )
        if part.run > generation.run:
            self._catalogue.update(generation.name, run=part.run)
            self._staging.forget(generation.name)
        return self._catalogue.generations[part.generation]
