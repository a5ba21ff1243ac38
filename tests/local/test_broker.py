"""The embedded broker keeps its records and its address, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from livetables.local.broker import HOST, Broker
from livetables.model.errors import BrokerError, SetupError
from tests.support.kafka import WAIT_SECONDS, Record, create_topic, end_offsets, produce, unique_topic, wait_until

START_AND_REPORT = """
import sys, threading
from pathlib import Path
from livetables.local.broker import Broker

broker = Broker(Path(sys.argv[1]))
starter = threading.Thread(target=broker.start)
starter.start()
starter.join()
print(broker.pid, broker.bootstrap_servers, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Broker]:
    """A running broker of the test's own, on a directory that is kept."""
    with Broker(tmp_path / "kafka") as broker:
        yield broker


@pytest.mark.kafka
def test_a_killed_broker_comes_back_at_the_same_address_with_all_records(kept: Broker) -> None:
    address = kept.bootstrap_servers
    topic = unique_topic("kill")
    create_topic(address, topic)
    values = [str(number).encode() for number in range(2000)]
    produce(address, [Record(topic, number % 2, value, 1_700_000_000_000) for number, value in enumerate(values)])

    kept.kill()
    kept.start()

    assert kept.bootstrap_servers == address
    assert sorted(read_all(address, topic)) == sorted(values)


@pytest.mark.chaos
@pytest.mark.kafka
def test_a_stopped_broker_is_gone_but_its_kept_directory_is_not(tmp_path: Path) -> None:
    directory = tmp_path / "kafka"
    with Broker(directory) as broker:
        pid = running_pid(broker)
        address = broker.bootstrap_servers
        topic = unique_topic("stop")
        create_topic(address, topic)
        produce(address, [Record(topic, 0, b"kept", 1_700_000_000_000)])

    assert not is_alive(pid)
    assert broker.pid is None
    with Broker(directory) as again:
        assert again.bootstrap_servers == address
        assert end_offsets(address, topic) == {0: 1, 1: 0}


@pytest.mark.chaos
@pytest.mark.kafka
def test_temporary_data_outlives_a_kill_but_not_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    broker = Broker()
    broker.start()
    broker.kill()
    assert list(tmp_path.iterdir()) != []
    broker.stop()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.kafka
def test_records_with_old_timestamps_are_kept(broker: Broker) -> None:
    topic = unique_topic("old")
    create_topic(broker.bootstrap_servers, topic)
    produce(broker.bootstrap_servers, [Record(topic, 0, b"from 1970", 1)])
    assert read_all(broker.bootstrap_servers, topic) == [b"from 1970"]


@pytest.mark.kafka
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_broker_dies_with_its_parent_and_not_with_the_thread_that_started_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", START_AND_REPORT, str(tmp_path / "kafka")]
    parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        pid, address = parent.stdout.readline().split()
        create_topic(address, "alive")  # after the thread that called start() has ended
    finally:
        parent.kill()
        parent.wait(WAIT_SECONDS)
    wait_until(lambda: not is_alive(int(pid)), "the broker is gone")


@pytest.mark.kafka
def test_a_broker_that_cannot_start_says_why_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    broker = Broker(heap_megabytes=1)
    with pytest.raises(BrokerError, match=r"heap") as failure:
        broker.start()
    assert "heap_megabytes" in failure.value.cure
    assert broker.pid is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.kafka
def test_a_running_broker_is_not_started_twice(broker: Broker) -> None:
    pid = broker.pid
    with pytest.raises(BrokerError, match="running already"):
        broker.start()
    assert broker.pid == pid


def test_a_remembered_port_that_somebody_took_is_named_with_the_cure(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        port = other.getsockname()[1]
        (tmp_path / "ports.json").write_text(json.dumps({"client": port, "controller": 1}))
        with pytest.raises(BrokerError, match=f"port {port}.*taken") as failure:
            Broker(tmp_path).start()
    assert "ports.json" in failure.value.cure


def test_damaged_remembered_ports_are_named_with_the_cure(tmp_path: Path) -> None:
    (tmp_path / "ports.json").write_text('{"client": ')
    with pytest.raises(BrokerError, match=r"ports\.json cannot be read") as failure:
        Broker(tmp_path).start()
    assert failure.value.cure.startswith("remove ")


def test_an_address_before_the_first_start_is_an_error() -> None:
    with pytest.raises(BrokerError, match="no address yet"):
        _ = Broker().bootstrap_servers


def test_missing_java_is_named_with_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match="no java on the PATH") as failure:
        Broker().start()
    assert "JAVA_HOME" in failure.value.cure


def test_a_java_home_without_java_is_named_with_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SetupError, match="JAVA_HOME is ") as failure:
        Broker().start()
    assert "unset it" in failure.value.cure


def test_missing_jars_are_named_with_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIVETABLES_JARS", str(tmp_path))
    with pytest.raises(SetupError, match="LIVETABLES_JARS is ") as failure:
        Broker().start()
    assert "python -m livetables.jvm" in failure.value.cure


def running_pid(broker: Broker) -> int:
    assert broker.pid is not None
    return broker.pid


def is_alive(pid: int) -> bool:
    """Whether there is such a process, one that nobody has waited for yet (a zombie) not counted."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return not Path("/proc/self").exists()


def read_all(bootstrap: str, topic: str) -> list[bytes]:
    """The values of all records that are in a topic now."""
    ends = end_offsets(bootstrap, topic)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
    values: list[bytes] = []

    def all_read() -> bool:
        for message in consumer.consume(10_000, timeout=0.1):
            value = message.value()
            assert message.error() is None
            assert isinstance(value, bytes)
            values.append(value)
        return len(values) >= sum(ends.values())

    try:
        wait_until(all_read, f"all records of {topic} are read")
    finally:
        consumer.close()
    return values
