"""The system that faults are injected into: processes, the links between them, records, clients, and what must hold."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pyarrow import flight

from livetables.local.broker import HOST, Broker, Ports
from livetables.local.ports import free_ports
from livetables.model.errors import LivetablesError
from tests.chaos.clients import Client, Clients, Follower, Page, Reader
from tests.chaos.clocks import Clock
from tests.chaos.disks import mounted
from tests.chaos.driver_code import FILL_HEAP, SLEEP, with_code
from tests.chaos.links import Link
from tests.chaos.supervisor import Supervisor
from tests.chaos.swaps import disk_megabytes
from tests.support.pipeline import content
from tests.support.server import TOKEN
from tests.support.system import Feeder, Pointing, System

PIPELINE_HOST, CLIENT_HOST, KAFKA_HOST = "127.0.0.2", "127.0.0.3", "127.0.0.4"
SETTINGS = {
    "LIVETABLES_GENERATIONS_LINGER_SECONDS": "1",
    "LIVETABLES_GENERATIONS_SWITCH_AFTER_SECONDS": "600",  # a slow machine is no reason to switch too early
    "LIVETABLES_PIPELINE_BATCH_SECONDS": "5",  # so that there is soon a commit to go on from
    "LIVETABLES_PIPELINE_DRIVER_MEMORY_MEGABYTES": "768",
}
SERVER_SETTINGS = {"LIVETABLES_SERVER_RELAYS": "1"}
PAGES = 3
FIRST_RECORDS = 40  # that a topic has when tables are pointed to it
SECONDS_MAX = 180.0  # until everything works again after any fault
POLL_SECONDS = 0.05
DISK_MEGABYTES, CHECKPOINT_MEGABYTES = 384, 128

LinkName = Literal["frames", "flight", "pages", "readers", "kafka"]
COUNT = """SELECT (SELECT count(*) FROM users_ui) + (SELECT count(*) FROM accounts_ui)
    + (SELECT count(*) FROM dead_letters) AS records"""


class TwoWayBroker(Broker):
    """A broker with a second listener, which is advertised to clients at the address of a link."""

    def __init__(self) -> None:
        super().__init__()
        (self.second_port,) = free_ports(1)

    def _settings(self, data: Path, ports: Ports) -> dict[str, str | int]:
        settings = super()._settings(data, ports)
        listeners = f"{settings['listeners']},LINKED://{HOST}:{self.second_port}"
        clients = f"CLIENT://{HOST}:{ports.client},LINKED://{KAFKA_HOST}:{self.second_port}"
        return {
            **settings,
            "listeners": listeners,
            "advertised.listeners": clients,
            "listener.security.protocol.map": f"{settings['listener.security.protocol.map']},LINKED:PLAINTEXT",
        }


@dataclass(frozen=True)
class Tally:
    """How far tables are from the oracle's, in rows."""

    lost: int = 0
    doubled: int = 0
    wrong: int = 0

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.doubled or self.wrong)

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.lost + other.lost, self.doubled + other.doubled, self.wrong + other.wrong)


def tally(found: Sequence[tuple[Any, ...]], expected: Sequence[tuple[Any, ...]], key_length: int) -> Tally:
    """Compare rows whose first values say which records they are of."""
    counts, rows = Counter(row[:key_length] for row in found), {row[:key_length]: row for row in found}
    wanted = {row[:key_length]: row for row in expected}
    return Tally(
        lost=len(wanted.keys() - rows.keys()),
        doubled=sum(count - 1 for count in counts.values()),
        wrong=sum(key not in wanted or wanted[key] != row for key, row in rows.items()),
    )


KEY_LENGTHS = {"users_ui": 2, "accounts_ui": 2, "final_ui": 4, "dead_letters": 4}


