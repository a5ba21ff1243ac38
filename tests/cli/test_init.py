"""`livetables init`: from topics to a configuration that works, by options or by questions in a terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from livetables.config.load import load_config
from livetables.local.broker import Broker
from tests.support.kafka import Record, create_topic, produce, unique_topic
from tests.support.pipeline import Engine
from tests.support.server import ServerProcess, free_port
from tests.support.up import COMMAND, WAIT_SECONDS, clean_environment

NOON_MS = 1_700_000_000_000


def run(directory: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=directory,
        env=clean_environment(**settings),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )


class Terminal:
    """The command in a terminal, with somebody who reads its questions before answering."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self._near, far = pty.openpty()
        self.output = ""
        environment = clean_environment(TERM="dumb", COLUMNS="200")
        self._process = subprocess.Popen(
            [*COMMAND, *arguments], cwd=directory, env=environment, stdin=far, stdout=far, stderr=far
        )
        os.close(far)

    def answer(self, question: str, answer: str) -> None:
        """Wait for a question, and answer it."""
        self._read_until(question)
        os.write(self._near, f"{answer}\n".encode())

    def end(self) -> int:
        """All that it prints until it ends, and how it ends."""
        self._read_until(None)
        os.close(self._near)
        return self._process.wait(WAIT_SECONDS)

    def _read_until(self, text: str | None) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        seen = len(self.output)
        while text is None or text not in self.output[seen:]:
            assert time.monotonic() < deadline, f"waited in vain for {text!r}\n{self.output}"
            try:
                received = os.read(self._near, 4096)
            except OSError:  # the other end is closed: it has ended
                received = b""
            if not received:
                assert text is None, f"it ended before {text!r}\n{self.output}"
                return
            self.output += received.decode(errors="replace")


def filled_topics(broker: Broker) -> tuple[str, str]:
    """Customers, and orders of some of them; with fields that no column takes, and a record that no table takes."""
    customers, orders = unique_topic("shop.customers"), unique_topic("shop.orders")
    for topic in (customers, orders):
        create_topic(broker.bootstrap_servers, topic)
    records: list[tuple[str, object]] = [
        (customers, {"customerId": f"c{number}", "name": "A", "since": number, "address": {"city": "x"}})
        for number in range(4)
    ]
    records += [
        (orders, {"customerId": f"c{number % 5}", "amount": number / 2 if number % 2 else number, "paid": True})
        for number in range(10)
    ]
    produce(
        broker.bootstrap_servers,
        [
            Record(topic, number % 2, json.dumps(value).encode(), NOON_MS)
            for number, (topic, value) in enumerate(records)
        ],
    )
    return customers, orders


def test_without_options_and_a_terminal_the_shipped_tables_are_written(tmp_path: Path) -> None:
    done = run(tmp_path, "init")
    assert done.returncode == 0, done.stderr
    assert "livetables doctor --config livetables.toml" in done.stdout
    assert load_config(tmp_path / "livetables.toml", {}) == load_config(None, {})
    assert [path.name for path in tmp_path.iterdir()] == ["livetables.toml"]


def test_a_file_is_written_over_only_by_force(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text("mine")
    done = run(tmp_path, "init", "--output", "my.toml")
    assert done.returncode == 2
    assert "my.toml is there already" in done.stderr
    assert path.read_text() == "mine"
    assert run(tmp_path, "init", "--output", "my.toml", "--force").returncode == 0
    load_config(path, {})


def test_no_file_beside_the_one_that_is_written_is_touched(tmp_path: Path) -> None:
    theirs = tmp_path / ".livetables.toml.draft"
    theirs.write_text("theirs")
    assert run(tmp_path, "init").returncode == 0
    assert theirs.read_text() == "theirs"
    assert {path.name for path in tmp_path.iterdir()} == {"livetables.toml", theirs.name}


def test_properties_are_referred_to_and_not_copied(tmp_path: Path) -> None:
    (tmp_path / "client.properties").write_text(
        "bootstrap.servers=kafka.example:9093\nssl.truststore.password=hush-hush\n"
    )
    done = run(tmp_path, "init", "--kafka-properties", "client.properties")
    assert done.returncode == 0, done.stderr
    assert "hush" not in (tmp_path / "livetables.toml").read_text()
    kafka = load_config(tmp_path / "livetables.toml", {}).kafka
    assert kafka.client_properties()["ssl.truststore.password"] == "hush-hush"


def test_topics_need_a_kafka(tmp_path: Path) -> None:
    done = run(tmp_path, "init", "--topic", "orders")
    assert done.returncode == 2
    assert "give --bootstrap-servers" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_in_a_terminal_nothing_is_a_broker_of_its_own(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "init")
    terminal.answer("bootstrap servers", "")
    assert terminal.end() == 0, terminal.output
    assert load_config(tmp_path / "livetables.toml", {}) == load_config(None, {})


@pytest.mark.chaos
@pytest.mark.kafka
@pytest.mark.spark
def test_what_is_written_for_topics_passes_doctor_and_takes_every_record(
    spark: SparkSession, broker: Broker, server: ServerProcess, tmp_path: Path
) -> None:
    customers, orders = filled_topics(broker)
    done = run(tmp_path, "init", "--bootstrap-servers", broker.bootstrap_servers, "--topic", customers, orders)
    assert done.returncode == 0, done.stderr
    spec = load_config(tmp_path / "livetables.toml", {}).spec
    left, right = spec.tables
    assert {column.name: column.type for column in left.columns} == {
        "customerId": "string",
        "name": "string",
        "since": "int64",
    }
    assert {column.name: column.type for column in right.columns} == {
        "customerId": "string",
        "amount": "double",
        "paid": "bool",
    }
    assert [(view.name, view.join, view.left, view.right, view.on) for view in spec.views] == [
        ("final_ui", "left", left.name, right.name, "customerId")
    ]
    assert '# "address"' in (tmp_path / "livetables.toml").read_text()

    ports = {"LIVETABLES_SERVER_PORT": str(free_port()), "LIVETABLES_SERVER_FLIGHT_PORT": str(free_port())}
    doctor = run(tmp_path, "doctor", "--config", "livetables.toml", **ports)
    assert doctor.returncode == 0, doctor.stdout
    assert "of the last 10, 10 are rows" in doctor.stdout
    assert "dead letters" not in doctor.stdout

    with Engine(spark, server, spec, broker.bootstrap_servers, tmp_path / "checkpoint") as engine:
        engine.start("micro_batch")
        engine.finish()
        assert engine.rows("dead_letters") == []
        assert [len(engine.rows(name)) for name in (left.publish, right.publish, "final_ui")] == [4, 10, 8]


@pytest.mark.kafka
def test_in_a_terminal_topics_and_join_are_asked_for(broker: Broker, tmp_path: Path) -> None:
    customers, orders = filled_topics(broker)
    terminal = Terminal(tmp_path, "init", "--output", "shop.toml")
    terminal.answer("bootstrap servers", broker.bootstrap_servers)
    terminal.answer("client properties", "")
    terminal.answer("topics for tables", f"{orders} no-such-topic")
    terminal.answer("topics for tables", f"{orders}, {customers}")
    terminal.answer("which join", "")
    terminal.answer("how", "sideways")
    terminal.answer("how", "natural")
    assert terminal.end() == 0, terminal.output
    assert "there is no topic no-such-topic" in terminal.output
    spec = load_config(tmp_path / "shop.toml", {}).spec
    assert {table.topic for table in spec.tables} == {customers, orders}
    assert [(view.join, spec.table(view.left).topic, view.on) for view in spec.views] == [
        ("natural", customers, "customerId")
    ]
