"""The pipeline in a process of its own, as in production: a client that measures must not share its GIL.

A line of JSON on its standard input is an order, a line on its standard output says how far it is or that it is done.
The steps that the driver takes in each batch are timed from outside: the product knows nothing of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from bench.__main__ import preset
from bench.measure import MeasuringSink, Run
from livetables.change import Batch, TableShape
from livetables.config import load_config
from livetables.errors import SetupError
from livetables.pipeline import changelog, query
from livetables.pipeline.flight_sink import FlightSink
from livetables.pipeline.session import start_session
from livetables.spec import JoinType

VIEW = "final_ui"
DRIVER_MEGABYTES = 4096
PROGRESS_KEPT = 10_000  # Spark keeps its reports of the last 100 batches unless told otherwise
STOP_SECONDS = 60.0
LOG_LINES_SHOWN = 30
END: dict[str, Any] = {}
NO_ROWS = pa.table({"_right_id": pa.array([], pa.int64())})

Result = TypeVar("Result")


@dataclass(frozen=True)
class BatchTimes:
    """What the driver did for one batch, and when. Times of day are in seconds."""

    batch_id: int
    collect_ms: float
    changelog_ms: float
    put_ms: float
    collected: float
    committed: float
    rows: int  # of the view, with an account
    sent: float | None  # when their accounts were, on average
    row_id: int | None  # one of the accounts


class Stopwatch:
    """Adds up the milliseconds of each of a batch's steps."""

    def __init__(self) -> None:
        self._taken: dict[str, float] = {}

    def timed(self, step: str, function: Callable[..., Result]) -> Callable[..., Result]:
        def run(*arguments: Any) -> Result:
            started = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                self._taken[step] = self._taken.get(step, 0.0) + (time.perf_counter() - started) * 1000

        return run

    def reset(self) -> dict[str, float]:
        taken, self._taken = self._taken, {}
        return taken

    @contextmanager
    def on_the_driver(self) -> Iterator[None]:
        """While the context is open, the steps of `start_generation` before the sink are timed."""
        with ExitStack() as patches:
            for module, name, step in (
                (query, "_collected", "collect"),
                (changelog, "untagged", "changelog"),
                (changelog, "changes", "changelog"),
                (changelog, "unknown_fields", "changelog"),
            ):
                timed = self.timed(step, getattr(module, name))
                patches.enter_context(patch.object(module, name, timed))
            yield


class TimedSink(MeasuringSink):
    """The server's sink, timed; counts a batch's records when the server has committed them."""

    def __init__(self, flight: FlightSink, stopwatch: Stopwatch) -> None:
        super().__init__()
        self.batches: list[BatchTimes] = []
        self._flight = flight
        self._stopwatch = stopwatch
        self._put = stopwatch.timed("put", flight.put)

    def begin(self, generation: str, shapes: Sequence[TableShape]) -> None:
        self._flight.begin(generation, shapes)

    def put(self, batch: Batch) -> None:
        self._put(batch)
        committed, taken = time.time(), self._stopwatch.reset()
        view = next((changes.upserts for changes in batch.changes if changes.table == VIEW), NO_ROWS)
        rows = view.filter(pc.is_valid(view["_right_id"]))
        self.batches.append(
            BatchTimes(
                batch.batch_id,
                taken["collect"],
                taken["changelog"],
                taken["put"],
                committed - (taken["changelog"] + taken["put"]) / 1000,
                committed,
                rows.num_rows,
                pc.mean(rows["accounts_ts"].cast(pa.int64())).as_py() / 1e6 if rows.num_rows else None,
                pc.max(rows["_right_id"]).as_py(),
            )
        )
        super().put(batch)

    def publish(self, generation: str) -> None:
        self._flight.publish(generation)

    def drop(self, generation: str) -> None:
        self._flight.drop(generation)

    def close(self) -> None:
        self._flight.close()


