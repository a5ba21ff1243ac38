"""One client on its WebSocket: login, subscriptions, and an outbox that never grows.

The outbox holds which subscriptions have something new, not what: when the socket takes a frame, it gets the newest
state of a viewport. A client that reads slowly gets fewer and newer frames, and costs the same memory however slow it
is. Its own requests are answered through `replies`; when MAX_REPLIES of them wait, no more frames are read from it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from livetables.log import Throttle
from livetables.model.errors import ERROR_KINDS, LivetablesError, RequestError
from livetables.model.roles import Role
from livetables.server.access.key import Key, peer_of
from livetables.server.access.origins import may_ask
from livetables.server.health.freshness import Status
from livetables.server.live import protocol
from livetables.server.live.protocol import Change, Heartbeat, Hello, Resync, Subscribe, Unsubscribe
from livetables.server.live.serving import Serving, Viewport
from livetables.server.live.state import State
from livetables.server.live.websocket import WRITE_NOW
from livetables.server.viewports.masking import for_role
from livetables.server.viewports.viewport import ViewOptions

HELLO_SECONDS = 5.0
CLOSE_SECONDS = 2.0  # a client that does not read does not take its farewell either
MAX_REPLIES = 100
MAX_SESSIONS = 10_000  # of the server and its relays together
WATCH_SECONDS = 1.0

CLOSE_UNAUTHORIZED = ERROR_KINDS["unauthorized"].close_code
CLOSE_TIMEOUT = ERROR_KINDS["timeout"].close_code
CLOSE_TOO_MANY = 1013
CLOSE_AGAIN = 1012  # the client is to connect again
STRANGE_ORIGINS_LOGGED = 100

log = logging.getLogger(__name__)
throttle = Throttle()


@dataclass(eq=False)
class Subscription:
    """What a client looks at, and what it has of it: what it was last sent."""

    sub: int
    revision: int
    format: protocol.Format
    has_checksum: bool
    viewport: Viewport
    generation: str | None = None
    columns: tuple[tuple[str, str], ...] | None = None
    sequence: int | None = None  # of this very viewport
    problem: RequestError | None = None

    def frame_at_once(self) -> bytes | None:
        """The one frame that brings the client to the newest state, as the wire has it; None if one will not do."""
        state = self.viewport.state
        if (
            not isinstance(state, State)
            or self.format != "json"
            or self.sequence in (None, state.heading.sequence)
            or self.generation != state.heading.generation
            or self.columns != state.columns
        ):
            return None
        follows = self._is_one_before(state)
        return state.framed(self.sub, self.revision, follows=follows, has_checksum=self.has_checksum)

    def frames(self) -> list[str | bytes]:
        """The frames that bring the client to the newest state, which it is then taken to have."""
        state = self.viewport.state
        if isinstance(state, RequestError):
            frames: list[str | bytes] = [] if state is self.problem else [protocol.error(state, self.sub)]
            self.problem, self.sequence = state, None
            return frames
        if state is None or state.heading.sequence == self.sequence:
            return []
        rests: list[str] = []
        if self.generation not in (None, state.heading.generation):
            rests.append(protocol.rebound(state.heading, str(self.generation)))
        if self.columns != state.columns:
            rests.append(state.schema)
        follows, is_first = self._is_one_before(state), self.sequence is None
        self.has(state)
        if self.format == "arrow":
            window = protocol.arrow_snapshot(
                self.sub,
                self.revision,
                state.heading,
                state.options.offset,
                state.total,
                state.ids,
                state.arrow(),
                state.checksum if self.has_checksum else None,
            )
            return [*(protocol.about(self.sub, self.revision, rest) for rest in rests), window]
        rests.append(state.news(follows=follows, is_first=is_first, has_checksum=self.has_checksum))
        return [protocol.about(self.sub, self.revision, rest) for rest in rests]

    def has(self, state: State) -> None:
        """The client was sent this state."""
        state.count_sent(follows=self.format == "json" and self._is_one_before(state))
        self.generation, self.columns, self.sequence = state.heading.generation, state.columns, state.heading.sequence
        self.problem = None

    def skipped(self) -> int:
        """How many states the client will never see, because a newer one is there."""
        state = self.viewport.state
        if isinstance(state, State) and self.sequence is not None:
            return max(0, state.heading.sequence - self.sequence - 1)
        return 0

    def _is_one_before(self, state: State) -> bool:
        return self.sequence is not None and self.sequence + 1 == state.heading.sequence


class Session:
    """A client that has logged in."""

    def __init__(self, websocket: WebSocket, services: Serving, token: str, role: Role) -> None:
        self.token = token  # that it logged in with
        self.role = role
        self._websocket = websocket
        self._services = services
        self._subscriptions: dict[int, Subscription] = {}
        self._marks: dict[int, Callable[[], None]] = {}
        self._news: dict[int, None] = {}  # subscriptions with something new, in the order in which it came
        self._replies: deque[str] = deque()
        self._status: str | None = None
        self._wake = asyncio.Event()
        self._is_writing = False
        self._write_now: Callable[[bytes], bool] | None = websocket.scope.get("state", {}).get(WRITE_NOW)
        self._room = asyncio.Event()
        self._room.set()
        self.heard = self.spoke = time.monotonic()
        self.end: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Serve until the client goes, or is sent away."""
        tables = list(self._services.store.tables())
        self.reply(protocol.hello(version("livetables"), self.role, tables, datetime.now(UTC)))
        self.send_status(protocol.status(self._services.pulse.status()))
        reader, writer = asyncio.create_task(self._read()), asyncio.create_task(self._write())
        ends: list[asyncio.Future[Any]] = [reader, writer, self.end]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (reader, writer):
                task.cancel()
            ended = await asyncio.gather(reader, writer, return_exceptions=True)
            for sub in list(self._subscriptions):
                self._unsubscribe(sub)
        for outcome in ended:
            if isinstance(outcome, Exception) and not isinstance(outcome, WebSocketDisconnect | OSError):
                log.error("a session ended by a mistake of the server", exc_info=outcome)
        if self.end.done():
            await _close(self._websocket, *self.end.result())

    def reply(self, frame: str) -> None:
        self._replies.append(frame)
        if len(self._replies) >= MAX_REPLIES:
            self._room.clear()
        self._wake.set()

    def send_status(self, frame: str) -> None:
        """Send the client the reason why data is old; only the newest is kept."""
        self._status = frame
        self._wake.set()

    def send_away(self, code: int, reason: str) -> None:
        if not self.end.done():
            self.end.set_result((code, reason))

    # Reading

    async def _read(self) -> None:
        while True:
            await self._room.wait()
            text = await _received(self._websocket)
            self.heard = time.monotonic()
            sub = None
            try:
                frame = protocol.client_frame(text)
                sub = getattr(frame, "sub", None)
                self._take(frame)
            except LivetablesError as problem:
                self.reply(protocol.error(problem, sub))

    def _take(self, frame: protocol.ClientFrame) -> None:
        match frame:
            case Subscribe():
                self._subscribe(frame)
            case Change():
                subscription = self._subscription(frame.sub)
                view = frame.applied_to(subscription.viewport.options)
                self._unsubscribe(frame.sub)
                looking = self._look(
                    frame.sub,
                    frame.revision,
                    subscription.format,
                    subscription.has_checksum,
                    subscription.viewport.table,
                    view,
                )
                looking.generation, looking.columns = subscription.generation, subscription.columns
            case Unsubscribe():
                self._subscription(frame.sub)
                self._unsubscribe(frame.sub)
            case Resync():
                self._subscription(frame.sub).sequence = None
                if frame.reason == "checksum":
                    self._services.metrics.checksum_mismatches.inc()
                    throttle.log_event(
                        log, "checksum_mismatch", logging.ERROR, table=self._subscription(frame.sub).viewport.table
                    )
                self._mark(frame.sub)
            case Heartbeat():
                self.reply(protocol.heartbeat(datetime.now(UTC)))
            case Hello():
                raise RequestError("bad_frame", "hello came twice", "send it once, as the first frame")

    def _subscribe(self, frame: Subscribe) -> None:
        if frame.sub in self._subscriptions:
            raise RequestError("bad_frame", f"sub {frame.sub} is in use", "choose another number, or send `set`")
        if len(self._subscriptions) >= protocol.MAX_SUBSCRIPTIONS:
            raise RequestError(
                "limit", f"{protocol.MAX_SUBSCRIPTIONS} subscriptions are open", "unsubscribe from one first"
            )
        self._look(frame.sub, frame.revision, frame.format, frame.checksum, frame.table, frame.view)

    def _look(
        self, sub: int, revision: int, payload: protocol.Format, has_checksum: bool, table: str, view: ViewOptions
    ) -> Subscription:
        mark = partial(self._news_of, sub)
        view = for_role(view, self.role, hides_raw=self._services.hides_raw)
        viewport = self._services.hub.subscribe(table, view, mark)
        subscription = self._subscriptions[sub] = Subscription(sub, revision, payload, has_checksum, viewport)
        self._marks[sub] = mark
        self._services.metrics.subscriptions.inc()
        self._mark(sub)
        return subscription

    def _unsubscribe(self, sub: int) -> None:
        subscription = self._subscriptions.pop(sub)
        self._news.pop(sub, None)
        self._services.metrics.subscriptions.dec()
        self._services.hub.unsubscribe(subscription.viewport, self._marks.pop(sub))

    def _subscription(self, sub: int) -> Subscription:
        if sub not in self._subscriptions:
            raise RequestError("unknown_subscription", f"there is no subscription {sub}", "subscribe first")
        return self._subscriptions[sub]

    # Writing

    def _news_of(self, sub: int) -> None:
        """Send a subscription's newest state at once where nothing else waits, and the client reads fast enough."""
        subscription = self._subscriptions[sub]
        if self._write_now and not (self._is_writing or self._wake.is_set()):
            frame, state = subscription.frame_at_once(), subscription.viewport.state
            if frame and isinstance(state, State) and self._write_now(frame):
                self._services.metrics.frames_skipped.inc(subscription.skipped())
                self._services.metrics.frames.inc()
                self.spoke = time.monotonic()
                subscription.has(state)
                return
        self._mark(sub)

    def _mark(self, sub: int) -> None:
        self._news[sub] = None
        self._wake.set()

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._is_writing = True
            while frames := self._next_frames():
                for frame in frames:
                    await self._send(frame)
            self._is_writing = False

    def _next_frames(self) -> list[str | bytes]:
        """What to send next: answers, then the status, then what is new, the longest waiting first."""
        if self._replies:
            frame = self._replies.popleft()
            self._room.set()
            return [frame]
        if self._status is not None:
            status, self._status = self._status, None
            return [status]
        while self._news:
            subscription = self._subscriptions[next(iter(self._news))]
            del self._news[subscription.sub]
            self._services.metrics.frames_skipped.inc(subscription.skipped())
            if frames := subscription.frames():
                return frames
        return []

    async def _send(self, frame: str | bytes) -> None:
        kind = "text" if isinstance(frame, str) else "bytes"
        await self._websocket.send({"type": "websocket.send", kind: frame})
        self.spoke = time.monotonic()
        self._services.metrics.frames.inc()


