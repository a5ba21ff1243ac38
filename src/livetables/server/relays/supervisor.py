"""The server's relays: processes that serve its WebSockets, so that more than one core does.

The server accepts every connection. A WebSocket goes to the relay with the fewest, over a pair of sockets that carries
descriptors; HTTP stays here. A relay looks at each distinct viewport once, however many of its clients do, and asks the
server about every login, so that an address that guesses keys has its one number of tries. A relay that dies is started
again; its clients come back by themselves and are served by others meanwhile. While no relay runs, the server serves.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial

from prometheus_client import Gauge

from livetables.backoff import delays
from livetables.log import log_event
from livetables.model.errors import RequestError, SetupError
from livetables.model.roles import RoleKey
from livetables.server.access.logins import Peer
from livetables.server.api.asgi import GOODBYE_SECONDS
from livetables.server.api.services import Services
from livetables.server.live.hub import Viewport
from livetables.server.live.state import State
from livetables.server.relays.handover import Connection, send_connection
from livetables.server.relays.link import Outbox, received
from livetables.server.relays.messages import (
    Counts,
    Failure,
    Keys,
    Login,
    LoginAnswer,
    News,
    Problem,
    ServerSummary,
    Setup,
    Subscribe,
    Taken,
    Unsubscribe,
    Window,
    from_relay,
)

START_SECONDS = 15.0
REPORT_SECONDS = 1.0
SILENT_SECONDS = 30.0  # a relay sends counts every second
DELAY_SECONDS_MAX = 30.0
HEALTHY_SECONDS = 60.0  # a relay that has lived so long has not died of what the previous one died of

log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Followed:
    """A viewport that a relay looks at, and what the relay has of it."""

    viewport: Viewport
    mark: Callable[[], None]
    sequence: int | None = None
    problem: RequestError | None = None
    is_busy: bool = False  # the relay has not shown yet what it was last sent, and gets no more until then


class Relays:
    """All relays of a server."""

    def __init__(self, count: int, services: Services, keys: Sequence[RoleKey], proxies: Sequence[str]) -> None:
        self._count = count
        self.proxies = tuple(proxies)
        self._services = services
        self.keys = tuple(keys)
        self._links: list[_Link] = []
        self._keeping: list[asyncio.Task[None]] = []
        self._is_stopping = False

    async def start(self) -> None:
        """Start them all; return when they are ready, so that the first clients are theirs."""
        if not self._count:
            return
        for each in _handover_pair():  # a system that has no such sockets is an error now, not at every start
            each.close()
        self._keeping = [asyncio.create_task(self._keep(number)) for number in range(1, self._count + 1)]
        self._keeping.append(asyncio.create_task(self._send_summaries()))
        with suppress(TimeoutError):
            async with asyncio.timeout(START_SECONDS):
                while len(self._ready()) < self._count:
                    await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """End them; each closes its clients' connections first."""
        self._is_stopping = True
        for task in self._keeping:
            task.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)

    def hand_over(self, connection: Connection) -> bool:
        """Let a relay serve a connection, if there is one that can."""
        ready = self._ready()
        if not ready:
            return False
        min(ready, key=lambda link: link.connections).hand_over(connection)
        return True

    def change_keys(self, keys: Sequence[RoleKey]) -> None:
        self.keys = tuple(keys)
        for link in self._links:
            link.send_keys(self.keys)

    def summary_for(self, link: _Link) -> ServerSummary:
        """What a relay sends its clients now."""
        clients = len(self._services.sessions) + sum(each.clients for each in self._links)
        tables, status = tuple(self._services.store.tables()), self._services.pulse.status()
        return ServerSummary(tables=tables, status=status, elsewhere=clients - link.clients)

    def counted(self) -> None:
        """A relay came, went, or has other numbers."""
        self._services.sessions.elsewhere = sum(link.clients for link in self._links)
        self._services.metrics.relays.set(len(self._ready()))

    def _ready(self) -> list[_Link]:
        return [link for link in self._links if link.is_ready]

    async def _keep(self, number: int) -> None:
        """Keep a relay running, until they are stopped."""
        loop, waits = asyncio.get_running_loop(), delays(DELAY_SECONDS_MAX)
        while True:
            started = loop.time()
            try:
                cause = await self._run(number)
            except OSError as error:
                cause = f"could not be started: {error}"
            except Exception:
                log.exception("a mistake of the server")
                cause = "was given up"
            if self._is_stopping:  # and what failed on the way has taken the place of the cancellation
                return
            if loop.time() - started >= HEALTHY_SECONDS:
                waits = delays(DELAY_SECONDS_MAX)
            wait = next(waits)
            self._services.metrics.relay_restarts.inc()
            log_event(log, "relay_ended", logging.WARNING, relay=number, cause=cause, restart_seconds=f"{wait:.1f}")
            await asyncio.sleep(wait)

    async def _run(self, number: int) -> str:
        """Run a relay until it ends; why it did."""
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        our_handover, its_handover = _handover_pair()
        with closing(our_handover):
            with closing(its), closing(its_handover):
                descriptors = (its.fileno(), its_handover.fileno())
                process = subprocess.Popen(
                    [sys.executable, "-m", "livetables.server.relays.main", *map(str, descriptors)],
                    pass_fds=descriptors,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C is for the server, which ends its relays
                )
            log_event(log, "relay_started", relay=number, pid=process.pid)
            reader, writer = await asyncio.open_unix_connection(sock=ours)
            link = _Link(reader, writer, our_handover, self._services, self)
            self._links.append(link)
            try:
                cause = await link.run()
            finally:
                self._links.remove(link)
                self.counted()
                writer.close()
                our_handover.close()
                code = await _ended(process)
                link.close()
        return cause or _ending(code)

    async def _send_summaries(self) -> None:
        """Send the relays every second what they send their clients. Runs forever."""
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            for link in self._links:
                try:
                    link.send_summary(self.summary_for(link))
                except Exception:  # one bad second must not be the last one
                    log.exception("cannot send a relay the status")


