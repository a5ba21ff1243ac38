"""Everything at once, in processes of their own: a broker, `livetables serve` and `livetables pipeline`."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as KafkaMessage
from pyarrow import flight

from livetables.local.broker import Broker
from livetables.model.joins import JoinType
from tests.support.kafka import ANY_TIME, Record, create_topic, delete_topic, produce, read, unique_topic
from tests.support.oracle import Sent, Side
from tests.support.pipeline import Stage
from tests.support.server import TOKEN, ServerProcess

WAIT_SECONDS = 180.0  # a JVM, Spark and a first generation, on a machine that is busy
POLL_SECONDS = 0.1
STOP_SECONDS = 60
FEW_USERS = 12  # so that most have several records, and joins many rows
MANY_USERS = 2000  # so that joins do not grow faster than their tables while records come all the time
PAIR = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S*)')

Message = bytes | Mapping[str, Any] | None
Row = dict[str, Any]


@contextmanager
def suspended(pid: int) -> Iterator[None]:
    """Let a process do nothing until the end of the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class PipelineProcess:
    """`livetables pipeline`. The driver and its JVM are one process group and are killed together."""

    def __init__(self, directory: Path, settings: Mapping[str, str]) -> None:
        self._directory = directory
        self._settings = dict(settings)
        self._process: subprocess.Popen[bytes] | None = None
        self._log = directory / "pipeline.log"
        self._log.touch()

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    @property
    def jvm_pid(self) -> int:
        """The process of the driver's JVM."""
        children = [
            int(child)
            for thread in Path(f"/proc/{self.pid}/task").iterdir()
            for child in (thread / "children").read_text().split()
        ]
        (jvm,) = [child for child in children if Path(f"/proc/{child}/exe").readlink().name == "java"]
        return jvm

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, **settings: str) -> None:
        """Start it, with settings that are given differently from now on."""
        self._settings |= settings
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("LIVETABLES_")},
            **self._settings,
            "JAVA_TOOL_OPTIONS": f"-XX:ErrorFile={self._directory}/crashed.log",
        }
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "livetables.cli.main", "pipeline"],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def stop(self) -> int:
        """Ask it to stop; its exit code."""
        assert self._process
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(STOP_SECONDS)
        self.kill()
        return code

    def kill(self) -> None:
        """Kill whatever is left of it; only once, since its number may soon be another process's."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def log(self, start: int = 0) -> str:
        """Its log, from a position on."""
        with self._log.open("rb") as file:
            file.seek(start)
            return file.read().decode(errors="replace")

    def log_end(self) -> int:
        return self._log.stat().st_size

    def events(self, kind: str, start: int = 0) -> list[dict[str, str]]:
        """The log lines about an event, each as its keys and values."""
        lines = (dict(PAIR.findall(line)) for line in self.log(start).splitlines() if f"event={kind}" in line)
        return [pairs for pairs in lines if pairs.get("event") == kind]


@dataclass
class LiveTopic:
    """A topic and everything that was sent to it, every record marked as being from it."""

    bootstrap: str
    side: Side
    name: str
    sent: list[Sent] = field(default_factory=list)
    incarnation: int = 1
    partitions: int = 2

    @property
    def mark(self) -> str:
        return f"{self.name}#{self.incarnation}"

    def send(self, values: Iterable[bytes | None], chance: random.Random, transaction: str | None = None) -> None:
        records = self.records(values, chance)
        for record, offset in zip(records, produce(self.bootstrap, records, transaction), strict=True):
            self.add(record, offset)

    def records(self, values: Iterable[bytes | None], chance: random.Random) -> list[Record]:
        """Records for any of its partitions, with times in any order."""
        return [
            Record(self.name, chance.randrange(self.partitions), value, 1_700_000_000_000 + chance.randrange(60_000))
            for value in values
        ]

    def add(self, record: Record, offset: int) -> None:
        """Take note of a record that Kafka has taken."""
        self.sent.append(Sent(self.side, record.partition, offset, record.timestamp_ms, record.value))

    def add_doubled(self) -> int:
        """Take note of what Kafka has twice, and return how many records that are.

        A broker that restarts forgets producers by the timestamps of their last records. Ours are older than the day
        that it remembers, so what is sent again because the answer was lost becomes a second record.
        """
        known = {(sent.partition, sent.offset) for sent in self.sent}
        contents = {(sent.partition, sent.timestamp_ms, sent.value) for sent in self.sent}
        doubled = [
            (record, offset)
            for record, offset in read(self.bootstrap, self.name)
            if (record.partition, offset) not in known
            and (record.partition, record.timestamp_ms, record.value) in contents
        ]
        for record, offset in doubled:
            self.add(record, offset)
        return len(doubled)

    def delete(self) -> None:
        delete_topic(self.bootstrap, self.name)

    def create_again(self) -> None:
        create_topic(self.bootstrap, self.name, config=ANY_TIME)
        self.sent.clear()
        self.incarnation += 1


def marked_values(topic: LiveTopic, chance: random.Random, count: int, users: int = FEW_USERS) -> list[bytes]:
    """Records of some users, the same in every topic, of which a few are broken. Each says which topic it is from."""
    values = []
    for number in range(count):
        user = chance.randrange(users)
        if topic.side == "users":
            content = {"userId": f"u{user}", "name": f"{topic.mark} {chance.random()}", "age": chance.randrange(90)}
        else:
            content = {"userId": f"u{user}", "accountType": topic.mark, "balance": chance.random()}
        value = json.dumps(content).encode()
        values.append(value[:-3] if number and chance.random() < 0.05 else value)
    return values


@dataclass(frozen=True)
class Pointing:
    """Which topics the tables are of, and how they are joined."""

    users: str
    accounts: str
    join: JoinType


class System:
    """A broker, a server, a pipeline, and topics for them. Every process can be killed and started again."""

    def __init__(
        self,
        directory: Path,
        broker: Broker,
        chance: random.Random,
        settings: Mapping[str, str],
        server_settings: Mapping[str, str] | None = None,
    ) -> None:
        self.directory, self.broker, self.chance = directory, broker, chance
        self.control_topic = unique_topic("control")
        self.control_values: list[bytes | None] = []
        self.topics: dict[str, LiveTopic] = {}
        create_topic(self.bootstrap, self.control_topic, partitions=1)
        self.configured = Pointing(self.new_topic("users").name, self.new_topic("accounts").name, "left")
        self.now = self.configured  # what the tables should be, by what was sent
        self.server = ServerProcess(directory, server_settings)
        self.pipeline = PipelineProcess(
            directory,
            {
                "LIVETABLES_TOKEN": TOKEN,
                "LIVETABLES_KAFKA_BOOTSTRAP_SERVERS": self.bootstrap,
                "LIVETABLES_PIPELINE_SERVER": self.server.flight,
                "LIVETABLES_PIPELINE_MASTER": "local[2]",
                "LIVETABLES_PIPELINE_DRIVER_MEMORY_MEGABYTES": "1024",
                "LIVETABLES_PIPELINE_CHECKPOINT_DIRECTORY": str(directory / "checkpoints"),
                "LIVETABLES_TABLES_USERS_TOPIC": self.configured.users,
                "LIVETABLES_TABLES_ACCOUNTS_TOPIC": self.configured.accounts,
                "LIVETABLES_CONTROL_TOPIC": self.control_topic,
                **settings,
            },
        )

    @property
    def bootstrap(self) -> str:
        return self.broker.bootstrap_servers

    # Records

    def new_topic(self, side: Side, count: int = 60, partitions: int = 2) -> LiveTopic:
        """A topic with records."""
        topic = LiveTopic(self.bootstrap, side, unique_topic(side), partitions=partitions)
        create_topic(self.bootstrap, topic.name, partitions, config=ANY_TIME)
        self.topics[topic.name] = topic
        topic.send(marked_values(topic, self.chance, count), self.chance)
        return topic

    def send_records(self, count: int, topics: Iterable[str] = ()) -> None:
        """More records to these topics, or to all."""
        for topic in [self.topics[name] for name in topics] or list(self.topics.values()):
            topic.send(marked_values(topic, self.chance, count), self.chance)

    def of_side(self, side: Side) -> list[str]:
        return [topic.name for topic in self.topics.values() if topic.side == side]

    # Control messages

    def send_control(self, *messages: Message) -> None:
        values = [json.dumps(message).encode() if isinstance(message, Mapping) else message for message in messages]
        now = int(time.time() * 1000)
        produce(self.bootstrap, [Record(self.control_topic, 0, value, now) for value in values])
        self.control_values += values

    @property
    def control_sent(self) -> int:
        return len(self.control_values)

    def outcomes(self, count: int = 0) -> list[str | None]:
        """The outcomes of the last messages, or of all, in the order sent."""
        return [row["outcome"] for row in self.control_rows()[-count:]]

    def control_rows(self) -> list[Row]:
        return self.rows("control_raw")

    def wait_decided(self) -> None:
        """Return when every message has its outcome."""

        def is_decided() -> bool:
            table = self.table("control_raw")
            if table is None or table.num_rows != self.control_sent:
                return False
            return bool(table["outcome"].null_count == 0)

        self.wait(is_decided, "every control message is decided")

    # Tables

    def table(self, name: str) -> pa.Table | None:
        """A table of the server, or nothing while it has none."""
        try:
            return self.server.table(name)
        except flight.FlightError:
            return None

    def rows(self, table: str, generation: str | None = None) -> list[Row]:
        assert generation is None, "the server shows what is published"
        found = self.table(table)
        rows: list[Row] = [] if found is None else found.to_pylist()
        return rows

    def count(self, table: str) -> int:
        found = self.table(table)
        return 0 if found is None else int(found.num_rows)

    def status(self) -> Row:
        """The one row of orchestrator_status, or nothing while there is none."""
        rows = self.rows("orchestrator_status")
        assert len(rows) <= 1, f"orchestrator_status has {len(rows)} rows"
        return rows[0] if rows else {}

    def generations(self) -> list[Row]:
        return self.rows("generations")

    def generation_states(self) -> list[str]:
        return [row["state"] for row in self.generations()]

    def live_generations(self) -> set[str]:
        return {row["generation"] for row in self.generations() if row["state"] == "live"}

    def stored_generations(self) -> set[str]:
        """The generations of data that the server has."""
        sink = self.server.sink()
        try:
            return {each.name for each in sink.generations() if not each.name.startswith("status-")}
        finally:
            sink.close()

    def checkpoints(self) -> set[str]:
        """The generations that have something in the directory of checkpoints."""
        directory = self.directory / "checkpoints"
        return {path.name for path in directory.iterdir()} if directory.exists() else set()

    def stage(self, pointing: Pointing) -> Stage:
        """The two topics, and what was sent to them."""
        return Stage(
            self.bootstrap,
            {"users": pointing.users, "accounts": pointing.accounts},
            [*self.topics[pointing.users].sent, *self.topics[pointing.accounts].sent],
        )

    def differences(self) -> dict[str, tuple[list[Any], list[Any]]]:
        """Where the tables, under their stable names, are not what the oracle says of the topics pointed to."""
        return self.stage(self.now).view_differences(self, {"final_ui": self.now.join}, None)

    def wait_for_tables(self) -> None:
        """Return when the tables are the oracle's, and the status says which they are."""
        expected = self.stage(self.now).expected({"final_ui": self.now.join})

        def is_reached() -> bool:
            status = self.status()
            found = (status.get("usersTopic"), status.get("accountsTopic"), status.get("joinType"))
            return (
                found == (self.now.users, self.now.accounts, self.now.join)
                # Counted first, since comparing is dear, and on few cores takes from those who are waited for.
                and all(self.count(name) == len(rows) for name, rows in expected.items())
                and not self.differences()
            )

        self.wait(is_reached, f"the tables are those of {self.now}", lambda: f"{self.status()}; {self.differences()}")

    # Processes

    def start(self) -> None:
        self.server.start()
        self.pipeline.start()

    def wait(self, condition: Callable[[], bool], what: str, found: Callable[[], object] = lambda: "") -> None:
        """Return when the condition holds; when it does not come to hold, show the pipeline's log."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            if time.monotonic() > deadline or not self.pipeline.is_running:
                ended = "" if self.pipeline.is_running else "; the pipeline has ended"
                raise AssertionError(f"not so: {what}{ended}; {found()}\n{self.pipeline.log()[-6000:]}")
            time.sleep(POLL_SECONDS)

    def close(self) -> None:
        self.pipeline.kill()
        self.server.kill()

    def __enter__(self) -> System:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Feeder:
    """Sends records to all topics of a system, or to given ones, all the time, but while it is paused."""

    def __init__(
        self, system: System, seed: int, seconds: float = 0.1, topics: Callable[[], Iterable[str]] | None = None
    ) -> None:
        self.failure: BaseException | None = None
        self._topics = topics or (lambda: list(system.topics))
        self._system, self._seconds = system, seconds
        self._chance = random.Random(seed)
        # One for all the time: to make one takes longer than the pauses that a watcher should see.
        self._producer = Producer({"bootstrap.servers": system.bootstrap, "enable.idempotence": True, "linger.ms": 0})
        self._closing, self._sending = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._feed, name="feeder", daemon=True)
        self._thread.start()

    def __enter__(self) -> Feeder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._thread.join()
        if self.failure and not error:
            raise self.failure

    @property
    def paused(self) -> threading.Lock:
        """While it is held, nothing is sent, and everything that was sent is in its topic's `sent`."""
        return self._sending

    def _feed(self) -> None:
        while not self._closing.wait(self._seconds):
            try:
                with self._sending:
                    for name in self._topics():
                        self._send(self._system.topics[name])
                    assert self._producer.flush(WAIT_SECONDS) == 0, "not all records were acknowledged"
            except BaseException as failure:
                self.failure = failure
                return

    def _send(self, topic: LiveTopic) -> None:
        (record,) = topic.records(marked_values(topic, self._chance, 1, MANY_USERS), self._chance)

        def delivered(error: KafkaError | None, message: KafkaMessage) -> None:
            offset = message.offset()
            assert error is None, f"a record was not taken: {error}"
            assert offset is not None
            topic.add(record, offset)

        while True:
            try:
                self._producer.produce(
                    record.topic,
                    record.value,
                    None,
                    record.partition,
                    timestamp=record.timestamp_ms,
                    on_delivery=delivered,
                )
            except KafkaException as error:
                if error.args[0].code() != KafkaError._UNKNOWN_PARTITION:
                    raise
                self._producer.list_topics(record.topic, timeout=WAIT_SECONDS)  # it was added a moment ago
                time.sleep(POLL_SECONDS)
            else:
                return
