"""A server, from its configuration to its end: one store, and every endpoint to it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import duckdb
import uvicorn

import livetables
from livetables.config.values import ServerConfig
from livetables.log import log_event
from livetables.model.errors import DamagedError, LivetablesError, RequestError, SetupError, StoreError
from livetables.model.roles import RoleKey
from livetables.server.access.key import Key
from livetables.server.access.origins import normalised
from livetables.server.api.asgi import uvicorn_config
from livetables.server.api.control_requests import ControlQueue
from livetables.server.api.flight import FlightServer
from livetables.server.api.http import create_app
from livetables.server.api.services import Backend, Pulse, Services
from livetables.server.health.metrics import Metrics
from livetables.server.live.hub import Hub
from livetables.server.relays.handover import handing_protocol
from livetables.server.relays.supervisor import Relays
from livetables.server.storage.damage import opened, set_aside
from livetables.server.storage.store import Store
from livetables.tls import ServerCertificate

try:
    import resource
except ModuleNotFoundError:  # Windows, which has no such limit
    resource = None  # type: ignore[assignment]

WEB = Path(livetables.__file__).parent / "web"  # the page, built by `make`
BACKLOG = 2048  # a thousand browsers come back at once when a server restarts
SWITCH_SECONDS = 0.001  # after which a thread lets another run; Python's own 5 ms are as long as a frame may take
LOOK_SECONDS = 1.0
TRIM_SECONDS = 10.0

KeySource = Callable[[], Sequence[RoleKey]]  # the keys now; a LivetablesError says why they cannot be read

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Addresses:
    """Where the endpoints are."""

    http: str
    flight: str


async def serve(config: ServerConfig, keys: KeySource, ready: Callable[[Addresses], None]) -> None:
    """Serve until the process is stopped; `ready` is called when every endpoint is open.

    The keys are read again every second: those that are valid are the ones that `keys` gives now.
    """
    _raise_file_limit()
    sys.setswitchinterval(SWITCH_SECONDS)
    given = keys()
    key, certificate = Key(*given), _certificate(config)
    web_socket = _listening(config.host, config.port, "port")
    path = None if config.store == ":memory:" else Path(config.store)
    with (
        contextlib.closing(web_socket),
        _setting_aside(path),
        contextlib.closing(opened(path, config.memory_megabytes)) as store,
    ):
        log_event(log, "store_opened", path=config.store, generations=len(store.generations()))
        metrics = Metrics()
        backend = Backend(store, key, Pulse(store), ControlQueue(), metrics, hides_raw=config.hide_raw_from_viewers)
        http_port = web_socket.getsockname()[1]
        flight_server = _flight_server(config, http_port, backend, certificate)
        services = Services(
            store,
            key,
            backend.pulse,
            backend.control,
            metrics,
            Hub(store, metrics, memory_megabytes=config.memory_megabytes),
            flight_server.port,
            origins=tuple(origin for each in config.origins if (origin := normalised(each))),
            hosts=(config.host.lower(), socket.gethostname().lower()),
            web_directory=WEB,
            hides_raw=backend.hides_raw,
        )
        services.hub.start()
        relays = Relays(config.relays, services, given, config.proxies)
        watches = [
            asyncio.create_task(services.sessions.watch(services.pulse)),
            asyncio.create_task(_follow_keys(keys, services, relays)),
            asyncio.create_task(_trim(store, config)),
        ]
        failing = asyncio.create_task(_store_failure(store))
        app, handing = create_app(services), handing_protocol(relays.hand_over)
        server = _WebServer(uvicorn_config(app, handing, certificate, config.proxies))
        failing.add_done_callback(lambda _: server.leave())
        for number in (signal.SIGINT, signal.SIGTERM):
            _on_signal(number, server.leave)
        try:
            await relays.start()
            serving = asyncio.create_task(server.serve(sockets=[web_socket]))
            while not server.started and not serving.done():
                await asyncio.sleep(0.01)
            if server.started:
                host = _url_host(config.host)
                http, grpc = config.schemes
                addresses = Addresses(f"{http}://{host}:{http_port}", f"{grpc}://{host}:{flight_server.port}")
                log_event(log, "serving", http=addresses.http, flight=addresses.flight, version=version("livetables"))
                ready(addresses)
            await serving
            if failing.done():
                raise failing.result()
        finally:
            for watch in (*watches, failing):
                watch.cancel()
            await relays.stop()
            await asyncio.to_thread(flight_server.shutdown)
            await asyncio.to_thread(services.intake.close)
            await services.hub.stop()
            log_event(log, "stopped")


class _WebServer(uvicorn.Server):
    """Leaves the process's signals to `serve`: uvicorn would raise them again when it is done."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def leave(self) -> None:
        self.should_exit = True


def _on_signal(number: signal.Signals, leave: Callable[[], None]) -> None:
    """Have the loop call `leave` when the process gets a signal."""
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(number, leave)
    except NotImplementedError:  # Windows: then Python's own handler has to wake the loop up
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(leave))


async def _follow_keys(keys: KeySource, services: Services, relays: Relays) -> None:
    """Use the keys that are configured now. While they cannot be read, the previous ones stay. Runs forever."""
    logged = ""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        try:
            given = await asyncio.to_thread(keys)
        except LivetablesError as error:
            if error.problem != logged:
                log.warning("%s; %s; the previous keys stay", error.problem, error.cure)
            logged = error.problem
            continue
        logged = ""
        if services.key.change(given):
            log.info("the keys were changed: there are %d now", len(given))
            services.sessions.send_away_strangers(services.key)
            relays.change_keys(given)


async def _trim(store: Store, config: ServerConfig) -> None:
    """Bound what would grow for ever. Runs forever."""
    while True:
        await asyncio.sleep(TRIM_SECONDS)
        try:
            bytes_max = config.dead_letters_megabytes * 1024**2
            deleted = await asyncio.to_thread(store.trim, config.dead_letters_max, bytes_max)
            trimmed = await asyncio.to_thread(store.trim_tables)
        except (duckdb.Error, RequestError) as error:  # whatever it is, the check of the store reports it if it lasts
            log.debug("tables cannot be trimmed now: %s", error)
            continue
        if deleted:
            log_event(log, "dead_letters_trimmed", deleted=deleted)
        for table, records in trimmed.items():
            log_event(log, "trimmed", table=table, records=records)


def _raise_file_limit() -> None:
    """Let this process, and those that it starts, have as many connections open as the system allows."""
    if resource is None:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # some systems call more allowed than they allow
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextlib.contextmanager
def _setting_aside(path: Path | None) -> Iterator[None]:
    """Set a store that turned out to be damaged aside when it is closed, so that the next start makes a new one."""
    try:
        yield
    except DamagedError as error:
        if path:
            set_aside(path, error.problem)
        raise


async def _store_failure(store: Store) -> StoreError:
    """Wait until the store has failed. Nothing but another start of the server helps then: whoever runs it is to."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        try:
            await asyncio.to_thread(store.check)
        except StoreError as error:
            log_event(log, "store_failed", logging.ERROR, problem=error.problem)
            return error
        except (duckdb.Error, RequestError) as error:  # out of memory, or just about to stop
            log.debug("the store cannot be read now: %s", error)


def _certificate(config: ServerConfig) -> ServerCertificate | None:
    if not (config.tls_certificate and config.tls_key):
        return None
    certificate = ServerCertificate(Path(config.tls_certificate), Path(config.tls_key))
    if flaw := certificate.flaw():
        log.warning("clients will not take the certificate %s: %s; renew it", certificate.certificate, flaw)
    return certificate


def _listening(host: str, port: int, setting: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise SetupError(
            f"cannot listen on {host} port {port}: {error.strerror}",
            f"stop what uses it, or set server.{setting} (LIVETABLES_SERVER_{setting.upper()}); 0 takes any free one",
        ) from None


def _flight_server(
    config: ServerConfig, http_port: int, backend: Backend, certificate: ServerCertificate | None
) -> FlightServer:
    _listening(config.host, config.flight_port, "flight_port").close()  # gRPC's own error does not name the port
    return FlightServer(
        config.host,
        config.flight_port,
        backend,
        http_port=http_port,
        certificate=certificate,
    )


def _url_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
