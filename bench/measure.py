"""Runs a generation into a sink that only measures: how fast a backlog goes through, how old rows are on arrival."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from livetables.change import Batch, TableShape
from livetables.pipeline.query import start_generation
from livetables.spec import GenerationSpec

SOURCE_TABLES = ("users_ui", "accounts_ui")
WAIT_SECONDS = 900.0


@dataclass
class MeasuringSink:
    """Counts records and, after `sample_from`, the time from each new account's Kafka timestamp to its arrival here."""

    records: int = 0
    rows: int = 0
    latencies_ms: list[np.ndarray] = field(default_factory=list)
    sample_from: datetime | None = None
    arrived: threading.Condition = field(default_factory=threading.Condition)

    def begin(self, generation: str, shapes: Sequence[TableShape]) -> None:
        """Nothing is kept."""

    def put(self, batch: Batch) -> None:
        now = np.datetime64(datetime.now(tz=UTC).replace(tzinfo=None), "us")
        sources = [changes for changes in batch.changes if changes.table in SOURCE_TABLES]
        views = [changes for changes in batch.changes if changes.table not in SOURCE_TABLES]
        for changes in views or sources:
            self._sample(changes.upserts, now)
        with self.arrived:
            self.records += sum(changes.upserts.num_rows for changes in sources)
            self.rows += sum(changes.upserts.num_rows for changes in views)
            self.arrived.notify_all()

    def publish(self, generation: str) -> None:
        """Nothing is shown."""

    def drop(self, generation: str) -> None:
        """Nothing was kept."""

    def _sample(self, upserts: pa.Table, now: np.datetime64) -> None:
        column = "accounts_ts" if "accounts_ts" in upserts.column_names else "ts"
        if self.sample_from is not None:
            times = upserts[column].drop_null().to_numpy().astype("datetime64[us]")
            fresh = times[times >= np.datetime64(self.sample_from.replace(tzinfo=None), "us")]
            self.latencies_ms.append((now - fresh) / np.timedelta64(1, "ms"))

    def wait_for(self, records: int, query: StreamingQuery, progress: Callable[[int], None]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while self.records < records:
            with self.arrived:
                self.arrived.wait(1.0)
            progress(self.records)
            if (failure := query.exception()) is not None:
                raise failure
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.records:,} of {records:,} records after {WAIT_SECONDS:.0f} s")


@dataclass(frozen=True)
class Percentiles:
    p50_ms: float
    p99_ms: float
    samples: int


class Run:
    """One generation from its start, with a checkpoint of its own that is removed with it."""

    def __init__(
        self,
        spark: SparkSession,
        spec: GenerationSpec,
        bootstrap: str,
        max_records_per_batch: int,
        sink: MeasuringSink | None = None,
        generation: str = "bench",
    ) -> None:
        self.sink = sink or MeasuringSink()
        self._checkpoint = tempfile.mkdtemp(prefix="livetables-bench-")
        self._begin = time.monotonic()
        self.query = start_generation(
            spark,
            spec,
            generation=generation,
            kafka_properties={"bootstrap.servers": bootstrap},
            checkpoint=self._checkpoint,
            sink=self.sink,
            max_records_per_batch=max_records_per_batch,
        )

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.query.stop()
        shutil.rmtree(self._checkpoint, ignore_errors=True)

    def backlog_seconds(self, records: int, progress: Callable[[int], None]) -> float:
        """How long it takes from the start until all records of the backlog, and their joined rows, have arrived."""
        self.sink.wait_for(records, self.query, progress)
        return time.monotonic() - self._begin

    def latency(self, settle_seconds: float, seconds: float) -> Percentiles:
        """From Kafka's timestamp to the sink, for what is sent from `settle_seconds` on."""
        time.sleep(settle_seconds)
        self.sink.sample_from = datetime.now(tz=UTC)
        time.sleep(seconds)
        samples = np.concatenate(self.sink.latencies_ms)
        self.sink.sample_from = None
        self.sink.latencies_ms = []
        return Percentiles(float(np.percentile(samples, 50)), float(np.percentile(samples, 99)), len(samples))