class Subject:
    """A running system with known records and watching clients."""

    def __init__(
        self,
        system: System,
        links: Mapping[LinkName, Link],
        mounts: Mapping[str, bool],
        clocks: Mapping[str, Clock],
    ) -> None:
        self.system, self.links, self.mounts, self.clocks = system, links, mounts, clocks
        self.supervisor = Supervisor(system)
        self.clients = Clients([])
        self.fed = {system.now.users, system.now.accounts}
        self.notes = Counter[str]()
        self._broker_restarts = 0
        self.feeder: Feeder

    @property
    def directory(self) -> Path:
        return self.system.directory

    # Asking, while anything may be away

    def asked(self, ask: Callable[[], Any]) -> Any:
        """The answer, or nothing while there is none."""
        with suppress(
            OSError,
            flight.FlightError,
            pa.ArrowException,
            LivetablesError,
            AssertionError,
            ValueError,
            IndexError,
            KeyError,
        ):
            return ask()
        return None

    def wait(self, condition: Callable[[], Any], what: str, found: Callable[[], object] = lambda: "") -> None:
        """Return when a condition holds; one that cannot be looked at does not."""
        deadline = time.monotonic() + SECONDS_MAX
        while not self.asked(condition):
            if time.monotonic() > deadline:
                raise AssertionError(f"not so after {SECONDS_MAX:.0f} s: {what}; {self.asked(found)}; {self.state()}")
            time.sleep(POLL_SECONDS)

    def state(self) -> str:
        """Everything that shows why it does not work, in one line."""
        generations = self.asked(
            lambda: [(row["generation"], row["state"], row["message"]) for row in self.system.generations()[-3:]]
        )
        restarts = dict(self.supervisor.restarts)
        free = shutil.disk_usage(self.directory).free // 1024**2
        used = {path.name: f"{disk_megabytes(path):.0f} MB" for path in self.directory.iterdir()}
        return (
            f"status {self.asked(self.system.status)}; generations {generations}; restarts {restarts}; "
            f"{free} MB free beside {used}"
        )

    def sql(self, text: str) -> list[dict[str, Any]]:
        options = flight.FlightCallOptions(timeout=30, headers=[(b"authorization", f"Bearer {TOKEN}".encode())])
        with flight.FlightClient(self.system.server.flight) as client:
            rows: list[dict[str, Any]] = (
                client.do_get(flight.Ticket(json.dumps({"sql": text})), options).read_all().to_pylist()
            )
        return rows

    # Records

    def records_sent(self) -> int:
        """How many records the topics pointed to have."""
        return sum(len(self.system.topics[name].sent) for name in (self.system.now.users, self.system.now.accounts))

    def records_shown(self) -> int:
        (row,) = self.sql(COUNT)
        return int(row["records"])

    # Processes

    def processes(self, name: str) -> list[int]:
        """The process ids of a part of the system."""
        system = self.system
        match name:
            case "server":
                return [system.server.pid, *system.server.relays()]
            case "relay":
                return system.server.relays()
            case "driver":
                return [system.pipeline.pid]
            case "jvm":
                return [system.pipeline.jvm_pid]
            case "pipeline":
                return [system.pipeline.pid, system.pipeline.jvm_pid]
            case "broker":
                return [system.broker.pid] if system.broker.pid else []
        raise AssertionError(f"there is no {name}")

    def process(self, name: str) -> int:
        """The process id of a part of the system, as soon as it is there."""
        self.wait(lambda: self.processes(name), f"the {name} is there")
        return self.processes(name)[0]

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a part of the system; what has just ended gets none."""
        for pid in self.asked(lambda: self.processes(name)) or []:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    # What must hold

    def settle(self) -> tuple[Tally, list[str]]:
        """Wait until all is as it should be, with no record under way; how far it is from that, and why."""
        with self.feeder.paused:
            try:
                assert self.feeder.failure is None, f"records are not sent any more: {self.feeder.failure}"
                self._add_doubled()
                self.wait(self._is_decided, "every control message is decided")
                self.wait(lambda: self.records_shown() == self.records_sent(), "every record is shown", self._counts)
                self.wait(lambda: self.compared().is_clean, "the tables are the oracle's", self.compared)
                self.wait(lambda: self.system.status()["state"] == "live", "the status is well")
                self.wait(
                    lambda: not self.clients.differences(self.system.server),
                    "every client has converged",
                    lambda: self.clients.differences(self.system.server),
                )
            except AssertionError as failure:
                return self.asked(self.compared) or Tally(lost=self.records_sent()), [str(failure)]
            self._tidy()
            return Tally(), []

    def compared(self) -> Tally:
        """The tables beside the oracle's."""
        views = {"final_ui": self.system.now.join}
        expected = self.system.stage(self.system.now).expected(views)
        found = content(self.system, list(views), None)
        return sum((tally(found[name], rows, KEY_LENGTHS[name]) for name, rows in expected.items()), start=Tally())

    def _counts(self) -> str:
        return f"{self.records_shown()} of {self.records_sent()} are"

    def _is_decided(self) -> bool:
        outcomes = self.system.outcomes()
        return len(outcomes) == self.system.control_sent and all(outcomes)

    def _add_doubled(self) -> None:
        """Have the oracle know of the records that Kafka has doubled when it was restarted."""
        if (restarts := self.supervisor.restarts["broker"]) != self._broker_restarts:
            self._broker_restarts = restarts
            self.notes["records that Kafka has doubled"] += sum(
                topic.add_doubled() for topic in self.system.topics.values()
            )

    def _tidy(self) -> None:
        """Remove what was kept aside: the disk is small."""
        for path in [
            *self.directory.glob("store.duckdb.damaged-*"),
            *(self.directory / "checkpoints").glob("*.damaged-*"),
        ]:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        kept = [row["generation"] for row in self.system.generations() if row["state"] == "kept"]
        if kept:
            self.system.send_control(*({"discard": name} for name in kept))
            self.wait(self._is_decided, "what was kept is discarded")

    # Control

    def point(self, pointing: Pointing) -> str:
        """Have the tables be of other topics, or joined otherwise; the outcome. While it is open, both are fed."""
        before = self.system.now
        self.fed |= {pointing.users, pointing.accounts}
        self.system.send_control(
            {"usersTopic": pointing.users, "accountsTopic": pointing.accounts, "joinType": pointing.join}
        )
        place = self.system.control_sent - 1
        self.wait(lambda: self.system.outcomes()[place], f"the message for {pointing} is decided")
        outcome = str(self.system.outcomes()[place])
        with self.feeder.paused:
            self.system.now = pointing if outcome in ("applied", "unchanged") else before
            self.fed = {self.system.now.users, self.system.now.accounts}
        return outcome


