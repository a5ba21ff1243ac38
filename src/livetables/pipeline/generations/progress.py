"""How far a generation has read its topics: what Spark and the server report of it, put together."""

from __future__ import annotations

import time
from collections.abc import Mapping

from pyspark.sql.streaming.listener import StreamingQueryProgress

from livetables.kafka.topics import Topic
from livetables.model.spec import GenerationSpec
from livetables.model.wire import SourceReport
from livetables.pipeline.flow.plan import scopes_of
from livetables.pipeline.generations.lag import (
    Offsets,
    committed_offsets,
    has_every_record,
    lag_of,
    lost_unread,
    records_read,
)
from livetables.pipeline.table_server import Positions, StoredGeneration

LAG_FOLLOWING = 100  # records that may be on their way; or so many as come in LAG_SECONDS_FOLLOWING
LAG_SECONDS_FOLLOWING = 0.5
UNCERTAIN_SECONDS = 2.0  # near the end of its topics, until Spark is asked how far a build is


class Progress:
    """Progress of one generation in its topics. One thread uses it."""

    def __init__(self, spec: GenerationSpec, topics: Mapping[str, Topic]) -> None:
        self.seen = dict(topics)  # as of the last check
        self.rows = 0  # in all of its tables, as of the last count
        self.reports: list[SourceReport] = []  # how far behind its topics it is, by table
        self.records_per_second = 0.0  # that come to its topics
        self.batch_id: int | None = None  # of the last batch that Spark has finished
        self.lost_unread: str | None = None  # what Kafka has deleted before it was read, if Spark does not find out
        self.has_brought = False  # whether the server has got records since its query was started
        self.targets: Mapping[str, Topic] = dict(topics)  # as they were at its start
        self._spec = spec
        self._beginnings = _beginnings(topics)  # as they were when that batch was recorded, or the query started since
        self._committed: Offsets = {}  # by topic and partition: everything before was read, as far as it is known
        self._stored_records = 0  # that the server has
        self._stored: Positions | None = None  # how far they go, if it was asked since the start of the query
        self._near_end_since: float | None = None
        self._ends_before: tuple[float, int] | None = None

    # What is reported of it

    def query_started(self) -> None:
        self._stored, self.has_brought = None, False
        self._beginnings = _beginnings(self.seen)

    def batch_finished(self, progress: StreamingQueryProgress) -> None:
        """Record the last batch that Spark reports."""
        committed = committed_offsets(progress)
        if progress.batchId != self.batch_id:
            self.batch_id = progress.batchId
            self.lost_unread = lost_unread(committed, self._beginnings)
            self._beginnings = _beginnings(self.seen)
        for topic, offsets in committed.items():
            self._committed[topic] = {**self._committed.get(topic, {}), **offsets}

    def follow(self, positions: Positions) -> None:
        """Record how far it is: `positions` are the server's, by table and partition."""
        self._record_positions(positions)
        self.reports = [
            SourceReport(
                table.publish,
                table.topic,
                lag_of(
                    self.seen[table.topic],
                    positions.get(table.name, {}),
                    self._committed.get(table.topic, {}),
                    # Where a table begins at a time, the first batch shows where that was.
                    targets.ends if table.start == "latest" and (targets := self.targets.get(table.topic)) else None,
                ),
            )
            for table in self._spec.tables
            if table.topic in self.seen
        ]
        self._measure_rate()

    def count(self, stored: StoredGeneration) -> None:
        """Record what the server has: in real time, Spark does not report how far a build has come."""
        self._record_positions(stored.positions)
        self.rows = sum(stored.rows.values())
        self._stored_records = sum(stored.records.values())
        if not self.is_counted:
            return
        complete: Offsets = {}
        for table in self._spec.tables:
            reached = stored.positions.get(table.name, {})
            if not has_every_record(self.targets[table.topic], reached, stored.records.get(table.publish, 0)):
                return
            before = complete.get(table.topic, reached)
            complete[table.topic] = {number: min(end, before.get(number, 0)) for number, end in reached.items()}
        for topic, offsets in complete.items():
            known = self._committed.get(topic, {})
            self._committed[topic] = {**known, **{n: max(o, known.get(n, 0)) for n, o in offsets.items()}}

    def _record_positions(self, positions: Positions) -> None:
        self.has_brought = self.has_brought or (self._stored is not None and positions != self._stored)
        self._stored = positions

    # How far it is

    @property
    def is_counted(self) -> bool:
        """Whether the records in its tables show how far it is: all are read, and each goes to one writer only."""
        return all(
            table.start == "earliest" and len(scopes_of(table, self._spec)) <= 1 and table.topic in self.targets
            for table in self._spec.tables
        )

    @property
    def lag(self) -> int:
        """How many records its topics have that the server does not."""
        return sum(report.lag_records for report in self.reports)

    @property
    def is_near_end(self) -> bool:
        """Whether the lag is no more than the records that are on their way."""
        return self.lag <= max(LAG_FOLLOWING, LAG_SECONDS_FOLLOWING * self.records_per_second)

    @property
    def records_to_read(self) -> int:
        """How many records its topics had at its start."""
        return sum(topic.records for topic in self.targets.values())

    @property
    def records_read(self) -> int:
        """How many of those it has read, about."""
        stored = min(self._stored_records, self.records_to_read)
        return max(stored, records_read(self._committed, self.targets))

    @property
    def has_read_all(self) -> bool:
        """Whether everything that its topics had at its start is in its tables."""
        return records_read(self._committed, self.targets) >= self.records_to_read

    def is_uncertain(self, *, is_real_time: bool) -> bool:
        """Whether a build in real time seems to be at the end of its topics, and its records do not prove it.

        Offsets may be those of aborted transactions, or compacted away. At the end of a micro-batch Spark knows.
        """
        if not is_real_time or not self.is_near_end:
            self._near_end_since = None
        elif self._near_end_since is None:
            self._near_end_since = time.monotonic()
        return self._near_end_since is not None and time.monotonic() - self._near_end_since >= UNCERTAIN_SECONDS

    @property
    def partitions(self) -> int:
        """How many partitions its topics have."""
        return sum(len(topic.ends) for topic in self.seen.values())

    @property
    def records_sent(self) -> int:
        """How many records its topics have had, by where they ended as of the last check."""
        return sum(end for topic in self.seen.values() for end in topic.ends.values())

    def _measure_rate(self) -> None:
        """Measure how many records come per second."""
        now, ends = time.monotonic(), self.records_sent
        if self._ends_before is not None:
            before, ends_before = self._ends_before
            if now - before >= 1.0:
                rate = max(0, ends - ends_before) / (now - before)
                self.records_per_second += (rate - self.records_per_second) * 0.3
                self._ends_before = (now, ends)
        else:
            self._ends_before = (now, ends)


def _beginnings(topics: Mapping[str, Topic]) -> Mapping[str, Mapping[int, int]]:
    return {name: topic.beginnings for name, topic in topics.items()}
