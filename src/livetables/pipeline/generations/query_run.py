"""One run of a generation's streaming query, from its start to its stop or death."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from livetables.jvm.java_errors import (
    cause_of,
    is_of_checkpoint,
    is_of_lost_records,
    java_causes,
    printed,
    root_cause,
    with_causes,
)
from livetables.jvm.session import is_one_process
from livetables.kafka.clients import with_own_login
from livetables.kafka.redaction import Redaction
from livetables.model.spec import GenerationSpec
from livetables.pipeline.flow.modes import Mode
from livetables.pipeline.flow.query import start_generation
from livetables.pipeline.flow.source import BatchLimit
from livetables.pipeline.generations.context import GenerationContext
from livetables.pipeline.generations.health import Death

STEADY_SECONDS = 5.0  # that a query in real time has to run, to count as working again
CAUSE_CHARACTERS_MAX = 400
REFUSAL = re.compile(r"(unknown_generation|refused|fenced): (.*)", re.DOTALL)  # as FrameWriter words it
TOO_FEW_SLOTS = "CONCURRENT_SCHEDULER_INSUFFICIENT_SLOT"


class QueryRun:
    """A query that was started. One thread uses it, Spark's threads run it."""

    def __init__(
        self,
        context: GenerationContext,
        spec: GenerationSpec,
        *,
        generation: str,
        url: str,
        mode: Mode,
        batch_seconds: int,
    ) -> None:
        """Start the query, or continue it where its checkpoint is; its frames go to the server at `url`."""
        config, checkpoints = context.config, context.checkpoints
        if not checkpoints.has_commits(generation):
            # Without one there is no state to resume, and Spark does not start on what a crash has left of it. Where
            # reading began stays.
            checkpoints.remove_state(generation)
        self.batch_seconds = batch_seconds
        self._context = context
        self._mode = mode
        self._query: StreamingQuery = start_generation(
            context.spark,
            spec,
            generation=generation,
            kafka_properties=with_own_login(config.kafka.client_properties()),
            checkpoint=checkpoints.path(generation),
            target=context.target(url),
            mode=mode,
            limit=BatchLimit(config.pipeline.max_records_per_batch, config.pipeline.max_megabytes_per_batch * 1024**2),
            batch_seconds=batch_seconds,
        )
        self._started = time.monotonic()

    @property
    def is_active(self) -> bool:
        return self._query.isActive

    @property
    def progress(self) -> StreamingQueryProgress | None:
        """The last batch that Spark reports, if there was one."""
        return self._query.lastProgress

    def is_working(self, *, has_brought: bool) -> bool:
        """Whether it runs, and has done something since its start: a batch, or in real time records or tasks."""
        if not self.is_active:
            return False
        if self._mode == "real_time" and (has_brought or self._tasks_run()):
            return True
        return self.progress is not None

    def is_steady(self, *, has_brought: bool) -> bool:
        """Whether it works, and has done so long enough to forget earlier failures."""
        is_old = self._mode == "micro_batch" or time.monotonic() - self._started >= STEADY_SECONDS
        return self.is_working(has_brought=has_brought) and is_old

    def stop(self) -> None:
        """Stop it, in the middle of a batch if need be."""
        self._query.stop()

    def death(self, partitions_read: int) -> Death:
        """Return why it died; `partitions_read` are those of its topics."""
        failure = self._query._jsq.exception()
        causes = list(with_causes(failure.get().getCause())) if failure.isDefined() else []
        messages = [cause.getMessage() or "" for cause in causes]
        refusal = next((found for message in messages if (found := REFUSAL.match(message))), None)
        if refusal:
            cause = shown_cause(self._context, refusal[2])
            is_lost = refusal[1] != "fenced"
            return Death(cause, f"the server does not have what was delivered to it: {cause}" if is_lost else None)
        if any(TOO_FEW_SLOTS in message for message in messages):
            shuffle = int(self._context.spark.conf.get("spark.sql.shuffle.partitions") or 0)
            return Death(too_few_slots(self._context.config.pipeline.master, partitions_read, shuffle))
        cause = shown_cause(self._context, root_cause(causes) if causes else "Spark stopped the query without a reason")
        trace = _trace(self._context, causes)
        return Death(cause, cause if is_of_lost_records(trace) else None, is_of_checkpoint(trace))

    def _tasks_run(self) -> bool:
        """Whether all tasks of a query in real time are there: from then on records pass at once."""
        tracker = self._context.spark.sparkContext.statusTracker()
        stages = [
            tracker.getStageInfo(stage)
            for job in tracker.getJobIdsForGroup(self._query.runId)
            if (info := tracker.getJobInfo(job)) and info.status == "RUNNING"
            for stage in info.stageIds
        ]
        return bool(stages) and all(stage and 0 < stage.numTasks == stage.numActiveTasks for stage in stages)


def failed_start(context: GenerationContext, error: Exception) -> Death:
    """Return why a query could not be started."""
    trace = _trace(context, java_causes(error))
    return Death(shown_cause(context, cause_of(error)), is_of_checkpoint=is_of_checkpoint(trace))


def shown_cause(context: GenerationContext, text: str) -> str:
    """Return a cause as people may see it: without secrets, and not too long."""
    text = Redaction(context.config.kafka.client_properties()).applied(text)
    return text if len(text) <= CAUSE_CHARACTERS_MAX else f"{text[:CAUSE_CHARACTERS_MAX]}…"


def _trace(context: GenerationContext, causes: Sequence[Any]) -> str:
    return printed(context.spark, causes[0]) if causes else ""


def too_few_slots(master: str, topic_partitions: int, shuffle_partitions: int) -> str:
    """Return what to do about a query in real time that has got no slot for some of its tasks."""
    more = "run Spark on a cluster (pipeline.master)" if is_one_process(master) else "give the cluster more cores"
    return (
        f"{master} has too few slots: in real time each of the {topic_partitions} topic partitions and "
        f"{shuffle_partitions} shuffle partitions of every generation that runs needs one; {more}, or set "
        "pipeline.shuffle_partitions and generations.max_lingering lower"
    )
