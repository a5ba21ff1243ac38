"""A query in a process of its own, so that a test can kill it: `python -m tests.support.driver <job.json>`.

Driver, JVM and executors are one process group. A query that dies is started again where its checkpoint is, as the
orchestrator does it. Lines of standard input have it go on in another mode, like `real_time 300`, or `finish 300` to
read in micro-batches all that there is, and log that.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from livetables.jvm.session import start_session
from livetables.pipeline.flow.modes import Mode
from livetables.pipeline.flow.query import Target, start_generation
from livetables.pipeline.flow.source import BatchLimit
from livetables.pipeline.generations.checkpoints import Checkpoints
from tests.support.kafka import wait_until
from tests.support.pipeline import BATCH_BYTES, NUMBERS, Served, Stage, preset_spec
from tests.support.server import TOKEN

POLL_SECONDS = 0.2
DRIVER_SECONDS = 300.0  # a JVM, Spark and the first batch, on a machine that is busy
STARTS_MAX = 1000  # of the query, in one process


class Driver:
    """The process, as a test sees it."""

    def __init__(self, stage: Stage, served: Served, directory: Path, *, master: str = "local[2]") -> None:
        self._stage, self._served, self._directory, self._master = stage, served, directory, master
        self._process: subprocess.Popen[str] | None = None

    def start(self, mode: Mode, *, batch_seconds: int = 300, max_records: int = 60) -> None:
        """Start it, or start it again after it was killed."""
        self.kill()
        job = self._directory / "job.json"
        job.write_text(
            json.dumps(
                {
                    "bootstrap": self._stage.bootstrap,
                    "topics": self._stage.topics,
                    "joins": [view.join for view in self._served.spec.views],
                    "master": self._master,
                    "directory": str(self._directory),
                    "generation": self._served.generation,
                    "url": self._served.url,
                    "first_run": next(NUMBERS) * STARTS_MAX,
                    "max_records": max_records,
                }
            )
        )
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.driver", str(job)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        self.go_on(mode, batch_seconds=batch_seconds)

    def go_on(self, mode: Mode, *, batch_seconds: int = 300) -> None:
        """Have it stop its query, and go on in a mode."""
        self._order(f"{mode} {batch_seconds}")

    def finish(self) -> None:
        """Have it read all that there is in micro-batches, and commit it."""
        finished = self.logged("driver: finished")
        self._order("finish 300")
        self.wait_for("all is committed", "driver: finished", finished)

    def _order(self, line: str) -> None:
        assert self._process
        assert self._process.stdin
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def wait_for(self, what: str, words: str, more_than: int) -> None:
        """Return when it has logged these words more often than so many times."""
        try:
            wait_until(lambda: self.logged(words) > more_than, what, DRIVER_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._log.read_text()[-3000:]}") from error

    def settle(self, records: int) -> None:
        """Return when the server has so many records."""
        try:
            self._served.settle(records, DRIVER_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._log.read_text()[-3000:]}") from error

    def logged(self, words: str) -> int:
        """How many lines of its log have these words, over all starts."""
        return sum(words in line for line in self.log())

    def log(self) -> list[str]:
        return self._log.read_text().splitlines() if self._log.exists() else []

    def records_committed(self) -> int:
        """How many records it has read in batches that it has committed, over all starts."""
        return sum(int(line.split()[3]) for line in self.log() if line.startswith("driver: committed "))

    def executors(self) -> list[int]:
        """The processes of its executors."""
        return [
            pid for pid in self.java() if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]

    def java(self) -> set[int]:
        """All its processes that run Java: the driver's and the executors'."""
        assert self._process
        group, found = os.getpgid(self._process.pid), set()
        for entry in Path("/proc").iterdir():
            with suppress(OSError):  # it has ended meanwhile
                is_its = entry.name.isdecimal() and os.getpgid(int(entry.name)) == group
                if is_its and (entry / "exe").readlink().name == "java":
                    found.add(int(entry.name))
        return found

    def kill(self) -> None:
        """SIGKILL the driver and everything that it started."""
        if self._process:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            assert self._process.stdin
            with suppress(BrokenPipeError):
                self._process.stdin.close()
            self._process = None

    @property
    def checkpoint(self) -> Path:
        return self._directory / "checkpoints" / self._served.generation

    @property
    def _log(self) -> Path:
        return self._directory / "driver.log"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


class Orders:
    """What standard input says: what to do now, and how long batches are in real time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._number = 0
        self._order, self._batch_seconds = "", 300
        threading.Thread(target=self._read, daemon=True).start()

    def latest(self) -> tuple[int, str, int]:
        with self._lock:
            return self._number, self._order, self._batch_seconds

    def _read(self) -> None:
        for line in sys.stdin:
            order, seconds = line.split()
            with self._lock:
                self._number += 1
                self._order, self._batch_seconds = order, int(seconds)
        os.killpg(0, signal.SIGKILL)  # whoever gave the orders is gone


def log(*words: object) -> None:
    print("driver:", *words, flush=True)


def main(job_file: str) -> None:
    job: dict[str, Any] = json.loads(Path(job_file).read_text())
    orders = Orders()
    directory = Path(job["directory"])
    spark = start_session(
        master=job["master"], driver_memory_megabytes=1024, extra={"spark.local.dir": str(directory / "local")}
    )
    checkpoints = Checkpoints(spark, str(directory / "checkpoints"))
    generation = job["generation"]
    for run in range(job["first_run"], job["first_run"] + STARTS_MAX):
        number, order, batch_seconds = orders.latest()
        mode: Mode = "real_time" if order == "real_time" else "micro_batch"
        if number == 0:
            time.sleep(POLL_SECONDS)
            continue
        if not checkpoints.has_commits(generation):
            checkpoints.remove_state(generation)
        query = start_generation(
            spark,
            preset_spec(job["topics"]["users"], job["topics"]["accounts"], job["joins"]),
            generation=generation,
            kafka_properties={"bootstrap.servers": job["bootstrap"]},
            checkpoint=checkpoints.path(generation),
            target=Target(job["url"], TOKEN, run),
            mode=mode,
            limit=BatchLimit(job["max_records"], BATCH_BYTES),
            batch_seconds=batch_seconds,
        )
        log("started", mode, "as", run)
        committed = -1
        if order == "finish":
            with suppress(Exception):  # a query that dies is started again
                query.processAllAvailable()
                log("finished")
        while query.isActive and orders.latest()[0] == number:
            time.sleep(POLL_SECONDS)
            for progress in query.recentProgress:
                if progress.batchId > committed:
                    committed = progress.batchId
                    log("committed", committed, progress.numInputRows)
        failure = query.exception()
        if failure is not None:
            log("died", str(failure).splitlines()[0][:300])
        query.stop()


if __name__ == "__main__":
    main(sys.argv[1])