class Sessions:
    """All clients: how many, who is silent, and what all of them are to know."""

    def __init__(self) -> None:
        self.waiting = 0  # connected, not logged in
        self.elsewhere = 0  # clients of the server's other processes
        self._sessions: set[Session] = set()
        self._strange_origins: set[str] = set()

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def is_full(self) -> bool:
        return self.waiting + len(self._sessions) + self.elsewhere >= MAX_SESSIONS

    def add(self, session: Session) -> None:
        self._sessions.add(session)

    def remove(self, session: Session) -> None:
        self._sessions.discard(session)

    def send_away_strangers(self, key: Key) -> None:
        """End the sessions that logged in with a key that is none any more."""
        for session in list(self._sessions):
            role = key.role_of(session.token)
            if role is None:
                session.send_away(CLOSE_UNAUTHORIZED, "the key was changed: log in with the new one")
            elif role != session.role:  # what its page shows is for the role that it had
                session.send_away(CLOSE_AGAIN, f"the key has the role {role} now: log in again")

    def turned_away(self, origin: str) -> None:
        """Log a page that may not connect, once: the browser does not show why."""
        if origin not in self._strange_origins and len(self._strange_origins) < STRANGE_ORIGINS_LOGGED:
            self._strange_origins.add(origin)
            log.warning("a page of %s may not connect; add it to server.origins if it is yours", ascii(origin))

    async def watch(self, services: Serving) -> None:
        """Send everybody a new status, and silent clients a heartbeat; close dead sessions. Runs forever."""
        sent: object = None
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            try:
                sent = self._look_after(services.pulse.status(), sent)
            except Exception:  # one bad second must not be the last one
                log.exception("cannot look after the sessions")

    def _look_after(self, status: Status, sent: object) -> object:
        cause = (status.state, status.message, status.spark_ui, [source.lag_records for source in status.sources])
        now = time.monotonic()
        for session in list(self._sessions):
            if cause != sent:
                session.send_status(protocol.status(status))
            elif now - session.spoke > protocol.HEARTBEAT_SECONDS:
                session.spoke = now
                session.reply(protocol.heartbeat(datetime.now(UTC)))
            if now - session.heard > protocol.IDLE_SECONDS:
                session.send_away(CLOSE_TIMEOUT, f"nothing heard for {protocol.IDLE_SECONDS} s: send heartbeats")
        return cause


