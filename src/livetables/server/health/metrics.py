"""What the server counts, for Prometheus. Labels are tables, endpoints (`door`), phases and states: few of each.

What the pipeline reports, and what the store knows anyway, is not counted but looked up when somebody asks: `Now`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    Metric,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from livetables.model.change import Batch, TableChanges
from livetables.model.errors import RequestError
from livetables.model.spec import CONTROL_TABLES, DEAD_LETTERS
from livetables.model.wire import PipelineReport, SourceReport
from livetables.server.health.freshness import State, Status
from livetables.server.storage.generation import Generation
from livetables.server.storage.writer import Commit

disable_created_metrics()  # type: ignore[no-untyped-call]  # they double the series, and nobody asks for them

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
LATENCY_SECONDS = (
    *(0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 1.5, 2),
    *(3, 5, 10, 30, 60, 300, 3600),
)
LAG_RECORDS = (0, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000)
SQL = "(sql)"  # what the rows of SQL's answers are counted under: they are of any tables


class Metrics:
    """One registry a server, so that two in one process do not meet."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        Info("livetables_build", "The server's version", registry=registry).info({"version": version("livetables")})
        self.batches = Counter("livetables_batches", "Batches committed", registry=registry)
        self.batch_seconds = Histogram(
            "livetables_batch_seconds", "Time to commit a batch", buckets=SECONDS, registry=registry
        )
        self.frames_received = Counter("livetables_frames_received", "Frames applied", registry=registry)
        self.frame_seconds = Histogram(
            "livetables_frame_seconds",
            "Time to apply a frame, with those that waited with it",
            buckets=SECONDS,
            registry=registry,
        )
        self.records = Counter(
            "livetables_records", "Records taken from Kafka, by the table they are for", ["table"], registry=registry
        )
        self.dead_letters = Counter(
            "livetables_dead_letters", "Records that are no rows of their table", ["table"], registry=registry
        )
        self.rows = Counter(
            "livetables_rows", "Rows upserted and deleted, in all generations", ["table", "change"], registry=registry
        )
        self.latency = TableHistogram(
            "livetables_latency_seconds",
            "From a row's newest Kafka timestamp until readers can see it; of rows of published generations",
            LATENCY_SECONDS,
        )
        registry.register(self.latency)
        self.arrival = TableHistogram(
            "livetables_arrival_seconds",
            "From a record's Kafka timestamp until the server has been sent it; of records of published generations",
            LATENCY_SECONDS,
        )
        registry.register(self.arrival)
        self.spark = TableHistogram(
            "livetables_spark_seconds",
            "From a record's Kafka timestamp until it has left Spark; of records of published generations",
            LATENCY_SECONDS,
        )
        registry.register(self.spark)
        self.lag = Histogram(
            "livetables_lag_sampled_records",
            "Records still to be read, at each report of the pipeline",
            ["table"],
            buckets=LAG_RECORDS,
            registry=registry,
        )
        self.clients = Gauge("livetables_clients", "WebSocket clients that have logged in", registry=registry)
        self.subscriptions = Gauge("livetables_subscriptions", "Subscriptions of all clients", registry=registry)
        self.viewports = Gauge("livetables_viewports", "Distinct viewports", registry=registry)
        self.evaluations = Counter(
            "livetables_viewport_evaluations", "How often the store was asked for a viewport", registry=registry
        )
        self.advances = Counter(
            "livetables_viewport_advances", "How often a frame has changed a viewport in memory", registry=registry
        )
        self.checksum_mismatches = Counter(
            "livetables_checksum_mismatches",
            "Windows whose checksum a client found to be another than its own; there should be none",
            registry=registry,
        )
        self.evaluation_seconds = Histogram(
            "livetables_viewport_seconds", "Time to evaluate a viewport", buckets=SECONDS, registry=registry
        )
        self.rows_sent = Counter(
            "livetables_rows_sent", "Rows sent to clients, by table and endpoint", ["table", "door"], registry=registry
        )
        self.frames = Counter("livetables_frames", "Frames sent", registry=registry)
        self.frames_skipped = Counter(
            "livetables_frames_skipped",
            "States that a slow client never saw, newer ones being there",
            registry=registry,
        )
        self.relays = Gauge("livetables_relays", "Relays that serve clients", registry=registry)
        self.relay_restarts = Counter(
            "livetables_relay_restarts", "Relays started again after they had died", registry=registry
        )
        self.relay_subscriptions = Gauge(
            "livetables_relay_subscriptions",
            "Viewports that relays look at, each once for all of a relay's clients",
            registry=registry,
        )
        self.logins_failed = Counter("livetables_logins_failed", "Wrong keys, by endpoint", ["door"], registry=registry)
        self.logins_refused = Counter(
            "livetables_logins_refused",
            "Further wrong keys, after too many from their address, by endpoint",
            ["door"],
            registry=registry,
        )
        for endpoint in ("http", "websocket", "flight"):  # so that the first one is an increase
            self.logins_failed.labels(endpoint)
            self.logins_refused.labels(endpoint)

    def login_failed(self, endpoint: str, problem: RequestError) -> None:
        """Somebody was not let in."""
        counter = self.logins_refused if problem.code == "busy" else self.logins_failed
        counter.labels(endpoint).inc()

    def committed(self, batch: Batch, *, is_published: bool, seconds: float) -> None:
        """A batch was applied just now; it took so long, and readers can see it if its generation is published."""
        self.batch_seconds.observe(seconds)
        self.batches.inc()
        self._changed(batch.changes, batch.records, is_published=is_published)

    def applied(self, commit: Commit, *, sent_ms: int, arrived: datetime, seconds: float) -> None:
        """A frame was applied just now: when it had left Spark and arrived, and how long it took."""
        self.frames_received.inc()
        self.frame_seconds.observe(seconds)
        phases = ((self.spark, sent_ms / 1000), (self.arrival, arrived.timestamp()))
        self._changed(commit.taken, commit.records, is_published=commit.is_published, phases=phases)

    def _changed(
        self,
        changed: Iterable[TableChanges],
        records: Mapping[str, int],
        *,
        is_published: bool,
        phases: Sequence[tuple[TableHistogram, float]] = (),  # and when each ended, in seconds since 1970
    ) -> None:
        now = datetime.now(UTC)
        for table, count in records.items():
            self.records.labels(table).inc(count)
            self.dead_letters.labels(table)  # so that the first one is an increase
        for changes in changed:
            self.rows.labels(changes.table, "upsert").inc(changes.upserts.num_rows)
            self.rows.labels(changes.table, "delete").inc(changes.deletes.num_rows)
            if changes.table == DEAD_LETTERS:
                for counted in pc.value_counts(changes.upserts["source"]).to_pylist():
                    self.dead_letters.labels(counted["values"]).inc(counted["counts"])
            if is_published and changes.table not in CONTROL_TABLES:
                ages = latencies_seconds(changes.upserts, now)
                self.latency.observe(changes.table, ages)
                if {"_id", "ts"} <= set(changes.upserts.column_names):  # rows of records, not of a view
                    for phase, ended in phases:
                        phase.observe(changes.table, np.maximum(ages - (now.timestamp() - ended), 0.0))

    def reported(self, sources: Sequence[SourceReport]) -> None:
        """The pipeline has reported how far behind it is."""
        for source in sources:
            self.lag.labels(source.table).observe(source.lag_records)

    def values(self) -> dict[tuple[str, tuple[str, ...]], float]:
        """The counters and gauges that are not 0, by their names here and their labels."""
        return {
            (name, tuple(sample.labels.values())): sample.value
            for name, metric in vars(self).items()
            if isinstance(metric, Counter | Gauge)
            for family in metric.collect()
            for sample in family.samples
            if sample.value
        }

    def add(self, name: str, labels: Sequence[str], added: float) -> None:
        """Add to a counter or gauge what `values` of another process has more."""
        metric: Counter | Gauge = getattr(self, name)
        (metric.labels(*labels) if labels else metric).inc(added)

    def exposition(self, now: Now) -> bytes:
        """All of it in Prometheus' text format."""
        return generate_latest(self._registry) + generate_latest(now)