@contextmanager
def running(chance: random.Random, kept: Path | None = None, pages: int = PAGES) -> Iterator[Subject]:
    """A system with everything around it, its first tables served and seen by all clients."""
    with ExitStack() as stack:
        temporary = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="livetables-chaos-")))
        directory = temporary / "system"
        mounts = {
            "directory": stack.enter_context(mounted(directory, DISK_MEGABYTES)),
            "checkpoints": stack.enter_context(mounted(directory / "checkpoints", CHECKPOINT_MEGABYTES)),
        }
        if kept:
            kept.mkdir(parents=True, exist_ok=True)
            stack.callback(_keep_logs, directory, kept)
        broker = stack.enter_context(TwoWayBroker())
        clocks = {name: Clock(temporary / f"{name}.clock") for name in ("server", "driver", "jvm")}
        system = stack.enter_context(
            System(
                directory,
                broker,
                chance,
                {
                    **SETTINGS,
                    **clocks["driver"].settings,
                    **with_code(temporary / "python", SLEEP, FILL_HEAP),
                    **clocks["jvm"].java_home(temporary / "java"),
                },
                {**SERVER_SETTINGS, **clocks["server"].settings},
            )
        )
        server = system.server
        links: dict[LinkName, Link] = {
            "frames": Link((PIPELINE_HOST, server.port), (HOST, server.port)),
            "flight": Link((PIPELINE_HOST, server.flight_port), (HOST, server.flight_port)),
            "pages": Link((CLIENT_HOST, server.port), (HOST, server.port)),
            "readers": Link((CLIENT_HOST, server.flight_port), (HOST, server.flight_port)),
            "kafka": Link((KAFKA_HOST, broker.second_port), (HOST, broker.second_port)),
        }
        for link in links.values():
            stack.enter_context(link)
        subject = Subject(system, links, mounts, clocks)
        server.start()
        system.pipeline.start(
            LIVETABLES_PIPELINE_SERVER=f"grpc://{PIPELINE_HOST}:{server.flight_port}",
            LIVETABLES_KAFKA_BOOTSTRAP_SERVERS=f"{KAFKA_HOST}:{broker.second_port}",
        )
        system.wait_for_tables()
        stack.enter_context(subject.supervisor)
        subject.feeder = stack.enter_context(Feeder(system, chance.randrange(2**32), topics=lambda: list(subject.fed)))
        clients: list[Client] = [
            *(Page(f"page {number}", f"ws://{CLIENT_HOST}:{server.port}/ws") for number in range(pages)),
            Follower("follower", f"http://{CLIENT_HOST}:{server.port}"),
            Reader("reader", f"grpc://{CLIENT_HOST}:{server.flight_port}"),
        ]
        subject.clients = stack.enter_context(Clients(clients))
        yield subject


def _keep_logs(directory: Path, kept: Path) -> None:
    for log in directory.glob("*.log"):
        shutil.copy(log, kept / log.name)


def stopped(subject: Subject, name: str, seconds: float) -> None:
    """Let a part of the system stand still for a while."""
    subject.signal(name, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        subject.signal(name, signal.SIGCONT)


def at_once(*calls: Callable[[], object]) -> list[BaseException]:
    """Make calls at the same time; what they raised."""
    raised: list[BaseException] = []

    def make(call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=make, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised
