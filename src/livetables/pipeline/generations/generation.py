"""One generation while it exists: its state, its health, its query and its progress."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from livetables.jvm.java_errors import JAVA_ERRORS
from livetables.jvm.session import is_one_process
from livetables.kafka.topics import Topic
from livetables.model.errors import CheckpointError
from livetables.pipeline.flow.modes import PARTITIONS_MAX, Mode, ModeChoice, batch_seconds
from livetables.pipeline.generations.context import GenerationContext
from livetables.pipeline.generations.health import Health, Step, next_step
from livetables.pipeline.generations.progress import Progress
from livetables.pipeline.generations.query_run import QueryRun, failed_start
from livetables.pipeline.generations.state import BUILDS, Event, GenerationState, next_state
from livetables.pipeline.generations.wanted import Wanted
from livetables.pipeline.table_server import DeadLetters, Positions

# A batch in real time that lasts so much longer than twice its time never ends: on a cluster, or while no record comes,
# Spark and Kafka's client wait by clocks that may have been set back.
LATE_SECONDS = 60.0


class RunningGeneration:
    """A generation from its start to its end. One thread uses it, Spark's threads run its query."""

    def __init__(
        self,
        context: GenerationContext,
        name: str,
        wanted: Wanted,
        topics: Mapping[str, Topic],
        state: GenerationState = "building",
    ) -> None:
        self.name = name
        self.wanted = wanted
        self.spec = wanted.applied_to(context.config.spec)
        self.state = state
        self.started = datetime.now(UTC)
        self.since = self._began = time.monotonic()  # it has this state, and it runs
        self.switched: datetime | None = None  # when it took over
        self.lost = 0  # records that it has and neither its successor nor Kafka has
        self.is_held = False  # whether it stays live though it can never be current again: somebody went back to it
        self.health = Health()
        self.progress = Progress(self.spec, topics)
        self._context = context
        self._query: QueryRun | None = None
        self._batch_since = 0.0  # when its query was started, or the last batch ended
        self._url = ""  # of the server, for its frames
        self._choice = ModeChoice(PARTITIONS_MAX if is_one_process(context.config.pipeline.master) else None)

    def move(self, event: Event) -> None:
        self.state = next_state(self.state, event)
        self.since = time.monotonic()

    @property
    def age_seconds(self) -> float:
        """Since it was started, or resumed."""
        return time.monotonic() - self._began

    # Its health

    def next_step(self) -> Step:
        """Return what to do next with it, as it is now."""
        return next_step(self.state, self.check(), time.monotonic())

    def check(self) -> Health:
        """Look at its query, and return its health."""
        if self._query and not self._query.is_active:
            self.health = replace(self.health, query="died")
        elif self._query and self.health.tries and self._query.is_steady(has_brought=self.progress.has_brought):
            self.health = replace(self.health, query="steady")
        return self.health

    def record_death(self) -> None:
        """Record why its query died, and when to restart it."""
        assert self._query
        self.health = self.health.died(self._query.death(self.progress.partitions), time.monotonic())
        self._query = None

    def mark_outdated(self, reason: str) -> None:
        """Record that it can never be right again, and stop its query: it would go on with wrong records."""
        self.health = self.health.outdated_by(reason)
        self.stop()

    def set_checkpoint_aside(self) -> str:
        """Give up a damaged checkpoint; return where it is kept. Another generation must take this one's place."""
        aside = self._context.checkpoints.set_aside(self.name, datetime.now(UTC))
        self.mark_outdated(f"its checkpoint is damaged, and kept as {aside}: {self.health.trouble}")
        return aside

    # Its query

    @property
    def mode(self) -> Mode:
        return self.health.mode

    def start(self, url: str) -> None:
        """Start its query, or restart it where its checkpoint is; its frames go to the server at `url`."""
        self._url = url
        self.health = self.health.tried()
        self._start_query()

    def change_mode(self) -> None:
        """Stop its query, and start it in the mode that was chosen."""
        self.stop()
        self._start_query()

    def stop(self) -> None:
        """Stop its query, in the middle of a batch if need be. Its rows and its checkpoint stay."""
        if self._query is not None:
            self._query.stop()
            self._query = None
            self.health = self.health.stopped()

    def _start_query(self) -> None:
        try:
            self._query = QueryRun(
                self._context,
                self.spec,
                generation=self.name,
                url=self._url,
                mode=self.health.next_mode,
                batch_seconds=self._batch_seconds(),
            )
        except (*JAVA_ERRORS, CheckpointError) as error:
            self.health = self.health.died(failed_start(self._context, error), time.monotonic())
        else:
            self.health = self.health.running()
            self.progress.query_started()
            self._batch_since = time.monotonic()

    def is_working(self) -> bool:
        """Whether its query runs, and has done something since its start."""
        return self._query is not None and self._query.is_working(has_brought=self.progress.has_brought)

    # How far it is, and the mode for that

    def follow(self, positions: Positions) -> None:
        """Record how far it is: `positions` are the server's, by table and partition."""
        batch_before, now = self.progress.batch_id, time.monotonic()
        self._see_last_batch()
        if self.progress.lost_unread:
            self.mark_outdated(self.progress.lost_unread)
        if self._query and self.mode == "real_time":
            length, better = self._query.batch_seconds, self._batch_seconds()
            if self.progress.batch_id != batch_before:
                self._batch_since = now
                self.health = replace(self.health, has_wrong_batches=not length / 2 < better < length * 2)
            elif now - self._batch_since > 2 * length + LATE_SECONDS:
                self.health = replace(self.health, has_wrong_batches=True)
        self.progress.follow(positions)
        self.health = replace(self.health, lag=self.progress.lag)

    def choose_mode(self) -> None:
        """Choose the mode that its query should read in."""
        now, lag, rate = time.monotonic(), self.progress.lag, self.progress.records_per_second
        if self.state not in BUILDS or self.has_read_all or (self.health.starts == 0 and self.progress.is_counted):
            self._choice.next(now, lag, rate, self.progress.partitions)
        elif self.progress.is_uncertain(is_real_time=self._choice.mode == "real_time"):
            self._choice.leave_real_time()
        self.health = replace(self.health, next_mode=self._choice.mode)

    @property
    def is_in_last_mode(self) -> bool:
        """Whether its query reads as it will at the end of its topics: in real time, unless they are too many."""
        return self.mode == self._choice.at_end(self.progress.partitions)

    @property
    def is_following(self) -> bool:
        """Whether it keeps up with its topics. In the first seconds of a JVM it does not."""
        return self.is_in_last_mode and self.is_working() and self.progress.is_near_end

    @property
    def records_read(self) -> int:
        """How many of the records that its topics had at its start it has read, about."""
        self._see_last_batch()
        return self.progress.records_read

    @property
    def has_read_all(self) -> bool:
        """Whether everything that its topics had at its start is in its tables."""
        self._see_last_batch()
        return self.progress.has_read_all

    def _see_last_batch(self) -> None:
        progress = self._query.progress if self._query else None
        if progress is not None:
            self.progress.batch_finished(progress)

    def _batch_seconds(self) -> int:
        return batch_seconds(self._context.config.pipeline.batch_seconds, self.progress.records_per_second)

    # Compared with another generation

    def ends_for(self, before: RunningGeneration | None) -> dict[str, Mapping[int, int] | None]:
        """Return the offsets, by table and partition, before which records of the previous generation should be here.

        A build has everything that its topics had at its start, unless it does not start with their first record. Later
        records of the previous generation are no loss, but one that cannot continue has none. A generation that
        somebody goes back to lacks records that Kafka still has; only those that Kafka no longer has are lost.
        """
        is_build = self.state in BUILDS
        is_moving = before is not None and not before.health.outdated
        return {
            table.publish: (topic.ends if is_moving else None)
            if is_build and table.start == "earliest"
            else self.progress.seen.get(table.topic, topic).beginnings
            for table in self.spec.tables
            if (topic := self.progress.targets.get(table.topic))
        }

    def misfit(self, before: Wanted, dead_letters: Mapping[str, DeadLetters], rows: Mapping[str, int]) -> str | None:
        """Return, as a sentence, a topic of which every record is a dead letter, among those not wanted before.

        Dead letters and rows are counted by what readers call the table.
        """
        for table in self.spec.tables:
            dead = dead_letters.get(table.publish)
            if before.topics.get(table.name) != table.topic and dead and not rows.get(table.publish):
                return (
                    f"none of the {dead.count:,} records read from topic {table.topic} fits table {table.name}, "
                    f"the first because: {dead.reason}"
                )
        return None
