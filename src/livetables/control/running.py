"""One generation as it runs: its streaming query, its checkpoint, its way to the server, and how it fares."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from livetables.config import Config, server_ca
from livetables.control.generation import Event, State, next_state
from livetables.control.resolve import Wanted
from livetables.pipeline.callback import Callback
from livetables.pipeline.checkpoints import Checkpoints
from livetables.pipeline.delivery import Delivered, Delivery
from livetables.pipeline.flight_sink import FlightSink
from livetables.pipeline.java_errors import JAVA_ERRORS, java_causes, with_causes
from livetables.pipeline.kafka_clients import Redaction, with_own_login
from livetables.pipeline.lag import records_read, source_reports
from livetables.pipeline.phases import batch_times
from livetables.pipeline.query import start_generation
from livetables.pipeline.topics import Topic
from livetables.spec import GenerationSpec
from livetables.wire import BatchTimes, SourceReport

LAYOUT_VERSION = 1  # of what a checkpoint holds; a new one builds every generation anew
FIRST_DELAY_SECONDS = 1.0
DELAY_SECONDS_MAX = 30.0
SINK_PATIENCE_SECONDS = 60.0
TRIES = 3  # without a batch in between, until a query counts as failed
CAUSE_CHARACTERS_MAX = 400
NAME = re.compile(r"g(?P<number>[0-9]+)-(?P<fingerprint>[0-9a-f]{8})")


@dataclass(frozen=True)
class Ground:
    """What all generations of a pipeline stand on."""

    spark: SparkSession
    config: Config
    token: str
    checkpoints: Checkpoints
    token_file: str | None = None  # where another key is found when the server does not take this one

    def sink(self, patience_seconds: float = SINK_PATIENCE_SECONDS) -> FlightSink:
        return FlightSink(
            self.config.pipeline.server,
            self.token,
            token_file=self.token_file,
            ca_file=server_ca(self.config),
            patience_seconds=patience_seconds,
        )

    def fingerprint(self, spec: GenerationSpec, topics: Mapping[str, Topic]) -> str:
        """Of everything that a checkpoint depends on: with another one it cannot be resumed."""
        settings = {name: value for name, value in self.config.pipeline.spark.items() if name.startswith("spark.sql.")}
        partitions = self.spark.conf.get("spark.sql.shuffle.partitions")
        topic_ids = sorted((topic.name, topic.topic_id) for topic in topics.values())
        said = repr((LAYOUT_VERSION, spec, partitions, sorted(settings.items()), topic_ids))
        return hashlib.sha256(said.encode()).hexdigest()[:8]


class RunningGeneration:
    """A generation from its start to its end. One thread uses it, Spark's threads run its query."""

    def __init__(
        self, ground: Ground, name: str, wanted: Wanted, topics: Mapping[str, Topic], state: State = "building"
    ) -> None:
        self.name = name
        self.wanted = wanted
        self.spec = wanted.applied_to(ground.config.spec)
        self.state = state
        self.since = self.started = datetime.now(UTC)  # it has this state, and it runs
        self.switched: datetime | None = None  # when it took over
        self.seen = dict(topics)  # as they were looked at last
        self.rows = 0  # in all of its tables, when they were counted last
        self.trouble: str | None = None  # why its query died
        self.blocked: str | None = None  # why its topics cannot be read
        self.outdated: str | None = None  # why it can never be right again, and another must take its place
        self.starts = 0  # of its query
        self.tries = 0  # starts without a batch since
        self.due = 0.0  # when to start it (again)
        self._ground = ground
        self._targets = dict(topics)
        self._query: StreamingQuery | None = None
        self._delivery: Delivery | None = None
        self._delivered = Delivered()
        self._callback = Callback()
        self._told_batch_id: int | None = None  # the last whose times were told

    def move(self, event: Event) -> None:
        self.state = next_state(self.state, event)
        self.since = datetime.now(UTC)

    # Its query

    @property
    def has_query(self) -> bool:
        return self._query is not None

    def start(self) -> None:
        """Start its query, or start it again where its checkpoint is."""
        self.starts += 1
        self.tries += 1
        self._delivery = Delivery(self._ground.sink(), self._delivered)
        self._callback = Callback()
        config = self._ground.config
        try:
            self._query = start_generation(
                self._ground.spark,
                self.spec,
                generation=self.name,
                kafka_properties=with_own_login(config.kafka.client_properties()),
                checkpoint=self._ground.checkpoints.path(self.name),
                sink=self._delivery,
                max_records_per_batch=config.pipeline.max_records_per_batch,
                callback=self._callback,
            )
        except JAVA_ERRORS as error:
            self._delivery.close()
            self._wait(_first_line(str(error)))

    def is_working(self) -> bool:
        """Whether its query runs, and has done something since its start."""
        return self._query is not None and self._query.isActive and self._query.lastProgress is not None

    def has_died(self) -> bool:
        return self._query is not None and not self._query.isActive

    def bury(self) -> None:
        """Take note of why its query died, and when to start it again."""
        assert self._query
        assert self._delivery
        error, causes = self._callback.error, _causes(self._query, self._callback)
        told = self._delivery.refused or self._delivery.unanswered
        self._wait(f"{told.problem}; {told.cure}" if told else _root_cause(causes, error))
        if self._delivery.refused:
            self.outdated = f"the server does not have what was delivered to it: {self._delivery.refused.problem}"
        elif any("KAFKA_DATA_LOSS" in (cause.getMessage() or "") for cause in causes):
            self.outdated = self.trouble
        self._release()

    def stop(self) -> None:
        """End its query, in the middle of a batch if need be. What it has stays."""
        if self._query is not None and self._delivery is not None:
            self._delivery.close()  # a batch that waits for the server would hold up the stop
            self._query.stop()
            self._release()

    def _release(self) -> None:
        """Its query has ended: what it used is not needed any more."""
        if self._delivery is not None:
            self._delivery.close()
        self._callback.close()
        self._query = None

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
        """How many of those it has read."""
        return records_read(self._query.lastProgress if self._query else None, self._targets)

    def reports(self) -> list[SourceReport]:
        """How far behind its topics it was after its last batch."""
        progress = self._query.lastProgress if self._query else None
        return source_reports(progress, self.spec) if progress else []

    def batch_times(self) -> list[BatchTimes]:
        """What its batches took, those since the last call, the newest first."""
        found = batch_times(self._query, self._callback.steps, self._told_batch_id) if self._query else {}
        self._told_batch_id = max(found, default=self._told_batch_id)
        return list(found.values())

    def misfit(self, before: Wanted) -> str | None:
        """Says of which topic not one record fits its table, among those that were not wanted before."""
        rows, dead = self._delivered.upserts, self._delivered.dead_letters
        for table in self.spec.tables:
            source = table.publish
            if before.topics.get(table.name) != table.topic and dead[source] and not rows[source]:
                return (
                    f"none of the {dead[source]:,} records read from topic {table.topic} fits table {table.name}, "
                    f"the first because: {self._delivered.first_reasons[source]}"
                )
        return None

    def _wait(self, trouble: str) -> None:
        said = Redaction(self._ground.config.kafka.client_properties()).applied(trouble)
        self.trouble = said if len(said) <= CAUSE_CHARACTERS_MAX else f"{said[:CAUSE_CHARACTERS_MAX]}…"
        self.due = time.monotonic() + min(DELAY_SECONDS_MAX, FIRST_DELAY_SECONDS * 2 ** (self.tries - 1))


def _causes(query: StreamingQuery, callback: Callback) -> list[Any]:
    """What Java threw when a query died, down to its root. Of what a call of Python ends with, Spark has the text."""
    if callback.error is not None:
        return java_causes(callback.error)
    failure = query._jsq.exception()
    return list(with_causes(failure.get().getCause())) if failure.isDefined() else []


def _root_cause(causes: Sequence[Any], error: Exception | None) -> str:
    """The root cause in one sentence: what it is called and the first line that it says."""
    if causes:
        name, said = causes[-1].getClass().getSimpleName(), causes[-1].getMessage() or ""
    elif error:
        name, said = type(error).__name__, str(error)
    else:
        return "Spark stopped the query without saying why"
    return f"{name}: {_first_line(said)}".removesuffix(": ")


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
