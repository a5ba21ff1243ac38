"""The whole system on one machine: a broker if none is given, the table server, the pipeline; started together.

Its directory, `.livetables`, holds everything that it keeps:

    up.json            addresses, key and process ids, while it runs
    up.lock            held by the one that runs
    broker/            the embedded broker's records
    logs/              what server and pipeline logged, and `up.log` when they were started and ended
    livetables-spark/  what Spark needs while it runs
    store.duckdb       the tables, and `checkpoints/` how far they have got, unless the configuration says otherwise
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from livetables.client.http import HttpClient
from livetables.client.local_system import EVERY_ADDRESS, Addresses, LocalSystem, reachable
from livetables.config.load import server_ca, token_in
from livetables.config.values import Config, ServerConfig
from livetables.demo.feed import PARTITIONS, DemoData
from livetables.demo.sender import create_missing_topics
from livetables.local.broker import Broker
from livetables.local.lock import held
from livetables.local.ports import free_ports
from livetables.local.processes import BrokerProcess, CommandProcess
from livetables.local.supervisor import Supervisor
from livetables.model.errors import LivetablesError, SetupError
from livetables.tls import ServerCertificate

SERVER_STOP_SECONDS = 10.0
PIPELINE_STOP_SECONDS = 20.0
LOOK_SECONDS_MAX = 2.0  # at the server: nothing else is looked after meanwhile


@dataclass(frozen=True)
class System:
    """What to run: `arguments` are those of every command, `environment` that of every process."""

    config: Config
    token: str
    pipeline_token: str | None  # made for the pipeline of this run; None: it has a key of its own
    token_file: str | None  # where the token is from, and may be another later
    arguments: Sequence[str]
    environment: Mapping[str, str]
    directory: Path
    demo_rate: float | None = None  # records a second; None: no demo records


def run_system(
    system: System, stop: threading.Event, notify: Callable[[str], None], ready: Callable[[Addresses], None]
) -> None:
    """Run everything until `stop` is set; `ready` is called once, when the tables can be used.

    A LivetablesError has the reason why it cannot start. Either way nothing is left running at the end.
    """
    with held(system.directory), ExitStack() as at_the_end:
        server_config = system.config.server
        host = advertised_host(server_config)
        port, flight_port = _ports(server_config.port, server_config.flight_port, server_config.host)
        web, grpc = server_config.schemes
        http, flight = f"{web}://{host}:{port}", f"{grpc}://{host}:{flight_port}"
        kafka = system.config.kafka.bootstrap_servers
        ca_file = server_ca(system.config)

        def changed(pids: Mapping[str, int]) -> None:
            ca_name = str(ca_file) if ca_file else None
            addresses = Addresses(kafka, http, flight)
            LocalSystem(addresses, system.token, pids, system.token_file, ca_name).write(system.directory)

        def has_tables() -> bool:
            try:
                token = token_in(system.token_file) if system.token_file else system.token
                return _has_tables(HttpClient(http, token, LOOK_SECONDS_MAX, ca_file), system.config)
            except LivetablesError:
                return False

        supervisor = Supervisor(stop, notify, changed)
        at_the_end.callback(supervisor.stop_all)

        brokers = []
        if kafka is None:
            broker = Broker(system.directory / "broker")
            brokers.append(BrokerProcess(broker, system.directory / "broker" / "broker.log"))
            kafka = broker.choose_address()
        environment = {
            **system.environment,
            **({} if system.token_file else {"LIVETABLES_TOKEN": system.token}),
            **({"LIVETABLES_PIPELINE_TOKEN": system.pipeline_token} if system.pipeline_token else {}),
            "LIVETABLES_KAFKA_BOOTSTRAP_SERVERS": kafka,
            "LIVETABLES_SERVER_PORT": str(port),
            "LIVETABLES_SERVER_FLIGHT_PORT": str(flight_port),
            "LIVETABLES_PIPELINE_SERVER": flight,
        }
        logs = system.directory / "logs"
        is_serving = threading.Event()  # set by itself: another server might answer at its address
        server = CommandProcess(
            "server",
            ["serve", *system.arguments],
            environment,
            logs / "server.log",
            lambda line: is_serving.set() if line.startswith("serving ") else None,
            stop_seconds=SERVER_STOP_SECONDS,
        )
        pipeline = CommandProcess(
            "pipeline",
            ["pipeline", *system.arguments],
            environment,
            logs / "pipeline.log",
            notify,
            stop_seconds=PIPELINE_STOP_SECONDS,
        )
        # Server and pipeline take as long to start as the broker, and wait for it by themselves.
        notify("starting Kafka, the table server and Spark" if brokers else "starting the table server and Spark")
        supervisor.start(*brokers, server, pipeline)
        if brokers:
            notify(f"Kafka is up at {kafka}")
            create_missing_topics(kafka, tuple(table.topic for table in system.config.spec.tables), PARTITIONS)
        if system.demo_rate is not None and not stop.is_set():
            at_the_end.enter_context(closing(DemoData(kafka, system.demo_rate)))
        supervisor.wait(server, is_serving.is_set)
        if not stop.is_set():
            notify(f"the table server is up at {http}")
        supervisor.wait(pipeline, has_tables)
        if not stop.is_set():
            ready(Addresses(kafka, http, flight))
        supervisor.watch()


def _ports(port: int, flight_port: int, host: str) -> tuple[int, int]:
    """The two ports of the server, chosen here where any will do, so that it comes back to them."""
    chosen = iter(free_ports((port, flight_port).count(0), host))
    return port or next(chosen), flight_port or next(chosen)


def advertised_host(config: ServerConfig) -> str:
    """What the server is called, here and in the page's address: with TLS, by a name that its certificate is for."""
    host = reachable(config.host)
    if not (config.tls_certificate and config.tls_key):
        return host
    certificate = ServerCertificate(Path(config.tls_certificate), Path(config.tls_key))
    others = certificate.names() if config.host in EVERY_ADDRESS else ()
    fitting = (name for name in (host.strip("[]"), *others) if certificate.flaw(name) is None)
    name = next(fitting, None)
    if name is None:
        raise SetupError(
            f"the pipeline would not take the certificate {certificate.certificate} of the server at {host}: "
            f"{certificate.flaw(host.strip('[]'))}",
            f"make one that is for {host} too (subjectAltName), or set server.host to a name that it is for; "
            "renew it if it has expired",
        )
    return f"[{name}]" if ":" in name else name


def _has_tables(http_client: HttpClient, config: Config) -> bool:
    """Whether every table can be read, and the pipeline is there: on a restart, the tables are there before it."""
    http_client.get("/readyz")
    is_heard = http_client.get("/api/status")["state"] not in ("starting", "pipeline_down")
    there = {table["name"] for table in http_client.get("/api/tables")["tables"]}
    return is_heard and {table.publish for table in config.spec.tables} <= there