class _Link:
    """A relay, as the server sees it."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        handover: socket.socket,
        services: Services,
        relays: Relays,
    ) -> None:
        self.is_ready = False
        self.clients = 0
        self._handed = self._closed = 0  # connections, since its start
        self._reader, self._outbox, self._handover = reader, Outbox(writer), handover
        self._services, self._relays = services, relays
        self._followed: dict[int, _Followed] = {}
        self._values: Mapping[tuple[str, tuple[str, ...]], float] = {}
        self._waiting: deque[Connection] = deque()  # until the relay has caught up with those before

    @property
    def connections(self) -> int:
        """How many it has, or will have in a moment."""
        return self._handed - self._closed + len(self._waiting)

    async def run(self) -> str | None:
        """Until the relay has gone; the cause, if its exit code does not have it."""
        setup = Setup(
            origins=self._services.origins,
            hosts=self._services.hosts,
            proxies=self._relays.proxies,
            hides_raw=self._services.hides_raw,
        )
        self._outbox.put("setup", lambda: setup)
        self.send_keys(self._relays.keys)
        self.send_summary(self._relays.summary_for(self))
        sending, reading = asyncio.create_task(self._outbox.send()), asyncio.create_task(self._read())
        tasks: list[asyncio.Task[None]] = [sending, reading]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.is_ready = False
            asyncio.get_running_loop().remove_writer(self._handover)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for error in (task.exception() for task in done):
            if isinstance(error, TimeoutError):
                return f"was silent for {SILENT_SECONDS:.0f} s"
            if error and not isinstance(error, OSError | EOFError):
                log.error("a relay's connection ended by a mistake of the server", exc_info=error)
        return None

    def close(self) -> None:
        """Give back everything that the relay had. Connections that it did not get yet go elsewhere."""
        for followed in self._followed.values():
            self._services.hub.unsubscribe(followed.viewport, followed.mark)
        self._services.metrics.relay_subscriptions.dec(len(self._followed))
        self._count({key: 0 if self._is_gauge(key[0]) else value for key, value in self._values.items()})
        while self._waiting:
            connection = self._waiting.popleft()
            if not self._relays.hand_over(connection):
                connection.serve_here()

    def hand_over(self, connection: Connection) -> None:
        self._waiting.append(connection)
        if len(self._waiting) == 1:
            self._hand_over_waiting()

    def send_keys(self, keys: tuple[RoleKey, ...]) -> None:
        self._outbox.put("keys", lambda: Keys(keys=keys))

    def send_summary(self, summary: ServerSummary) -> None:
        self._outbox.put("summary", lambda: summary)

    def _hand_over_waiting(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                if not self._waiting[0].transport.is_closing():
                    send_connection(self._handover, self._waiting[0])
                    self._handed += 1
                self._waiting.popleft()
        except BlockingIOError:
            loop.add_writer(self._handover, self._hand_over_waiting)
        except OSError:
            loop.remove_writer(self._handover)  # the relay has gone: `close` takes care of those that wait
        else:
            loop.remove_writer(self._handover)

    async def _read(self) -> None:
        while True:
            async with asyncio.timeout(SILENT_SECONDS):
                message = from_relay.validate_json(await received(self._reader))
            match message:
                case Login():
                    await self._log_in(message)
                case Subscribe():
                    self._subscribe(message)
                case Unsubscribe():
                    followed = self._followed.pop(message.sub)
                    self._services.hub.unsubscribe(followed.viewport, followed.mark)
                    self._services.metrics.relay_subscriptions.dec()
                case Taken():
                    self._taken(message.sub)
                case Counts():
                    self.is_ready, self.clients, self._closed = True, message.clients, message.closed
                    self._count({(value.metric, value.labels): value.value for value in message.values})
                    self._relays.counted()

    async def _log_in(self, login: Login) -> None:
        role = problem = None
        try:
            role = await self._services.log_in(Peer(login.address), login.token)
        except RequestError as error:
            problem = Problem.of(error)
        answer = LoginAnswer(login=login.login, role=role, problem=problem, summary=self._relays.summary_for(self))
        self._outbox.put(("login", login.login), lambda: answer)

    def _subscribe(self, message: Subscribe) -> None:
        mark = partial(self._outbox.put, ("news", message.sub), partial(self._news, message.sub))
        viewport = self._services.hub.subscribe(message.table, message.options, mark)
        self._followed[message.sub] = _Followed(viewport, mark)
        self._services.metrics.relay_subscriptions.inc()
        mark()

    def _news(self, sub: int) -> News | Failure | None:
        """What brings the relay to the newest state of a viewport, which it is then taken to have."""
        followed = self._followed.get(sub)
        if followed is None or followed.is_busy:
            return None
        state = followed.viewport.state
        if isinstance(state, RequestError):
            if state is followed.problem:
                return None
            followed.problem, followed.sequence, followed.is_busy = state, None, True
            return Failure(sub=sub, problem=Problem.of(state))
        if state is None or state.heading.sequence == followed.sequence:
            return None
        follows = state.patch is not None and followed.sequence == state.heading.sequence - 1
        followed.problem, followed.sequence, followed.is_busy = None, state.heading.sequence, True
        return News(
            sub=sub,
            heading=state.heading,
            counted_as=self._counted_as(followed.viewport.table),
            total=state.total,
            patch=state.patch,
            patch_rows=state.patch_rows,
            window=None if follows else _window(state),
        )

    def _taken(self, sub: int) -> None:
        followed = self._followed.get(sub)
        if followed is not None:
            followed.is_busy = False
            followed.mark()

    def _counted_as(self, name: str) -> str:
        table = self._services.store.tables().get(name)
        return table.shape.name if table else name

    def _count(self, values: Mapping[tuple[str, tuple[str, ...]], float]) -> None:
        """Add to the server's own numbers what has come to the relay's."""
        for key in {**self._values, **values}:
            name, labels = key
            if added := values.get(key, 0) - self._values.get(key, 0):
                self._services.metrics.add(name, labels, added)
        self._values = values

    def _is_gauge(self, name: str) -> bool:
        return isinstance(getattr(self._services.metrics, name), Gauge)


def _window(state: State) -> Window:
    return Window.model_construct(columns=state.columns, entries=list(state.numbered))


def _handover_pair() -> tuple[socket.socket, socket.socket]:
    try:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:
        raise SetupError(
            f"connections cannot be passed to relays on this system: {error.strerror}",
            "set server.relays = 0 (LIVETABLES_SERVER_RELAYS); relays need Linux",
        ) from None
    ours.setblocking(False)
    return ours, its


async def _ended(process: subprocess.Popen[bytes]) -> int:
    """The exit code of a relay that is to end, or has."""
    try:
        return await asyncio.to_thread(process.wait, GOODBYE_SECONDS + 2)
    except subprocess.TimeoutExpired:
        process.kill()
        return await asyncio.to_thread(process.wait)


def _ending(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with code {code}"
