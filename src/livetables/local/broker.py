"""A real Kafka for the demo, the tests and the benchmarks: one node, on loopback, without Docker.

A broker's directory holds everything it needs to come back at the same address with the same records:

    ports.json           the ports, chosen once
    server.properties    written anew at every start, so that a newer livetables brings its newer settings
    log4j2.properties    likewise
    broker.log           what Kafka and the JVM logged, over all starts
    data/                Kafka's own: records and metadata

The broker never outlives the process that started it, not even when that process is killed with SIGKILL.
"""

from __future__ import annotations

import base64
import json
import logging
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from livetables.child import spawn
from livetables.jvm.jars import jar_directory, java_executable
from livetables.local.ports import LOOPBACK, free_ports, is_free
from livetables.model.errors import BrokerError

HOST = LOOPBACK
START_SECONDS = 60.0
STOP_SECONDS = 10.0
POLL_SECONDS = 0.05
LOG_LINES_SHOWN = 20
LOG_BYTES_READ = 64 * 1024

LOG4J_PROPERTIES = """\
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %p %c{1} %m%n
"""


@dataclass(frozen=True)
class Ports:
    """The two ports of a node: `client` for everybody, `controller` for its own metadata quorum of one."""

    client: int
    controller: int


class Broker:
    """A single-node Kafka in its own process. `data_directory` is kept; without one a temporary one lives until stop().

    `kill()` and then `start()` comes back at the same address with all records; so does `stop()` and `start()`, if
    the directory is kept. Calls are made by one thread at a time; which thread that is does not matter.
    """

    def __init__(self, data_directory: Path | None = None, heap_megabytes: int = 384) -> None:
        self._kept_directory = data_directory
        self._directory: Path | None = None
        self._heap_megabytes = heap_megabytes
        self._ports: Ports | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients, `host:port`. Known from the first start on, or from choose_address() on."""
        if self._ports is None:
            raise BrokerError("the broker has no address yet", "call start() first")
        return f"{HOST}:{self._ports.client}"

    @property
    def pid(self) -> int | None:
        """The id of the broker's process, None while there is none."""
        if self._process is None or self._process.poll() is not None:
            return None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How the broker's process ended by itself, as subprocess has it; None while it runs, or before."""
        return None if self._process is None else self._process.poll()

    def choose_address(self) -> str:
        """Return the address that start() will use, for those who can wait for the broker by themselves."""
        self._ports = _remembered_ports(self._open_directory())
        return self.bootstrap_servers

    def start(self) -> None:
        """Returns when clients can use the broker. If that fails, no process and no temporary directory is left."""
        if self.pid is not None:
            raise BrokerError("the broker is running already", "call stop() before starting it again")
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends the broker, gracefully if it lets us, and removes its directory if that is a temporary one."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None
        if self._directory is not None and self._kept_directory is None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None
            self._ports = None

    def kill(self) -> None:
        """Ends the broker as a crash would (SIGKILL). Its directory stays, a temporary one too, until stop()."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _start(self) -> None:
        java = java_executable()
        jars = f"{jar_directory('broker')}/*"
        directory = self._open_directory()
        ports = self._ports = _remembered_ports(directory)
        _check_free(ports, directory)
        settings = self._settings(directory / "data", ports)
        (directory / "server.properties").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        (directory / "log4j2.properties").write_text(LOG4J_PROPERTIES)

        log = directory / "broker.log"
        log_start = log.stat().st_size if log.exists() else 0
        if not (directory / "data" / "meta.properties").exists():
            self._format(java, jars, directory, log, log_start)
        process = self._process = _spawn(
            [java, *self._jvm_options(directory), "-cp", jars, "kafka.Kafka", str(directory / "server.properties")], log
        )
        self._wait_until_ready(process, ports, log, log_start)

    def _settings(self, data: Path, ports: Ports) -> dict[str, str | int]:
        """The broker's settings. Another listener (SASL, SSL) is one more entry in the two listener settings."""
        return _settings(data, ports)

    def _open_directory(self) -> Path:
        if self._directory is None:
            if self._kept_directory is None:
                self._directory = Path(tempfile.mkdtemp(prefix="livetables-broker-"))
            else:
                self._directory = self._kept_directory.resolve()
                self._directory.mkdir(parents=True, exist_ok=True)
        return self._directory

    def _format(self, java: str, jars: str, directory: Path, log: Path, log_start: int) -> None:
        """Makes the directory one of a Kafka cluster. Kafka writes meta.properties last, so half done is not done."""
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        arguments = ["format", f"--cluster-id={cluster_id}", "--config", str(directory / "server.properties")]
        process = self._process = _spawn(
            [java, *self._jvm_options(directory), "-cp", jars, "kafka.tools.StorageTool", *arguments], log
        )
        try:
            exit_code = process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            raise _failure("Kafka did not format its data directory in time", log, log_start) from None
        if exit_code != 0:
            raise _failure("Kafka could not format its data directory", log, log_start)

    def _jvm_options(self, directory: Path) -> list[str]:
        return [
            f"-Xmx{self._heap_megabytes}m",
            f"-Xms{min(64, self._heap_megabytes)}m",
            "-XX:MaxMetaspaceSize=128m",
            "-XX:MaxDirectMemorySize=64m",
            "-XX:ReservedCodeCacheSize=64m",
            "-XX:+UseSerialGC",  # a small heap on few cores: collectors with threads of their own cost more memory
            # The quick compiler only. On two busy cores it started with 3.3 instead of 5.2 s of CPU, and once warm took
            # 0.5-0.7 instead of 0.7-1.5 s of CPU for 600,000 small records, at no lower rate.
            "-XX:TieredStopAtLevel=1",
            "-XX:-UsePerfData",  # nothing written to the machine's temporary directory
            "-XX:+ExitOnOutOfMemoryError",
            f"-Dlog4j2.configurationFile={directory / 'log4j2.properties'}",
        ]

    def _wait_until_ready(self, process: subprocess.Popen[bytes], ports: Ports, log: Path, log_start: int) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not (_accepts(ports.client) and _answers(self.bootstrap_servers)):
            if time.monotonic() > deadline:
                raise _failure(f"Kafka was not ready after {START_SECONDS:.0f} s", log, log_start)
            try:
                exit_code = process.wait(POLL_SECONDS)
            except subprocess.TimeoutExpired:
                continue
            raise _failure(f"Kafka ended with code {exit_code} while starting", log, log_start)


