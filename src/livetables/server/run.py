"""A server, from its configuration to its end: one store, and every door to it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import uvicorn

import livetables
from livetables.config import ServerConfig
from livetables.errors import LivetablesError, SetupError
from livetables.log import tell
from livetables.server.control_door import ControlDoor
from livetables.server.flight import FlightDoor
from livetables.server.http import create_app
from livetables.server.hub import Hub
from livetables.server.key import Key
from livetables.server.metrics import Metrics
from livetables.server.origins import normalised
from livetables.server.protocol import MAX_FRAME_BYTES
from livetables.server.services import Pulse, Services
from livetables.server.store import Store
from livetables.server.websocket import WebSocketProtocol
from livetables.tls import ServerCertificate

WEB = Path(livetables.__file__).parent / "web"  # the page, built by `make`
BACKLOG = 2048  # a thousand browsers come back at once when a server restarts
GOODBYE_SECONDS = 3
LOOK_SECONDS = 1.0

log = logging.getLogger(__name__)

KeySource = Callable[[], Sequence[str]]  # the keys now; a LivetablesError tells why they cannot be read

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Addresses:
    """Where the doors are."""

    http: str
    flight: str


async def serve(config: ServerConfig, keys: KeySource, ready: Callable[[Addresses], None]) -> None:
    """Serve until the process is told to stop; `ready` is called when every door is open.

    The keys are looked at again every second: those that open the doors are the ones that `keys` gives now.
    """
    key, certificate = Key(*keys()), _certificate(config)
    web_socket = _listening(config.host, config.port, "port")
    path = None if config.store == ":memory:" else Path(config.store)
    with (
        contextlib.closing(web_socket),
        contextlib.closing(Store(path, memory_megabytes=config.memory_megabytes)) as store,
    ):
        tell(log, "store_opened", path=config.store, generations=len(store.generations()))
        pulse, control, metrics = Pulse(store), ControlDoor(), Metrics()
        http_port = web_socket.getsockname()[1]
        door = _flight_door(config, http_port, store, key, pulse, control, metrics, certificate)
        services = Services(
            store,
            key,
            pulse,
            control,
            Hub(store, metrics),
            metrics,
            door.port,
            origins=tuple(origin for each in config.origins if (origin := normalised(each))),
            hosts=(config.host.lower(), socket.gethostname().lower()),
            web_directory=WEB,
        )
        services.hub.start()
        watches = [
            asyncio.create_task(services.sessions.watch(services)),
            asyncio.create_task(_follow_keys(keys, services)),
        ]
        server = _WebServer(_uvicorn_config(services, certificate))
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, server.leave)
        try:
            serving = asyncio.create_task(server.serve(sockets=[web_socket]))
            while not server.started and not serving.done():
                await asyncio.sleep(0.01)
            if server.started:
                host = _url_host(config.host)
                http, grpc = config.schemes
                addresses = Addresses(f"{http}://{host}:{http_port}", f"{grpc}://{host}:{door.port}")
                tell(log, "serving", http=addresses.http, flight=addresses.flight, version=version("livetables"))
                ready(addresses)
            await serving
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.to_thread(door.shutdown)
            await asyncio.to_thread(services.intake.close)
            await services.hub.stop()
            tell(log, "stopped")


class _WebServer(uvicorn.Server):
    """Leaves the process's signals to `serve`: uvicorn would raise them again when it is done."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def leave(self) -> None:
        self.should_exit = True


async def _follow_keys(keys: KeySource, services: Services) -> None:
    """Let the keys be those that are configured now. While they cannot be read, those before stay. Runs forever."""
    told = ""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        try:
            tokens = await asyncio.to_thread(keys)
        except LivetablesError as error:
            if error.problem != told:
                log.warning("%s; %s; the keys before stay", error.problem, error.cure)
            told = error.problem
            continue
        told = ""
        if services.key.change(tokens):
            log.info("the keys were changed: there are %d now", len(tokens))
            services.sessions.send_away_strangers(services.key)


def _certificate(config: ServerConfig) -> ServerCertificate | None:
    if not (config.tls_certificate and config.tls_key):
        return None
    certificate = ServerCertificate(Path(config.tls_certificate), Path(config.tls_key))
    if flaw := certificate.flaw():
        log.warning("clients will not take the certificate %s: %s; renew it", certificate.certificate, flaw)
    return certificate


def _uvicorn_config(services: Services, certificate: ServerCertificate | None) -> uvicorn.Config:
    return uvicorn.Config(
        create_app(services),
        ws=WebSocketProtocol,
        ws_max_size=MAX_FRAME_BYTES,
        ws_ping_interval=None,  # the protocol has heartbeats of its own, and a client may stop reading for a while
        ws_per_message_deflate=False,  # one compression a client would cost more than all the rest
        lifespan="off",
        access_log=False,
        log_config=None,  # what it says goes where everything goes
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=GOODBYE_SECONDS,
        ssl_certfile=certificate.certificate if certificate else None,
        ssl_keyfile=certificate.key if certificate else None,
    )


def _listening(host: str, port: int, setting: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise SetupError(
            f"cannot listen on {host} port {port}: {error.strerror}",
            f"stop what uses it, or set server.{setting} (LIVETABLES_SERVER_{setting.upper()}); 0 takes any free one",
        ) from None


def _flight_door(
    config: ServerConfig,
    http_port: int,
    store: Store,
    key: Key,
    pulse: Pulse,
    control: ControlDoor,
    metrics: Metrics,
    certificate: ServerCertificate | None,
) -> FlightDoor:
    _listening(config.host, config.flight_port, "flight_port").close()  # gRPC's own error does not tell the port
    return FlightDoor(
        config.host,
        config.flight_port,
        store=store,
        key=key,
        pulse=pulse,
        control=control,
        metrics=metrics,
        http_port=http_port,
        certificate=certificate,
    )


def _url_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
