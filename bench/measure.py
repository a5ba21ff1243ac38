"""A generation that sends to a server that only measures: how fast a backlog is, how old records are on arrival."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import time
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.measuring_server import MeasuringServer
from livetables.config.values import PipelineConfig
from livetables.model.spec import GenerationSpec
from livetables.pipeline.flow.modes import Mode
from livetables.pipeline.flow.query import Target, start_generation
from livetables.pipeline.flow.source import BatchLimit

WAIT_SECONDS = 900.0
POLL_SECONDS = 0.05
CATCH_UP_SECONDS, CAUGHT_UP_MS = 60.0, 1000.0
RUNS = itertools.count(1)


class Run:
    """One generation from its start, with a checkpoint of its own that is removed with it."""

    def __init__(
        self,
        spark: SparkSession,
        spec: GenerationSpec,
        bootstrap: str,
        max_records_per_batch: int,
        server: MeasuringServer,
    ) -> None:
        self._spark, self._spec, self._bootstrap, self._server = spark, spec, bootstrap, server
        self._max_records_per_batch = max_records_per_batch
        self._checkpoint = tempfile.mkdtemp(prefix="livetables-bench-")
        self._begin = time.monotonic()
        server.get("/reset")
        self.query = self._started("micro_batch", 300)

    def _started(self, mode: Mode, batch_seconds: int) -> StreamingQuery:
        return start_generation(
            self._spark,
            self._spec,
            generation="bench",
            kafka_properties={"bootstrap.servers": self._bootstrap},
            checkpoint=self._checkpoint,
            target=Target(self._server.url, "none", next(RUNS)),
            mode=mode,
            limit=BatchLimit(self._max_records_per_batch, PipelineConfig().max_megabytes_per_batch * 1024**2),
            batch_seconds=batch_seconds,
        )

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.query.stop()
        shutil.rmtree(self._checkpoint, ignore_errors=True)

    def backlog_seconds(self, records: int, progress: Callable[[int], None]) -> float:
        """How long it takes from the start until all records of the backlog, and their joined rows, have arrived."""
        deadline = time.monotonic() + WAIT_SECONDS
        while (done := self._server.get()["records"]) < records:
            progress(done)
            if (failure := self.query.exception()) is not None:
                raise failure
            if time.monotonic() > deadline:
                raise TimeoutError(f"{done:,} of {records:,} records after {WAIT_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)
        seconds = time.monotonic() - self._begin
        self.query.processAllAvailable()  # its last batch is committed after its records have arrived
        return seconds

    def real_time(self, batch_seconds: int = 300) -> float:
        """Go on in real time; how many seconds the change took."""
        begin = time.monotonic()
        self.query.stop()
        self.query = self._started("real_time", batch_seconds)
        return time.monotonic() - begin

    def latency(self, settle_seconds: float, seconds: float) -> dict[str, Any]:
        """From Kafka's timestamp to the server, of what is sent once the query has settled and caught up."""
        time.sleep(settle_seconds)
        deadline = time.monotonic() + CATCH_UP_SECONDS
        while time.time() * 1000 - self._server.get()["newest_ms"] > CAUGHT_UP_MS and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        self._server.get("/sample")
        time.sleep(seconds)
        if (failure := self.query.exception()) is not None:
            raise failure
        return self._server.get()
