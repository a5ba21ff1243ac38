"""`livetables pipeline`: the settings that it needs, and under spark-submit."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from livetables.cli import main as entry
from livetables.cli import pipeline as module
from livetables.cli.pipeline import properties_file
from livetables.config.kafka_properties import parse_properties
from livetables.config.settings import Secret
from livetables.local.broker import Broker
from tests.support.kafka import Record, create_topic, produce, unique_topic, wait_until
from tests.support.server import TOKEN, ServerProcess
from tests.support.up import COMMAND, WAIT_SECONDS, clean_environment

BIN = Path(sys.executable).parent
SPARK_SUBMIT = Path(__file__).parents[2] / "deploy" / "spark-submit.sh"


def refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, **settings: str) -> str:
    for name in list(os.environ):
        if name.startswith("LIVETABLES_"):
            monkeypatch.delenv(name)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert entry.main(["pipeline"]) == 2
    return capsys.readouterr().err


def test_without_a_broker_the_cure_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = refused(capsys, monkeypatch, LIVETABLES_TOKEN=TOKEN)
    assert "kafka.bootstrap.servers is missing" in error
    assert "`livetables up` starts a broker by itself" in error


def test_without_a_key_the_cure_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    error = refused(capsys, monkeypatch, LIVETABLES_KAFKA_BOOTSTRAP_SERVERS="127.0.0.1:1")
    assert "set LIVETABLES_PIPELINE_TOKEN or LIVETABLES_TOKEN to the server's" in error


def started(tmp_path: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = clean_environment(
        LIVETABLES_TOKEN=TOKEN, LIVETABLES_KAFKA_BOOTSTRAP_SERVERS="127.0.0.1:1", **settings
    )
    command = [*COMMAND, "pipeline"]
    return subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False
    )


@pytest.mark.spark
@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"LIVETABLES_PIPELINE_MASTER": "lokal[2]"}, "Spark does not start on lokal[2]: "),
        ({"LIVETABLES_PIPELINE_DRIVER_MEMORY_MEGABYTES": "256"}, "memory"),
        ({"LIVETABLES_PIPELINE_DRIVER_MEMORY_MEGABYTES": "1"}, "Spark does not start on local["),
        ({"JAVA_HOME": "/nowhere"}, "JAVA_HOME is /nowhere"),
    ],
)
def test_where_spark_cannot_start_the_cure_is_named(tmp_path: Path, settings: dict[str, str], problem: str) -> None:
    done = started(tmp_path, **settings)
    assert done.returncode == 2, done.stderr
    error = done.stderr[done.stderr.index("livetables: ") :]
    assert problem in error
    assert "  cure: " in error
    assert "Traceback" not in done.stderr
    assert ("pipeline.driver_memory_megabytes" in error) != ("JAVA_HOME" in settings)


@pytest.fixture
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("usual_umask")
@pytest.mark.parametrize(("master", "mode"), [("local[*]", 0o600), ("spark://host:7077", 0o644)])
def test_files_are_private_where_no_other_machine_shares_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: str, mode: int
) -> None:
    """What would start Spark writes a file instead."""
    written = tmp_path / "checkpoint"
    for name in ("jar_directory", "engine_jar", "java_executable"):
        monkeypatch.setattr(module, name, lambda *_: None)
    monkeypatch.setattr(module, "run_pipeline", lambda *_, **__: written.write_text(""))
    monkeypatch.setattr(module, "log_to_stderr", lambda: None)
    monkeypatch.setenv("LIVETABLES_TOKEN", TOKEN)
    monkeypatch.setenv("LIVETABLES_KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("LIVETABLES_PIPELINE_MASTER", master)
    assert entry.main(["pipeline"]) == 0
    assert stat.S_IMODE(written.stat().st_mode) == mode


def test_settings_are_read_by_java_as_they_are_but_for_secrets() -> None:
    settings = {"spark.a": r"C:\jars", "spark.b": "two\nlines = x", "spark.c": Secret("hidden")}
    assert parse_properties(properties_file(settings)) == {"spark.a": r"C:\jars", "spark.b": "two\nlines = x"}


def test_spark_properties_have_everything_that_a_jvm_is_started_with(tmp_path: Path) -> None:
    environment = clean_environment(
        LIVETABLES_PIPELINE_MASTER="local[3]", LIVETABLES_PIPELINE_DRIVER_MEMORY_MEGABYTES="777"
    )
    done = subprocess.run(
        [*COMMAND, "pipeline", "--spark-properties"], env=environment, cwd=tmp_path, capture_output=True, check=True
    )
    settings = parse_properties(done.stdout.decode())
    assert settings["spark.master"] == "local[3]"
    assert settings["spark.driver.memory"] == "777m"
    assert settings["spark.sql.shuffle.partitions"] == "2", "whatever the master has"
    assert "spark-sql-kafka" in settings["spark.driver.extraClassPath"]
    assert "-Xss" in settings["spark.driver.extraJavaOptions"]
    for process in ("driver", "executor"):
        assert "-XX:+ExitOnOutOfMemoryError" in settings[f"spark.{process}.extraJavaOptions"]


@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.chaos
def test_under_spark_submit_it_becomes_live_on_the_master_that_spark_submit_chose(
    broker: Broker, tmp_path: Path
) -> None:
    users, accounts = unique_topic("user"), unique_topic("account")
    for topic in (users, accounts):
        create_topic(broker.bootstrap_servers, topic)
    produce(broker.bootstrap_servers, [Record(users, 0, b'{"userId": "u1", "age": 7}', 1_700_000_000_000)])
    with ServerProcess(tmp_path) as server:
        environment = clean_environment(
            PATH=f"{BIN}{os.pathsep}{os.environ['PATH']}",  # spark-submit looks for PySpark with the first python3
            LIVETABLES_TOKEN=TOKEN,
            LIVETABLES_KAFKA_BOOTSTRAP_SERVERS=broker.bootstrap_servers,
            LIVETABLES_PIPELINE_SERVER=server.flight,
            LIVETABLES_PIPELINE_MASTER="local[4]",
            LIVETABLES_PIPELINE_DRIVER_MEMORY_MEGABYTES="1024",
            LIVETABLES_TABLES_USERS_TOPIC=users,
            LIVETABLES_TABLES_ACCOUNTS_TOPIC=accounts,
            LIVETABLES_CONTROL_TOPIC=unique_topic("control"),
        )
        (tmp_path / "my.toml").touch()
        with (tmp_path / "submit.log").open("wb") as log:
            submitted = subprocess.Popen(
                [str(SPARK_SUBMIT), "my.toml", "--master", "local[2]"],
                env=environment,
                cwd=tmp_path,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:

            def is_live() -> bool:
                log = (tmp_path / "submit.log").read_text()
                assert submitted.poll() is None, log
                return "\nlive: " in log

            wait_until(is_live, "it is live", WAIT_SECONDS)
            assert [row["userId"] for row in server.table("users_ui").to_pylist()] == ["u1"]
            assert "starting Spark on local[2]" in (tmp_path / "submit.log").read_text()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(submitted.pid, signal.SIGKILL)
            submitted.wait()