def _spawn(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    try:
        return spawn(command, log)
    except OSError as error:
        raise BrokerError(
            f"the broker's process could not be started: {error}",
            f"check that {log.parent} is writable and that this machine has memory and processes left",
        ) from error


def _remembered_ports(directory: Path) -> Ports:
    remembered = directory / "ports.json"
    if remembered.exists():
        try:
            content = json.loads(remembered.read_text())
            return Ports(client=int(content["client"]), controller=int(content["controller"]))
        except (ValueError, KeyError, TypeError) as error:
            raise BrokerError(f"{remembered} cannot be read: {error!r}", f"remove {remembered}") from error
    client, controller = free_ports(2)
    ports = Ports(client, controller)
    draft = directory / "ports.json.draft"
    draft.write_text(json.dumps({"client": ports.client, "controller": ports.controller}))
    draft.rename(remembered)  # whole or not there at all
    return ports


def _check_free(ports: Ports, directory: Path) -> None:
    for port in (ports.client, ports.controller):
        if not is_free(port):
            raise BrokerError(
                f"port {port}, at which the broker of {directory} lives, is taken by another process",
                f"stop that process (`ss -ltnp 'sport = :{port}'` shows it; it may be an earlier broker), "
                f"or remove {directory / 'ports.json'} to move the broker to another address",
            )


def _accepts(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True


def _answers(bootstrap_servers: str) -> bool:
    silent = logging.Logger("livetables.broker.probe")
    silent.addHandler(logging.NullHandler())
    admin = AdminClient({"bootstrap.servers": bootstrap_servers}, logger=silent)
    try:
        return bool(admin.list_topics(timeout=2).brokers)
    except KafkaException:
        return False


def _failure(problem: str, log: Path, log_start: int) -> BrokerError:
    with log.open("rb") as file:
        file.seek(max(log_start, log.stat().st_size - LOG_BYTES_READ))
        lines = file.read().decode(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
    output = "\n    ".join(lines) or "(it logged nothing)"
    return BrokerError(
        f"{problem}; its last output:\n    {output}",
        "fix what its log complains about; if it lacks memory give it more (heap_megabytes), "
        "if its data is damaged remove its directory",
    )


def _settings(data: Path, ports: Ports) -> dict[str, str | int]:
    listeners = {"CLIENT": ports.client, "CONTROLLER": ports.controller}
    return {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{HOST}:{ports.controller}",
        "listeners": ",".join(f"{name}://{HOST}:{port}" for name, port in listeners.items()),
        "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in listeners),
        "inter.broker.listener.name": "CLIENT",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(data),
        # A node alone: nothing can be replicated, and one partition of each internal topic is enough.
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "share.coordinator.state.topic.num.partitions": 1,
        "group.initial.rebalance.delay.ms": 0,
        # A mistyped topic is an error to show, not a new topic.
        "auto.create.topics.enable": "false",
        "num.partitions": 2,
        # Records never vanish, however old their timestamps are.
        "log.retention.ms": -1,
        "log.retention.bytes": -1,
        # After a kill the controller refuses the new broker until the old one's session is over; Kafka's own 9 s would
        # be most of the start. A graceful stop ends the session, which is why controlled shutdown stays on.
        "broker.session.timeout.ms": 3000,
        "broker.heartbeat.interval.ms": 500,
        # Small: Kafka's own values are for a machine of its own.
        "num.network.threads": 2,
        "num.io.threads": 4,
        "log.cleaner.dedupe.buffer.size": 4 * 1024 * 1024,
    }
