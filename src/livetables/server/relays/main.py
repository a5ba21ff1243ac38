"""A relay: a process that serves WebSockets of the server that started it and hands connections to it.

Sessions are served by the same code as in the server. What differs is where things come from: viewports, the tables'
names, the status and the decision about a key come from the server, over one socket. When that closes, the relay
closes its clients' connections, saying that the server restarts, and ends.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import uvloop
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket
from uvicorn import Config
from uvicorn.server import ServerState

from livetables.log import Throttle, log_to_stderr
from livetables.model.roles import Role
from livetables.server.access.key import Key
from livetables.server.access.logins import Peer
from livetables.server.api.asgi import GOODBYE_SECONDS, uvicorn_config
from livetables.server.health.freshness import Status
from livetables.server.health.metrics import Metrics
from livetables.server.live.connection import serve_session
from livetables.server.live.sessions import Sessions
from livetables.server.live.websocket import WebSocketProtocol
from livetables.server.relays.handover import receive_connection
from livetables.server.relays.hub import RelayHub
from livetables.server.relays.link import Outbox, received
from livetables.server.relays.messages import (
    Counts,
    Failure,
    Keys,
    Login,
    LoginAnswer,
    News,
    ServerSummary,
    Setup,
    Taken,
    ToRelay,
    Value,
    to_relay,
)

COUNT_SECONDS = 1.0

log = logging.getLogger(__name__)
throttle = Throttle()


class Upstream:
    """The server, as its relay sees it."""

    def __init__(self, reader: asyncio.StreamReader, outbox: Outbox) -> None:
        self._reader = reader
        self._outbox = outbox
        self._logins: dict[int, asyncio.Future[LoginAnswer]] = {}
        self._numbers = itertools.count(1)
        self.summary: ServerSummary | None = None

    async def received(self) -> ToRelay:
        message = to_relay.validate_json(await received(self._reader))
        if isinstance(message, LoginAnswer):
            self.summary = message.summary
            answered = self._logins.pop(message.login, None)
            if answered and not answered.done():
                answered.set_result(message)
        elif isinstance(message, ServerSummary):
            self.summary = message
        return message

    async def log_in(self, peer: Peer, token: str) -> Role:
        """Ask the server for the role of a client that may log in; a RequestError has the reason why not."""
        number = next(self._numbers)
        answer: asyncio.Future[LoginAnswer] = asyncio.get_running_loop().create_future()
        self._logins[number] = answer
        login = Login(login=number, address=peer.address, token=token)
        self._outbox.put(("login", number), lambda: login)
        try:
            answered = await answer
        finally:
            self._logins.pop(number, None)
            self._outbox.take_back(("login", number))
        if answered.problem:
            raise answered.problem.error()
        assert answered.role
        return answered.role

    def tables(self) -> tuple[str, ...]:
        assert self.summary
        return self.summary.tables

    def status(self) -> Status:
        assert self.summary
        return self.summary.status


@dataclass(frozen=True)
class RelayServices:
    """One of each, for all sessions of a relay."""

    upstream: Upstream
    key: Key
    hub: RelayHub
    metrics: Metrics
    origins: tuple[str, ...]
    hosts: tuple[str, ...]
    hides_raw: bool = False
    sessions: Sessions = field(default_factory=Sessions)

    @property
    def store(self) -> Upstream:
        return self.upstream

    @property
    def pulse(self) -> Upstream:
        return self.upstream

    async def log_in(self, peer: Peer, token: str) -> Role:
        return await self.upstream.log_in(peer, token)


class Clients:
    """The connections that a relay was handed."""

    def __init__(self, services: RelayServices, handover: socket.socket, proxies: Sequence[str]) -> None:
        self._handover = handover
        self._state = ServerState()
        self._taking: set[asyncio.Task[None]] = set()
        self.closed = 0  # of those that were taken

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await serve_session(WebSocket(scope, receive, send), services)

        self._config = uvicorn_config(app, proxies=proxies)
        self._config.load()

    def start(self) -> None:
        asyncio.get_running_loop().add_reader(self._handover, self._take_all)

    async def stop(self) -> None:
        """Close them, with the reason that the server restarts."""
        asyncio.get_running_loop().remove_reader(self._handover)
        for connection in list(self._state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(GOODBYE_SECONDS):
                while self._state.connections or self._state.tasks:
                    await asyncio.sleep(0.02)
        except TimeoutError:
            log.warning("%d clients did not close their connection in time", len(self._state.connections))

    def _take_all(self) -> None:
        while True:
            try:
                taken = receive_connection(self._handover)
            except BlockingIOError:
                return
            except OSError as error:
                throttle.log_event(log, "connection_lost", logging.WARNING, cause=error)
                return
            if taken is None:  # the server has gone, which `serve_relay` notices too
                asyncio.get_running_loop().remove_reader(self._handover)
                return
            task = asyncio.create_task(self._take(*taken))
            self._taking.add(task)
            task.add_done_callback(self._taking.discard)

    async def _take(self, connection: socket.socket, head: bytes) -> None:
        def protocol() -> _HandedProtocol:
            return _HandedProtocol(self._config, self._state, head, self._lost)

        try:
            await asyncio.get_running_loop().connect_accepted_socket(protocol, connection)
        except OSError:  # the client has left
            connection.close()
            self._lost()

    def _lost(self) -> None:
        self.closed += 1


class _HandedProtocol(WebSocketProtocol):
    """A WebSocket whose request was read elsewhere."""

    def __init__(self, config: Config, server_state: ServerState, head: bytes, lost: Callable[[], None]) -> None:
        super().__init__(config, server_state, app_state={})
        self._head = head
        self._lost = lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.data_received(self._head)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._lost()


async def serve_relay(link: socket.socket, handover: socket.socket) -> None:
    """Serve until the server closes the link, or this process gets a signal to stop."""
    reader, writer = await asyncio.open_unix_connection(sock=link)
    outbox, metrics = Outbox(writer), Metrics()
    upstream = Upstream(reader, outbox)
    setup, keys, summary = [await upstream.received() for _ in range(3)]
    assert isinstance(setup, Setup)
    assert isinstance(keys, Keys)
    assert isinstance(summary, ServerSummary)
    hub = RelayHub(outbox, metrics)
    key = Key(*keys.keys)
    services = RelayServices(upstream, key, hub, metrics, setup.origins, setup.hosts, setup.hides_raw)
    clients = Clients(services, handover, setup.proxies)
    tasks = [
        asyncio.create_task(_follow(services, outbox)),
        asyncio.create_task(outbox.send()),
        asyncio.create_task(services.sessions.watch(services.pulse)),
        asyncio.create_task(_count(services, clients, outbox)),
    ]
    stop = asyncio.create_task(_stopped())
    clients.start()
    done, _ = await asyncio.wait([*tasks, stop], return_when=asyncio.FIRST_COMPLETED)
    await clients.stop()
    for task in (*tasks, stop):
        task.cancel()
    for error in (task.exception() for task in done):
        if error and not isinstance(error, OSError | EOFError):
            raise error


async def _follow(services: RelayServices, outbox: Outbox) -> None:
    """Take what the server sends, until it closes."""
    while True:
        match message := await services.upstream.received():
            case News() | Failure():
                services.hub.take(message)
                outbox.put(("taken", message.sub), partial(Taken, sub=message.sub))
            case Keys():
                services.key.change(message.keys)
                services.sessions.send_away_strangers(services.key)
            case ServerSummary():
                services.sessions.elsewhere = message.elsewhere
            case LoginAnswer() | Setup():
                pass


async def _count(services: RelayServices, clients: Clients, outbox: Outbox) -> None:
    """Send the server the relay's numbers every second. Runs forever."""

    def counts() -> Counts:
        values = services.metrics.values().items()
        return Counts(
            clients=len(services.sessions),
            closed=clients.closed,
            values=tuple(Value(metric=name, labels=labels, value=value) for (name, labels), value in values),
        )

    while True:
        outbox.put("counts", counts)
        await asyncio.sleep(COUNT_SECONDS)


async def _stopped() -> None:
    """Return when this process gets a signal to stop."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()


def main() -> None:
    """Serve with the sockets whose descriptors the command line gives."""
    log_to_stderr()
    link, handover = (socket.socket(fileno=int(descriptor)) for descriptor in sys.argv[1:3])
    for each in (link, handover):
        each.setblocking(False)
    uvloop.run(serve_relay(link, handover))


if __name__ == "__main__":
    main()