async def serve_session(websocket: WebSocket, services: Serving) -> None:
    """Serve one client from its connection to its end."""
    if not may_ask(websocket.scope, services.origins, services.hosts):
        services.sessions.turned_away(websocket.headers.get("origin", "")[:200])
        await websocket.close(reason="this origin may not connect: add it to server.origins")
        return
    sessions = services.sessions
    await websocket.accept()
    if sessions.is_full:
        await _close(websocket, CLOSE_TOO_MANY, "too many clients: try again later")
        return
    sessions.waiting += 1
    try:
        token, role = await asyncio.wait_for(_log_in(websocket, services), HELLO_SECONDS)
    except TimeoutError:
        await _refuse(websocket, RequestError("timeout", "no hello came in time", "send hello first"))
        return
    except RequestError as problem:
        await _refuse(websocket, problem)
        return
    except (WebSocketDisconnect, OSError):
        return
    finally:
        sessions.waiting -= 1
    session = Session(websocket, services, token, role)
    sessions.add(session)
    if services.key.role_of(token) != role:  # it was changed in this very moment
        sessions.send_away_strangers(services.key)
    services.metrics.clients.inc()
    address, since = _address(websocket), time.monotonic()
    throttle.log_event(log, "client_connected", address=address, clients=len(sessions))
    try:
        await session.run()
    finally:
        sessions.remove(session)
        services.metrics.clients.dec()
        seconds = f"{time.monotonic() - since:.1f}"
        throttle.log_event(log, "client_disconnected", address=address, seconds=seconds, clients=len(sessions))


