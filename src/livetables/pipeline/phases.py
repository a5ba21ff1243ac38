"""What each batch took, phase by phase: what Spark tells of it, and what the driver's own steps in it took."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql.streaming.query import StreamingQuery

from livetables.wire import BatchTimes, Phase

BATCHES_KEPT = 100  # as many as Spark keeps reports of
WHOLE = "triggerExecution"
WITH_DATA = "addBatch"  # what a look at the topics that found nothing does not have
SPARK_PHASES: Mapping[Phase, tuple[str, ...]] = {  # by the names in Spark's own reports
    "offsets": ("latestOffset", "getOffset", "getBatch"),
    "planning": ("queryPlanning",),
    "log": ("walCommit",),
    "commit": ("commitOffsets",),
}


class DriverSteps:
    """The driver's own steps. The query's thread times them, another reads them."""

    def __init__(self) -> None:
        self._batches: dict[int, dict[Phase, float]] = {}

    @contextmanager
    def timed(self, batch_id: int, phase: Phase) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._batches.setdefault(batch_id, {})[phase] = time.perf_counter() - started
        self._batches.pop(batch_id - BATCHES_KEPT, None)

    def of(self, batch_id: int) -> Mapping[Phase, float]:
        return self._batches.get(batch_id, {})


def batch_times(query: StreamingQuery, steps: DriverSteps, after: int | None) -> dict[int, BatchTimes]:
    """The batches since the one `after` which to look, by id, as far as Spark still knows them."""
    reports = query._jsq.recentProgress()
    found = {}
    for position in reversed(range(len(reports))):
        batch_id = reports[position].batchId()
        if after is not None and batch_id <= after:
            break
        took = json.loads(reports[position].json())["durationMs"]
        if WITH_DATA in took:
            spark = {phase: sum(took.get(name, 0) for name in names) / 1e3 for phase, names in SPARK_PHASES.items()}
            found[batch_id] = BatchTimes(took[WHOLE] / 1e3, {**spark, **steps.of(batch_id)})
    return found