class Pipeline:
    """One generation at a time, from an order to run it to the order to end it."""

    def __init__(self, spark: SparkSession, bootstrap: str, answer: Callable[[dict[str, Any]], None]) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._answer = answer
        self._stopwatch = Stopwatch()

    def obey(self, orders: Iterator[dict[str, Any]]) -> None:
        with self._stopwatch.on_the_driver():
            for order in orders:
                self._run(orders, **order)

    def _run(
        self, orders: Iterator[dict[str, Any]], topics: str, join: JoinType, flight: str, token: str, records: int
    ) -> None:
        """Run a generation; say when its backlog is in the server's tables; then tell of it until told to end."""
        sink = TimedSink(FlightSink(flight, token), self._stopwatch)
        batch_limit = load_config(None, {}).pipeline.max_records_per_batch
        with Run(self._spark, preset(topics, join), self._bootstrap, batch_limit, sink, topics) as run:
            seconds = run.backlog_seconds(records, lambda done: self._answer({"records": done}))
            sink.publish(topics)
            self._answer({"done": seconds})
            for order in orders:
                if order == END:
                    break
                self._answer({"done": self._batches(run, sink, **order)})
        sink.drop(topics)
        sink.close()
        self._answer({"done": None})

    def _batches(self, run: Run, sink: TimedSink, begin: float, end: float) -> dict[str, Any]:
        """What is known of the batches whose accounts were sent in this time, and of Spark's whole life."""
        return {
            "batches": [asdict(batch) for batch in sink.batches if batch.sent and begin <= batch.sent < end],
            "reports": [json.loads(report.json()) for report in run.query._jsq.recentProgress()],
            "jobs": self._jobs(),
        }

    def _jobs(self) -> list[tuple[float, float]]:
        """When each of Spark's jobs began and ended."""
        jobs = self._spark.sparkContext._jsc.sc().statusStore().jobsList(None)
        times = []
        for job in (jobs.apply(number) for number in range(jobs.size())):
            if job.submissionTime().isDefined() and job.completionTime().isDefined():
                begun, ended = job.submissionTime().get().getTime(), job.completionTime().get().getTime()
                times.append((begun / 1000, ended / 1000))
        return times


class TimedPipeline:
    """The process, as its parent sees it."""

    def __init__(self, bootstrap: str, log: Path) -> None:
        self._bootstrap = bootstrap
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def run(
        self, topics: str, join: JoinType, flight: str, token: str, records: int, progress: Callable[[int], None]
    ) -> float:
        """Start a generation on the topics of this name, and call it so. How many seconds its backlog took."""
        order = {"topics": topics, "join": join, "flight": flight, "token": token, "records": records}
        seconds: float = self._ask(order, progress)
        return seconds

    def batches(self, begin: float, end: float) -> dict[str, Any]:
        """What is known of the batches whose accounts were sent in this time, on average."""
        told: dict[str, Any] = self._ask({"begin": begin, "end": end})
        return told

    def end(self) -> None:
        """Stop the generation and drop it."""
        self._ask(END)

    def _ask(self, order: dict[str, Any], progress: Callable[[int], None] = lambda _: None) -> Any:
        assert self._process
        assert self._process.stdin
        assert self._process.stdout
        with suppress(BrokenPipeError):  # what is wrong is said below
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        for line in self._process.stdout:
            answer = json.loads(line)
            if "done" in answer:
                return answer["done"]
            progress(answer["records"])
        said = "\n    ".join(self._log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:])
        raise SetupError(f"the pipeline ended; the last it said:\n    {said}", "mend what it complains about")

    def __enter__(self) -> TimedPipeline:
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.pipeline", self._bootstrap],
                env={**os.environ, "TMPDIR": str(self._log.parent)},  # so that nothing stays when it is killed
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process
        assert self._process.stdin
        assert self._process.stdout
        if error:
            self._process.kill()  # its server may be gone, for which it would wait
        with suppress(BrokenPipeError):
            self._process.stdin.close()  # the end of the orders is the order to stop
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def main() -> None:
    # Spark's JVM writes to the standard output as it likes; the answers go to what that was.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(told: dict[str, Any]) -> None:
        answers.write(json.dumps(told) + "\n")
        answers.flush()

    kept = {"spark.sql.streaming.numRecentProgressUpdates": str(PROGRESS_KEPT)}
    spark = start_session(driver_memory_megabytes=DRIVER_MEGABYTES, extra=kept)
    try:
        Pipeline(spark, sys.argv[1], answer).obey(json.loads(line) for line in sys.stdin)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
