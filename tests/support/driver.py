"""A pipeline in a process of its own, so that a test can kill it: `python -m tests.support.driver <job.json>`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from livetables.pipeline.query import start_generation
from livetables.pipeline.session import start_session
from livetables.spec import JoinType
from tests.support.faults import Crash, DiskSink
from tests.support.pipeline import GENERATION, Stage, preset_spec


@contextmanager
def driver(
    stage: Stage, joins: Sequence[JoinType], directory: Path, *, master: str, crash: Crash | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A driver that runs until it is killed. Driver, JVM and executors are one process group and end together."""
    job = directory / "job.json"
    job.write_text(
        json.dumps(
            {
                "bootstrap": stage.bootstrap,
                "topics": stage.topics,
                "joins": list(joins),
                "master": master,
                "directory": str(directory),
                "crash": None if crash is None else [crash.when, crash.batch_id],
            }
        )
    )
    log = (directory / "driver.log").open("ab")
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.driver", str(job)],
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        kill(process)
        log.close()


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL the driver and everything it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main(job_file: str) -> None:
    job = json.loads(Path(job_file).read_text())
    directory = Path(job["directory"])
    local_directory = directory / "local"
    spark = start_session(
        master=job["master"],
        driver_memory_megabytes=1024,
        extra={"spark.local.dir": str(local_directory), "spark.executor.memory": "1g"},
    )
    crash = None if job["crash"] is None else Crash(*job["crash"])
    query = start_generation(
        spark,
        preset_spec(job["topics"]["users"], job["topics"]["accounts"], job["joins"]),
        generation=GENERATION,
        kafka_properties={"bootstrap.servers": job["bootstrap"]},
        checkpoint=directory / "checkpoint",
        sink=DiskSink(directory, crash),
        max_records_per_batch=60,
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1])
