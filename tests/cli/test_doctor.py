"""`livetables doctor` as a person runs it: what it says, and how it ends."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from livetables.client.local_system import Addresses, LocalSystem
from livetables.local.broker import Broker
from tests.support import certificates
from tests.support.kafka import Record, create_topic, produce, unique_topic
from tests.support.server import TOKEN, ServerProcess, free_port
from tests.support.up import COMMAND, WAIT_SECONDS, clean_environment

pytestmark = pytest.mark.processes

NOON_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server")) as running:
        yield running


def doctor(directory: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    ports = {
        "LIVETABLES_SERVER_PORT": str(free_port()),
        "LIVETABLES_SERVER_FLIGHT_PORT": str(free_port()),
    }
    return subprocess.run(
        [*COMMAND, "doctor", *arguments],
        cwd=directory,
        env=clean_environment(**{**ports, **settings}),
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )


def findings(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in json.loads(done.stdout)["checks"]}


def test_without_a_broker_of_ones_own_the_machine_is_looked_at(tmp_path: Path) -> None:
    done = doctor(tmp_path)
    assert done.returncode == 0, done.stdout
    assert "✓ Java" in done.stdout
    assert "- broker               none is configured: `livetables up` starts one" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_without_java_the_rest_is_looked_at_too(tmp_path: Path) -> None:
    done = doctor(tmp_path, "--json", PATH="", JAVA_HOME="")
    found = findings(done)
    assert done.returncode == 1
    assert found["Java"]["found"] == "there is no java on the PATH"
    assert "install Java 17" in found["Java"]["cure"]
    assert found["configuration"]["state"] == "ok"


def test_every_problem_of_the_configuration_is_shown(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text('[server]\nport = "x"\n[control]\ntopic = "no topic"\n')
    done = subprocess.run(
        [*COMMAND, "doctor", "--config", "bad.toml"],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert done.returncode == 1
    assert "server.port: must be a port" in done.stdout
    assert 'control.topic: Kafka has no topic named "no topic"' in done.stdout
    assert "- ports                not looked at: it needs configuration" in done.stdout


def test_a_port_and_a_broker_that_are_not_what_they_should_be(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        broker = f"127.0.0.1:{closed.getsockname()[1]}"
        settings = {
            "LIVETABLES_SERVER_PORT": str(other.getsockname()[1]),
            "LIVETABLES_KAFKA_BOOTSTRAP_SERVERS": broker,
        }
        done = doctor(tmp_path, "--json", **settings)
    found = findings(done)
    assert done.returncode == 1
    assert "is used by another program" in found["port"]["found"]
    assert found["Flight port"]["state"] == "ok"
    assert found["broker"]["found"] == f"cannot be reached: {broker} (Connection refused)"
    assert found["login"]["state"] == "skipped"


def test_a_server_that_runs_is_asked_with_its_key(server: ServerProcess, tmp_path: Path) -> None:
    ports = {
        "LIVETABLES_SERVER_PORT": str(server.port),
        "LIVETABLES_SERVER_FLIGHT_PORT": str(server.flight_port),
    }
    right = findings(doctor(tmp_path, "--json", LIVETABLES_TOKEN=TOKEN, **ports))
    assert right["port"]["found"].endswith("is the running livetables server's")
    assert "takes the key" in right["server"]["found"]
    assert right["freshness"]["state"] == "broken"
    assert "the pipeline has not been heard yet" in right["freshness"]["found"]

    wrong = doctor(tmp_path, "--json", LIVETABLES_TOKEN="hush-hush", **ports)  # noqa: S106
    assert wrong.returncode == 1
    assert findings(wrong)["server"]["state"] == "broken"
    assert "hush" not in wrong.stdout + wrong.stderr


def test_an_encrypted_server_is_looked_at_with_its_certificate(tmp_path: Path) -> None:
    settings = certificates.self_signed(tmp_path).settings
    with ServerProcess(tmp_path, settings) as server:
        ports = {
            "LIVETABLES_SERVER_PORT": str(server.port),
            "LIVETABLES_SERVER_FLIGHT_PORT": str(server.flight_port),
        }
        found = findings(doctor(tmp_path, "--json", LIVETABLES_TOKEN=TOKEN, **ports, **settings))
    assert found["certificate"]["found"] == "for 127.0.0.1, 0:0:0:0:0:0:0:1, localhost"
    assert found["port"]["found"].endswith("is the running livetables server's")
    assert "takes the key" in found["server"]["found"]
    stranger = certificates.expired(tmp_path).settings
    assert findings(doctor(tmp_path, "--json", **stranger))["certificate"]["state"] == "warning"
    mixed = {**settings, "LIVETABLES_SERVER_TLS_KEY": stranger["LIVETABLES_SERVER_TLS_KEY"]}
    assert findings(doctor(tmp_path, "--json", **mixed))["certificate"]["state"] == "broken"


def test_what_runs_in_the_directory_is_asked_with_the_key_that_it_left_there(
    server: ServerProcess, tmp_path: Path
) -> None:
    (tmp_path / ".livetables").mkdir()
    LocalSystem(Addresses(None, server.http, server.flight), TOKEN, {"server": server.pid}).write(
        tmp_path / ".livetables"
    )
    found = findings(doctor(tmp_path, "--json"))
    assert found["server"]["found"].startswith(f"runs at {server.http}, takes the key")


def test_what_was_killed_in_the_directory_does_not_run(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    (tmp_path / ".livetables").mkdir()
    addresses = Addresses("127.0.0.1:1", "http://127.0.0.1:1", None)
    LocalSystem(addresses, TOKEN, {"server": ended.pid}).write(tmp_path / ".livetables")
    done = doctor(tmp_path, "--json")
    assert done.returncode == 0, done.stdout
    assert findings(done)["server"]["found"].startswith("none runs here")


@pytest.mark.chaos
@pytest.mark.kafka
@pytest.mark.spark
def test_topics_and_records_that_do_not_match_are_found_and_nothing_is_written(broker: Broker, tmp_path: Path) -> None:
    users, missing, control = unique_topic("user"), unique_topic("missing"), unique_topic("control")
    create_topic(broker.bootstrap_servers, users)
    values = [b'{"userid":"u1","age":1}', b'{"userid":"u2","age":"x"}', b"hello"]
    produce(broker.bootstrap_servers, [Record(users, 0, value, NOON_MS) for value in values])
    done = doctor(
        tmp_path,
        "--json",
        LIVETABLES_KAFKA_BOOTSTRAP_SERVERS=broker.bootstrap_servers,
        LIVETABLES_TABLES_USERS_TOPIC=users,
        LIVETABLES_TABLES_ACCOUNTS_TOPIC=missing,
        LIVETABLES_CONTROL_TOPIC=control,
    )
    found = findings(done)
    assert done.returncode == 1, done.stdout
    assert found["login"]["state"] == "ok"
    assert found["topic of users"]["state"] == "ok"
    assert found["topic of accounts"]["found"] == f'topic "{missing}" does not exist'
    assert "it can be made" in found["control topic"]["found"]
    records = found["records of users"]
    assert records["state"] == "warning"
    assert records["found"].startswith("of the last 3, 1 are rows; 2 dead letters: ")
    assert "age: expected int64, found the string (1)" in records["found"]
    assert 'did you mean "userid"?' in records["cure"]
    assert list(tmp_path.iterdir()) == []
