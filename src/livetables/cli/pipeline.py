"""`livetables pipeline`: Spark reads the topics, joins them and hands the changes to the table server."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import replace

from livetables.cli.main import main
from livetables.cli.options import add_config_option, chosen_config, keep_files_private
from livetables.cli.signals import stopped_by_signals
from livetables.config.load import pipeline_token
from livetables.config.settings import Secret
from livetables.config.values import Config
from livetables.jvm.jars import engine_jar, jar_directory, java_executable
from livetables.jvm.session import session_settings, submitted_settings
from livetables.log import log_to_stderr
from livetables.model.errors import ConfigError
from livetables.pipeline.main import run_pipeline

SUBMITTED = "PYSPARK_GATEWAY_PORT"  # set by spark-submit, for the Python program that it starts

EXAMPLES = """examples:
  LIVETABLES_TOKEN=… livetables pipeline --config my.toml
      on this machine, or under the master that pipeline.master names
  livetables pipeline --config my.toml --spark-properties > spark.conf
  spark-submit --properties-file spark.conf PATH/livetables/cli/pipeline.py --config my.toml
      the same, started by spark-submit; the options of spark-submit win
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `livetables pipeline`."""
    parser.epilog = EXAMPLES
    add_config_option(parser)
    parser.add_argument(
        "--spark-properties",
        action="store_true",
        help="print Spark's settings as a properties file for spark-submit, and end",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the pipeline until it is stopped."""
    config = chosen_config(arguments)
    if arguments.spark_properties:
        print(properties_file(_settings(config)), end="")
        return 0
    if config.kafka.bootstrap_servers is None:
        raise ConfigError(
            "kafka.bootstrap.servers is missing: the pipeline does not know which Kafka to read",
            'write bootstrap.servers = "host:port" under [kafka], or set LIVETABLES_KAFKA_BOOTSTRAP_SERVERS; '
            "`livetables up` starts a broker by itself",
        )
    token, token_file = pipeline_token(config, os.environ)
    if token is None:
        raise ConfigError(
            "the pipeline has no key for the table server",
            "set LIVETABLES_PIPELINE_TOKEN or LIVETABLES_TOKEN to the server's, or server.token_file to the file that "
            "has it; "
            "`livetables up` starts both with the same",
        )
    log_to_stderr()
    # It logs every connection, and of a batch that was interrupted the whole trace; the orchestrator logs the cause.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    if SUBMITTED in os.environ:
        config = _as_submitted(config)
    else:
        java_executable()
    jar_directory("spark")  # here, where Ctrl-C still ends at once, should they have to be fetched
    engine_jar()
    if config.pipeline.master.startswith("local"):  # elsewhere, executors may be another user's, and share checkpoints
        keep_files_private()
    with stopped_by_signals() as stop:
        run_pipeline(config, token, stop, _notify, token_file=token_file)
    return 0


def properties_file(settings: Mapping[str, str]) -> str:
    """Settings as Java reads them from a file. Secrets are left out: the pipeline sets them itself when it starts."""
    shown = {name: value for name, value in settings.items() if not isinstance(value, Secret)}
    escaped = {name: value.replace("\\", "\\\\").replace("\n", "\\n") for name, value in shown.items()}
    return "".join(f"{name}={value}\n" for name, value in sorted(escaped.items()))


def _settings(config: Config) -> dict[str, str]:
    pipeline = config.pipeline
    return {
        "spark.pyspark.driver.python": sys.executable,  # spark-submit would take the python3 that it finds first
        **session_settings(
            master=pipeline.master,
            driver_memory_megabytes=pipeline.driver_memory_megabytes,
            shuffle_partitions=pipeline.shuffle_partitions,
            extra=pipeline.spark,
        ),
    }


def _as_submitted(config: Config) -> Config:
    """The configuration under the master that spark-submit chose, with its other options."""
    submitted = submitted_settings()
    config = replace(config, pipeline=replace(config.pipeline, master=submitted["spark.master"]))
    ours = _settings(config)
    differently = {name: value for name, value in submitted.items() if ours.get(name) != value}
    return replace(config, pipeline=replace(config.pipeline, spark={**config.pipeline.spark, **differently}))


def _notify(sentence: str) -> None:
    print(sentence, flush=True)


if __name__ == "__main__":
    sys.exit(main(["pipeline", *sys.argv[1:]]))