async def _log_in(websocket: WebSocket, services: Serving) -> tuple[str, Role]:
    """The key that the client has logged in with, and its role."""
    frame = protocol.client_frame(await _received(websocket))
    if not isinstance(frame, Hello):
        raise RequestError("unauthorized", f"{frame.type} came before hello", "send hello with the key first")
    if frame.protocol != protocol.PROTOCOL:
        raise RequestError(
            "unsupported_protocol",
            f"the client speaks protocol {frame.protocol}, the server {protocol.PROTOCOL}",
            "reload the page, or install the client of the server's version",
        )
    return frame.token, await services.log_in(peer_of(websocket.scope), frame.token)


async def _received(websocket: WebSocket) -> str:
    """The text of the next frame; of a binary one, text that is no frame."""
    message = await websocket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message["code"])
    return message.get("text") or ""


def _address(websocket: WebSocket) -> str | None:
    return websocket.client.host if websocket.client else None


async def _refuse(websocket: WebSocket, problem: RequestError) -> None:
    with suppress(WebSocketDisconnect, OSError, RuntimeError):
        await websocket.send_text(protocol.error(problem))
    await _close(websocket, ERROR_KINDS[problem.code].close_code, problem.problem)


async def _close(websocket: WebSocket, code: int, reason: str) -> None:
    if websocket.application_state == WebSocketState.CONNECTED:
        with suppress(WebSocketDisconnect, OSError, RuntimeError, TimeoutError):
            await asyncio.wait_for(websocket.close(code, reason[:120]), CLOSE_SECONDS)
