"""A pipeline, from its configuration to its end: Spark, the control topic, and the orchestrator's loop."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from livetables.config.load import server_ca
from livetables.config.values import Config, PipelineConfig
from livetables.jvm.java_errors import JAVA_ERRORS, cause_of
from livetables.jvm.session import JVM_OPTIONS, start_session
from livetables.kafka.topics import ControlTopic, KafkaTopics
from livetables.locks import locked
from livetables.model.errors import CheckpointError, SetupError, SinkError, TopicError
from livetables.pipeline.control.inbox import ControlPublisher, Inbox
from livetables.pipeline.control.orchestrator import Orchestrator
from livetables.pipeline.control.system import system_of
from livetables.pipeline.generations.checkpoints import Checkpoints
from livetables.pipeline.generations.context import SERVER_PATIENCE_SECONDS, GenerationContext
from livetables.pipeline.server_client import ServerClient
from livetables.pipeline.table_server import NoAnswerError

LOOP_PATIENCE_SECONDS = 3.0  # the loop retries by itself
LOOK_SECONDS_MAX = 5.0
AGAIN_SECONDS = 2.0
OWN_DIRECTORY = "livetables-spark"
MARKER = ".made-by-livetables"  # in a directory whose content is ours to remove


def run_pipeline(
    config: Config, token: str, stop: threading.Event, notify: Callable[[str], None], *, token_file: str | None = None
) -> None:
    """Resume or build what the control topic asks for, and follow it until `stop` is set; `notify` gets the steps.

    When the server rejects the token, it is read from the token file again, if there is one.
    """
    with _own_directory(config.pipeline) as local_directory:
        notify(f"starting Spark on {config.pipeline.master}")
        spark = _session(config.pipeline, local_directory)
        try:
            run_on(spark, config, token, stop, notify, token_file=token_file)
        finally:
            spark.stop()


def run_on(
    spark: SparkSession,
    config: Config,
    token: str,
    stop: threading.Event,
    notify: Callable[[str], None],
    *,
    token_file: str | None = None,
) -> None:
    """Run the pipeline on a Spark session that exists."""
    properties = config.kafka.client_properties()
    context = GenerationContext(
        spark, config, token, Checkpoints(spark, config.pipeline.checkpoint_directory), token_file
    )
    server = server_of(context, LOOP_PATIENCE_SECONDS)
    with (
        closing(server),
        KafkaTopics(spark, properties, LOOK_SECONDS_MAX) as topics,
        ControlTopic(spark, (config.control.kafka or config.kafka).client_properties(), config.control.topic) as (
            control_topic
        ),
    ):
        inbox = Inbox(control_topic)
        orchestrator = Orchestrator(context, server, topics, inbox, notify)
        _resume(orchestrator, stop, notify)
        if stop.is_set():
            return
        # Not before the pipeline has its number.
        publisher = ControlPublisher(control_topic, server_of(context), system_of(config))
        inbox.start()
        publisher.start()
        try:
            orchestrator.run(stop)
        finally:
            publisher.stop()
            orchestrator.stop()
            inbox.stop()


def server_of(context: GenerationContext, patience_seconds: float = SERVER_PATIENCE_SECONDS) -> ServerClient:
    """Return a client of the server, with the pipeline's number if it has one already."""
    return ServerClient(
        context.config.pipeline.server,
        context.token,
        token_file=context.token_file,
        ca_file=server_ca(context.config),
        number=context.pipeline_number or None,
        patience_seconds=patience_seconds,
    )


def _resume(orchestrator: Orchestrator, stop: threading.Event, notify: Callable[[str], None]) -> None:
    """Restore the current state as soon as Kafka and the server are available."""
    last = ""
    while not stop.is_set():
        try:
            orchestrator.resume()
            return
        except (TopicError, NoAnswerError, CheckpointError) as error:
            problem = f"{error.problem}; {error.cure}"
            if problem != last:
                last = problem
                notify(f"waiting: {problem}")
            with suppress(SinkError):  # it may be the server that is waited for
                orchestrator.report_waiting(problem)
            stop.wait(AGAIN_SECONDS)


def _session(config: PipelineConfig, local_directory: Path | None) -> SparkSession:
    local = _local_settings(local_directory) if local_directory else {}
    try:
        return start_session(
            master=config.master,
            driver_memory_megabytes=config.driver_memory_megabytes,
            shuffle_partitions=config.shuffle_partitions,
            extra={**local, **config.spark},
        )
    except (*JAVA_ERRORS, PySparkException) as error:
        raise SetupError(
            f"Spark does not start on {config.master}: {cause_of(error)}",
            "correct pipeline.master, pipeline.driver_memory_megabytes (at least 512) or [pipeline.spark]; if Java "
            "itself does not start, its output above has the reason",
        ) from error


def _local_settings(directory: Path) -> dict[str, str]:
    """Return the settings with which Spark keeps its working files in a directory."""
    return {
        "spark.local.dir": str(directory),
        "spark.driver.extraJavaOptions": f"{JVM_OPTIONS} -Djava.io.tmpdir={directory}",
    }


@contextmanager
def _own_directory(config: PipelineConfig) -> Iterator[Path | None]:
    """Open a directory for Spark's working files beside the checkpoints, emptied first: a killed driver leaves files.

    Nobody else may run a pipeline on it at the same time. Nothing is removed from a directory without our marker, which
    is also the lock. With checkpoints on shared storage there is none.
    """
    if "://" in config.checkpoint_directory:
        yield None
        return
    directory = Path(config.checkpoint_directory).absolute().parent / OWN_DIRECTORY
    with _marker(directory) as lock:
        if not locked(lock):
            raise SetupError(
                f"another pipeline runs on {config.checkpoint_directory}",
                "stop it, or give this one its own pipeline.checkpoint_directory and server",
            )
        _clear(directory)
        yield directory


def _marker(directory: Path) -> IO[str]:
    """Open the marker of the directory, which is made if it is missing."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not (directory / MARKER).exists() and any(directory.iterdir()):
            raise SetupError(
                f"{directory} was not made by livetables, or has lost its {MARKER}",
                "move it away, remove it if nobody needs it, or set pipeline.checkpoint_directory to another place",
            )
        return (directory / MARKER).open("a")
    except OSError as error:
        raise SetupError(
            f"Spark's working files cannot be in {directory}: {error}",
            "let this user write there, or set pipeline.checkpoint_directory to another place",
        ) from None


def _clear(directory: Path) -> None:
    """Remove all but the marker, and never what a link leads to."""
    for left in directory.iterdir():
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
        elif left.name != MARKER:
            left.unlink()
