"""A server, from its configuration to its end: one store, and every door to it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import uvicorn

import livetables
from livetables.config import ServerConfig
from livetables.errors import SetupError
from livetables.log import tell
from livetables.server.control_door import ControlDoor
from livetables.server.flight import FlightDoor
from livetables.server.http import create_app
from livetables.server.hub import Hub
from livetables.server.key import Key
from livetables.server.metrics import Metrics
from livetables.server.protocol import MAX_FRAME_BYTES
from livetables.server.services import Pulse, Services
from livetables.server.store import Store
from livetables.server.websocket import WebSocketProtocol

WEB = Path(livetables.__file__).parent / "web"  # the page, built by `make`
BACKLOG = 2048  # a thousand browsers come back at once when a server restarts
GOODBYE_SECONDS = 3

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Addresses:
    """Where the doors are."""

    http: str
    flight: str


async def serve(config: ServerConfig, token: str, ready: Callable[[Addresses], None]) -> None:
    """Serve until the process is told to stop; `ready` is called when every door is open."""
    web_socket = _listening(config.host, config.port, "port")
    path = None if config.store == ":memory:" else Path(config.store)
    with (
        contextlib.closing(web_socket),
        contextlib.closing(Store(path, memory_megabytes=config.memory_megabytes)) as store,
    ):
        tell(log, "store_opened", path=config.store, generations=len(store.generations()))
        key, pulse, control, metrics = Key(token), Pulse(store), ControlDoor(), Metrics()
        hub = Hub(store, metrics)
        door = _flight_door(config, store, key, pulse, control, metrics)
        services = Services(
            store, key, pulse, control, hub, metrics, door.port, origins=config.origins, web_directory=WEB
        )
        services.hub.start()
        watch = asyncio.create_task(services.sessions.watch(services))
        server = _WebServer(_uvicorn_config(services))
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, server.leave)
        try:
            serving = asyncio.create_task(server.serve(sockets=[web_socket]))
            while not server.started and not serving.done():
                await asyncio.sleep(0.01)
            if server.started:
                host, port = web_socket.getsockname()[:2]
                addresses = Addresses(
                    f"http://{_url_host(host)}:{port}", f"grpc://{_url_host(config.host)}:{door.port}"
                )
                tell(log, "serving", http=addresses.http, flight=addresses.flight, version=version("livetables"))
                ready(addresses)
            await serving
        finally:
            watch.cancel()
            await asyncio.to_thread(door.shutdown)
            await services.hub.stop()
            tell(log, "stopped")


class _WebServer(uvicorn.Server):
    """Leaves the process's signals to `serve`: uvicorn would raise them again when it is done."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def leave(self) -> None:
        self.should_exit = True


def _uvicorn_config(services: Services) -> uvicorn.Config:
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
    config: ServerConfig, store: Store, key: Key, pulse: Pulse, control: ControlDoor, metrics: Metrics
) -> FlightDoor:
    _listening(config.host, config.flight_port, "flight_port").close()  # gRPC's own error does not tell the port
    return FlightDoor(
        config.host, config.flight_port, store=store, key=key, pulse=pulse, control=control, metrics=metrics
    )


def _url_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
