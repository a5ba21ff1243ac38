"""One generation as it runs: its streaming query, its checkpoint, its mode, and how far it is."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from livetables.backoff import delay_seconds
from livetables.config.load import server_ca
from livetables.config.values import Config
from livetables.jvm.java_errors import JAVA_ERRORS, is_of_checkpoint, java_causes, printed, with_causes
from livetables.kafka.clients import with_own_login
from livetables.kafka.redaction import Redaction
from livetables.kafka.topics import Topic
from livetables.model.spec import GenerationSpec
from livetables.model.wire import RUNS_PER_PIPELINE, SourceReport
from livetables.pipeline.flow.modes import Mode, ModeChoice, batch_seconds
from livetables.pipeline.flow.plan import scopes_of
from livetables.pipeline.flow.query import Target, start_generation
from livetables.pipeline.generations.checkpoints import Checkpoints
from livetables.pipeline.generations.lag import Offsets, committed_offsets, has_every_record, lag_of, records_read
from livetables.pipeline.generations.state import Event, GenerationState, next_state
from livetables.pipeline.generations.wanted import Wanted
from livetables.pipeline.server_client import DeadLetters, FlightSink, StoredGeneration

LAYOUT_VERSION = 2  # of what a checkpoint holds; a new one builds every generation anew
FIRST_DELAY_SECONDS = 1.0
DELAY_SECONDS_MAX = 30.0
SINK_PATIENCE_SECONDS = 60.0
TRIES = 3  # without a batch in between, until a query counts as failed
LAG_FOLLOWING = 100  # records that may be on their way; or so many as come in LAG_SECONDS_FOLLOWING
LAG_SECONDS_FOLLOWING = 0.5
UNCERTAIN_SECONDS = 2.0  # near the end of its topics, until Spark is asked how far a build is
STEADY_SECONDS = 5.0  # that a query in real time has to run, to count as working again
CAUSE_CHARACTERS_MAX = 400
NAME = re.compile(r"g(?P<number>[0-9]+)-(?P<fingerprint>[0-9a-f]{8})")
REFUSAL = re.compile(r"(unknown_generation|refused|fenced): (.*)", re.DOTALL)  # as FrameWriter says it
TOO_FEW_SLOTS = "CONCURRENT_SCHEDULER_INSUFFICIENT_SLOT"


@dataclass
class GenerationContext:
    """Context that all generations of a pipeline share."""

    spark: SparkSession
    config: Config
    token: str
    checkpoints: Checkpoints
    token_file: str | None = None  # where another key is found when the server does not take this one
    pipeline_number: int = 0  # which the server has given this pipeline, to refuse those before it
    _starts: count[int] = field(default_factory=lambda: count(1))

    def sink(self, patience_seconds: float = SINK_PATIENCE_SECONDS) -> FlightSink:
        """The server, with the pipeline's number if it has one already."""
        return FlightSink(
            self.config.pipeline.server,
            self.token,
            token_file=self.token_file,
            ca_file=server_ca(self.config),
            number=self.pipeline_number or None,
            patience_seconds=patience_seconds,
        )

    def target(self, url: str) -> Target:
        """Where the writers of the next query send to."""
        ca_file = server_ca(self.config) if url.startswith("https:") else None
        return Target(
            url,
            self.token,
            self.pipeline_number * RUNS_PER_PIPELINE + next(self._starts),
            token_file=self.token_file,
            authorities=Path(ca_file).read_text() if ca_file else None,
            patience_seconds=SINK_PATIENCE_SECONDS,
        )

    def fingerprint(self, spec: GenerationSpec, topics: Mapping[str, Topic]) -> str:
        """Of everything that a checkpoint depends on: with another one it cannot be resumed."""
        settings = {name: value for name, value in self.config.pipeline.spark.items() if name.startswith("spark.sql.")}
        partitions = self.spark.conf.get("spark.sql.shuffle.partitions")
        topic_ids = sorted((topic.name, topic.topic_id) for topic in topics.values())
        text = repr((LAYOUT_VERSION, spec, partitions, sorted(settings.items()), topic_ids))
        return hashlib.sha256(text.encode()).hexdigest()[:8]


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
        self.seen = dict(topics)  # as they were looked at last
        self.rows = 0  # in all of its tables, when they were counted last
        self.lost = 0  # records that it has and neither its successor nor Kafka has
        self.is_held = False  # whether it stays live though it can never be current again: somebody went back to it
        self.trouble: str | None = None  # why its query died
        self.blocked: str | None = None  # why its topics cannot be read
        self.outdated: str | None = None  # why it can never be right again, and another must take its place
        self._is_checkpoint_doubted = False  # whether that came from reading its checkpoint
        self.starts = 0  # of its query
        self.tries = 0  # starts without a sign that it works since
        self.due = 0.0  # when to start it (again)
        self.url = ""  # of the server, for its frames
        self._context = context
        self._targets = dict(topics)
        self._query: StreamingQuery | None = None
        self._query_started = 0.0
        self._choice = ModeChoice()
        self._batch_seconds = 0
        self._committed: Offsets = {}  # by topic and partition: everything before was read, as far as it is known
        self._stored_records = 0  # that the server has
        self._stored: Mapping[str, Mapping[int, int]] | None = None  # how far they go, if it was asked since the start
        self._has_brought = False  # whether they are more since its query was started
        self._near_end_since: float | None = None
        self._batch_id: int | None = None  # of that batch
        self._reports: list[SourceReport] = []
        self._ends_before: tuple[float, int] | None = None
        self._records_per_second = 0.0

    def move(self, event: Event) -> None:
        self.state = next_state(self.state, event)
        self.since = time.monotonic()

    @property
    def age_seconds(self) -> float:
        """Since it was started, or resumed."""
        return time.monotonic() - self._began

    # Its query

    @property
    def mode(self) -> Mode:
        return self._choice.mode

    @property
    def has_query(self) -> bool:
        return self._query is not None

    def start(self, url: str) -> None:
        """Start its query, or start it again where its checkpoint is; its frames go to the server at `url`."""
        self.url = url
        self.starts += 1
        self.tries += 1
        self._start_query()

    def _start_query(self) -> None:
        config = self._context.config
        checkpoints = self._context.checkpoints
        if not checkpoints.has_commits(self.name):
            # Without one there is no state to resume, and Spark does not start on what a crash has left of it. Where
            # reading began stays.
            checkpoints.remove_state(self.name)
        self._batch_seconds = batch_seconds(config.pipeline.batch_seconds, self._records_per_second)
        try:
            self._query = start_generation(
                self._context.spark,
                self.spec,
                generation=self.name,
                kafka_properties=with_own_login(config.kafka.client_properties()),
                checkpoint=checkpoints.path(self.name),
                target=self._context.target(self.url),
                mode=self.mode,
                max_records_per_batch=config.pipeline.max_records_per_batch,
                batch_seconds=self._batch_seconds,
            )
            self._query_started = time.monotonic()
            self._stored, self._has_brought = None, False
        except JAVA_ERRORS as error:
            self._wait(_first_line(str(error)))
            self._doubt_checkpoint(java_causes(error))

    def is_working(self) -> bool:
        """Whether its query runs, and has done something since its start: a batch, or in real time records or tasks."""
        if self._query is None or not self._query.isActive:
            return False
        if self.mode == "real_time" and (self._has_brought or self._tasks_run()):
            return True
        return self._query.lastProgress is not None

    def is_steady(self) -> bool:
        """Whether it works, and has done so long enough to forget earlier failures."""
        return self.is_working() and (
            self.mode == "micro_batch" or time.monotonic() - self._query_started >= STEADY_SECONDS
        )

    def has_died(self) -> bool:
        return self._query is not None and not self._query.isActive

    def record_death(self) -> None:
        """Record why its query died, and when to start it again."""
        assert self._query
        failure = self._query._jsq.exception()
        causes = list(with_causes(failure.get().getCause())) if failure.isDefined() else []
        messages = [cause.getMessage() or "" for cause in causes]
        refusal = next((found for message in messages if (found := REFUSAL.match(message))), None)
        if refusal:
            self._wait(refusal[2])
        elif any(TOO_FEW_SLOTS in message for message in messages):
            self._wait(self._too_few_slots())
        else:
            self._wait(_root_cause(causes))
            self._doubt_checkpoint(causes)
        if refusal and refusal[1] != "fenced":
            self.outdated = f"the server does not have what was delivered to it: {self.trouble}"
        elif any("KAFKA_DATA_LOSS" in message for message in messages):
            self.outdated = self.trouble
        self._query = None

    def _doubt_checkpoint(self, causes: Sequence[Any]) -> None:
        self._is_checkpoint_doubted = bool(causes) and is_of_checkpoint(printed(self._context.spark, causes[0]))

    @property
    def is_damaged(self) -> bool:
        """Whether its query has died again and again, the last time because of what its checkpoint has."""
        return self.has_failed() and self._is_checkpoint_doubted

    def set_checkpoint_aside(self) -> str:
        """Give up a damaged checkpoint; where it is kept. Another generation must take this one's place."""
        aside = self._context.checkpoints.set_aside(self.name, datetime.now(UTC))
        self.outdated = f"its checkpoint is damaged, and kept as {aside}: {self.trouble}"
        return aside

    def stop(self) -> None:
        """End its query, in the middle of a batch if need be. What it has stays."""
        if self._query is not None:
            self._query.stop()
            self._query = None

    # How far it is

    def follow(self, positions: Mapping[str, Mapping[int, int]]) -> None:
        """Take note of how far it is: `positions` are what the server has, by table and partition."""
        self._look_at_progress()
        self._note(positions)
        self._reports = [
            SourceReport(
                table.publish,
                table.topic,
                lag_of(
                    self.seen[table.topic],
                    positions.get(table.name, {}),
                    self._committed.get(table.topic, {}),
                    self._first_offsets(table.topic, table.start == "earliest"),
                ),
            )
            for table in self.spec.tables
            if table.topic in self.seen
        ]
        self._measure_rate()

    def _note(self, positions: Mapping[str, Mapping[int, int]]) -> None:
        self._has_brought = self._has_brought or (self._stored is not None and positions != self._stored)
        self._stored = positions

    def count(self, stored: StoredGeneration) -> None:
        """Take note of what the server has: in real time, Spark does not report how far a build has come."""
        self._note(stored.positions)
        self.rows = sum(stored.rows.values())
        self._stored_records = sum(stored.records.values())
        if not self._is_counted:
            return
        complete: Offsets = {}
        for table in self.spec.tables:
            reached = stored.positions.get(table.name, {})
            if not has_every_record(self._targets[table.topic], reached, stored.records.get(table.publish, 0)):
                return
            before = complete.get(table.topic, reached)
            complete[table.topic] = {number: min(end, before.get(number, 0)) for number, end in reached.items()}
        for topic, offsets in complete.items():
            known = self._committed.get(topic, {})
            self._committed[topic] = {**known, **{n: max(o, known.get(n, 0)) for n, o in offsets.items()}}

    @property
    def _is_counted(self) -> bool:
        """Whether the records in its tables show how far it is: all are read, and each goes to one writer only."""
        return all(
            table.start == "earliest" and len(scopes_of(table, self.spec)) <= 1 and table.topic in self._targets
            for table in self.spec.tables
        )

    @property
    def lag(self) -> int:
        """How many records its topics have that the server does not."""
        return sum(report.lag_records for report in self._reports)

    @property
    def is_following(self) -> bool:
        """Whether it keeps up with its topics in real time. In the first seconds of a JVM it does not."""
        return self.mode == "real_time" and self.is_working() and self.lag <= self._lag_following

    @property
    def _lag_following(self) -> float:
        return max(LAG_FOLLOWING, LAG_SECONDS_FOLLOWING * self._records_per_second)

    def choose_mode(self) -> Mode | None:
        """The mode that its query should change to, if it should."""
        before = self.mode
        if self.state in ("building", "catching_up") and not self.has_read_all:
            if self.starts == 0 and self._is_counted:
                self._choice.next(time.monotonic(), self.lag, self._records_per_second)
            elif self._is_uncertain():
                self._choice.leave_real_time()
        else:
            self._choice.next(time.monotonic(), self.lag, self._records_per_second)
        return self.mode if self.mode != before else None

    def _is_uncertain(self) -> bool:
        """Whether a build in real time seems to be at the end of its topics, and its records do not prove it.

        Offsets may be those of aborted transactions, or compacted away. At the end of a micro-batch Spark knows.
        """
        if self.mode == "micro_batch" or self.lag > self._lag_following:
            self._near_end_since = None
        elif self._near_end_since is None:
            self._near_end_since = time.monotonic()
        return self._near_end_since is not None and time.monotonic() - self._near_end_since >= UNCERTAIN_SECONDS

    def change_mode(self) -> None:
        """Go on in the mode that was chosen."""
        self.stop()
        self._start_query()

    def adjust_batches(self) -> bool:
        """Whether batches in real time should have another length from now on: true just after one has ended."""
        if self.mode != "real_time" or self._query is None:
            return False
        before = self._batch_id
        self._look_at_progress()
        wanted = batch_seconds(self._context.config.pipeline.batch_seconds, self._records_per_second)
        return self._batch_id != before and not self._batch_seconds / 2 < wanted < self._batch_seconds * 2

    def _look_at_progress(self) -> None:
        progress = self._query.lastProgress if self._query else None
        if progress is not None:
            self._batch_id = progress.batchId
            for topic, offsets in committed_offsets(progress).items():
                self._committed[topic] = {**self._committed.get(topic, {}), **offsets}

    def _first_offsets(self, topic: str, from_beginning: bool) -> Mapping[int, int]:
        """Where reading began, as far as Spark has not reported it."""
        targets = self._targets.get(topic)
        if targets is None:
            return {}
        return targets.beginnings if from_beginning else targets.ends

    def _measure_rate(self) -> None:
        """How many records come per second."""
        now, ends = time.monotonic(), sum(end for topic in self.seen.values() for end in topic.ends.values())
        if self._ends_before is not None:
            before, ends_before = self._ends_before
            if now - before >= 1.0:
                rate = max(0, ends - ends_before) / (now - before)
                self._records_per_second += (rate - self._records_per_second) * 0.3
                self._ends_before = (now, ends)
        else:
            self._ends_before = (now, ends)

    # How it fares

    @property
    def problem(self) -> str | None:
        """Why it does not move, if it does not."""
        return self.blocked or self.trouble

    def has_failed(self) -> bool:
        """Whether its query has died again and again."""
        return self.tries >= TRIES and not self.has_query

    @property
    def records_to_read(self) -> int:
        """How many records its topics had at its start."""
        return sum(topic.records for topic in self._targets.values())

    @property
    def records_read(self) -> int:
        """How many of those it has read, about."""
        self._look_at_progress()
        stored = min(self._stored_records, self.records_to_read)
        return max(stored, records_read(self._committed, self._targets))

    @property
    def has_read_all(self) -> bool:
        """Whether everything that its topics had at its start is in its tables."""
        self._look_at_progress()
        return records_read(self._committed, self._targets) >= self.records_to_read

    def reports(self) -> list[SourceReport]:
        """How far behind its topics it is."""
        return self._reports

    def ends_for(self, before: RunningGeneration | None) -> dict[str, Mapping[int, int] | None]:
        """The offsets, by table and partition, before which a record of the generation before should be in this one.

        A build has everything that its topics had at its start, unless it does not begin with their first record. What
        the one before has of later ones is no loss, but one that cannot go on has no later ones. A generation that
        somebody goes back to lacks what Kafka has still; only what Kafka has no longer is lost.
        """
        is_build = self.state in ("building", "catching_up")
        is_moving = before is not None and not before.outdated
        return {
            table.publish: (topic.ends if is_moving else None)
            if is_build and table.start == "earliest"
            else self.seen.get(table.topic, topic).beginnings
            for table in self.spec.tables
            if (topic := self._targets.get(table.topic))
        }

    def misfit(self, before: Wanted, dead_letters: Mapping[str, DeadLetters], rows: Mapping[str, int]) -> str | None:
        """Says of which topic not one record is a row of its table, among those that were not wanted before.

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

    def _tasks_run(self) -> bool:
        """Whether all tasks of a query in real time are there: from then on records pass at once."""
        assert self._query
        tracker = self._context.spark.sparkContext.statusTracker()
        stages = [
            tracker.getStageInfo(stage)
            for job in tracker.getJobIdsForGroup(self._query.runId)
            if (info := tracker.getJobInfo(job)) and info.status == "RUNNING"
            for stage in info.stageIds
        ]
        return bool(stages) and all(stage and 0 < stage.numTasks == stage.numActiveTasks for stage in stages)

    def _too_few_slots(self) -> str:
        partitions = self._context.spark.conf.get("spark.sql.shuffle.partitions")
        read = sum(len(topic.ends) for topic in self.seen.values())
        return (
            f"{self._context.config.pipeline.master} has too few slots: in real time each of the {read} topic "
            f"partitions and {partitions} shuffle partitions of every generation that runs needs one; give the cluster "
            "more cores, or set pipeline.shuffle_partitions and generations.max_lingering lower"
        )

    def _wait(self, trouble: str) -> None:
        text = Redaction(self._context.config.kafka.client_properties()).applied(trouble)
        self.trouble = text if len(text) <= CAUSE_CHARACTERS_MAX else f"{text[:CAUSE_CHARACTERS_MAX]}…"
        self.due = time.monotonic() + delay_seconds(self.tries, FIRST_DELAY_SECONDS, DELAY_SECONDS_MAX)


def _root_cause(causes: Sequence[Any]) -> str:
    """The root cause in one sentence: what it is called and the first line that it says."""
    if not causes:
        return "Spark stopped the query without saying why"
    name, text = causes[-1].getClass().getSimpleName(), causes[-1].getMessage() or ""
    return f"{name}: {_first_line(text)}".removesuffix(": ")


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
