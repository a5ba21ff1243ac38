"""A JVM with the Kafka clients, without Spark: it starts in a few seconds, and is enough to inspect topics."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from livetables.config.settings import Secret
from livetables.jvm.session import session_settings, start_session
from livetables.model.errors import SetupError

MEMORY_MEGABYTES = 512
STOP_SECONDS = 5.0
LOG_LINES_SHOWN = 5
# Of the settings that are passed to Spark, those that decide which classes a Kafka client finds, and how it connects.
FOR_CLIENTS = ("spark.jars", "spark.driver.extraClassPath", "spark.driver.extraJavaOptions")


@dataclass(frozen=True)
class Gateway:
    """A running JVM. It can also run a Spark session, when one is needed."""

    _jvm: Any
    directory: Path

    def session(self) -> SparkSession:
        """Spark in the same JVM, to evaluate a few records with."""
        local = {"spark.local.dir": str(self.directory)}
        return start_session(
            master="local[1]", driver_memory_megabytes=MEMORY_MEGABYTES, shuffle_partitions=1, extra=local
        )


@contextmanager
def started_gateway(spark_settings: Mapping[str, str]) -> Iterator[Gateway]:
    """Run a JVM until the end of the block, then remove all of it; a SetupError has the reason if it does not start."""
    with tempfile.TemporaryDirectory(prefix="livetables-java-") as name:
        directory = Path(name)
        gateway = _launched(_settings(spark_settings), directory / "java.log")
        # A session that is requested now runs in this JVM.
        SparkContext._ensure_initialized(gateway=gateway)
        try:
            yield Gateway(gateway.jvm, directory)
        finally:
            _stop(gateway)


def _settings(spark_settings: Mapping[str, str]) -> dict[str, str]:
    ours = session_settings(master="local[1]", driver_memory_megabytes=MEMORY_MEGABYTES)
    # They are on a command line, which everybody on this machine can read.
    given = {n: v for n, v in spark_settings.items() if n in FOR_CLIENTS and not isinstance(v, Secret)}
    if "spark.driver.extraClassPath" in given:
        given["spark.driver.extraClassPath"] += f"{os.pathsep}{ours['spark.driver.extraClassPath']}"
    return {**ours, **given}


def _launched(settings: Mapping[str, str], log: Path) -> Any:
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    with log.open("wb") as output:
        try:
            return launch_gateway(conf, {"stdout": output, "stderr": output})  # type: ignore[no-untyped-call]
        except (OSError, PySparkException) as error:
            lines = log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
            raise SetupError(
                f"Java does not start with Spark's jars: {' | '.join(lines) or error}",
                "fix what it reports; try `java -version`, and check JAVA_HOME and pipeline.spark",
            ) from None


def _stop(gateway: Any) -> None:
    with suppress(Py4JError, OSError):
        if SparkContext._active_spark_context:
            SparkContext._active_spark_context.stop()
    with suppress(Py4JError, OSError):
        gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    process: subprocess.Popen[bytes] = gateway.proc
    assert process.stdin, "it was started with one, and ends when that is closed"
    with suppress(OSError):
        process.stdin.close()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