class TableHistogram(Collector):
    """A histogram for each table that takes the values of a whole batch at once."""

    def __init__(self, name: str, documentation: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._documentation = documentation
        self._bounds = np.array(bounds, dtype=np.float64)
        self._names = [*(str(float(bound)) for bound in bounds), "+Inf"]
        self._lock = threading.Lock()
        self._tables: dict[str, tuple[np.ndarray, float]] = {}  # how many in each bucket, and the sum of all

    def observe(self, table: str, values: np.ndarray) -> None:
        if not len(values):
            return
        found = np.bincount(np.searchsorted(self._bounds, values), minlength=len(self._names))
        with self._lock:
            counts, total = self._tables.get(table, (0, 0.0))
            self._tables[table] = (counts + found, total + float(values.sum()))

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=["table"])
        with self._lock:
            tables = dict(self._tables)
        for table, (counts, total) in tables.items():
            buckets = zip(self._names, np.cumsum(counts).tolist(), strict=True)
            family.add_metric([table], list(buckets), total)
        yield family


@dataclass(frozen=True)
class Now(Collector):
    """What is so at this moment."""

    status: Status
    generations: Mapping[str, Generation]
    row_counts: Mapping[str, Mapping[str, int]]  # by generation and table
    pipeline: PipelineReport | None

    def collect(self) -> Iterator[Metric]:
        states = {state: state == self.status.state for state in get_args(State)}
        yield _gauge("livetables_state", "Whether the tables are in this state", "state", states)
        lags = {source.table: source.lag_records for source in self.status.sources}
        yield _gauge("livetables_lag_records", "Records still to be read after the last batch", "table", lags)
        tables = [table for each in self.generations.values() if each.published for table in each.tables.values()]
        rows = {table.shape.name: self.row_counts.get(table.generation, {}).get(table.shape.name) for table in tables}
        yield _gauge("livetables_table_rows", "Rows that readers see", "table", rows)
        newest = {table.shape.name: table.newest.timestamp() if table.newest else None for table in tables}
        yield _gauge("livetables_table_newest_timestamp_seconds", "Latest event time in a table", "table", newest)
        seen = GaugeMetricFamily("livetables_pipeline_seen_timestamp_seconds", "When the pipeline was last heard")
        if self.status.pipeline_seen:
            seen.add_metric([], self.status.pipeline_seen.timestamp())
        yield seen
        if self.pipeline is None:
            return
        yield GaugeMetricFamily(
            "livetables_pipeline_start_time_seconds", "When the pipeline was started", self.pipeline.started
        )
        yield CounterMetricFamily(
            "livetables_query_restarts",
            "Queries started again after they had died, since the pipeline's start",
            self.pipeline.query_restarts,
        )
        yield _gauge(
            "livetables_generations", "Generations that ever were, by state", "state", self.pipeline.generations
        )
        is_real_time = {name: mode == "real_time" for name, mode in self.pipeline.modes.items()}
        yield _gauge(
            "livetables_real_time",
            "Whether a generation reads its topics in real time (1) or in micro-batches (0)",
            "generation",
            is_real_time,
        )


def latencies_seconds(rows: pa.Table, now: datetime) -> np.ndarray:
    """How old each row is, by the newest of its Kafka timestamps: no other column of a record is a timestamp.

    A clock that runs ahead makes no row younger than new.
    """
    times = [rows[field.name].to_numpy() for field in rows.schema if pa.types.is_timestamp(field.type)]
    if not times:
        return np.empty(0)
    newest = np.fmax.reduce(times)  # null is not a time, and no later than any
    ages: np.ndarray = np.datetime64(now.replace(tzinfo=None)) - newest[~np.isnat(newest)]
    return np.maximum(ages / np.timedelta64(1, "s"), 0.0)


def counted(batches: Iterable[pa.RecordBatch], counter: Counter) -> Iterator[pa.RecordBatch]:
    """The same batches, their rows counted as they go."""
    for batch in batches:
        counter.inc(batch.num_rows)
        yield batch


def _gauge(name: str, documentation: str, label: str, values: Mapping[str, float | None]) -> Metric:
    family = GaugeMetricFamily(name, documentation, labels=[label])
    for labelled, value in values.items():
        if value is not None:
            family.add_metric([labelled], float(value))
    return family
