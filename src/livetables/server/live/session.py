"""One client on its WebSocket: its subscriptions, and an outbox that never grows.

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
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from livetables.log import Throttle
from livetables.model.errors import LivetablesError, RequestError
from livetables.model.roles import Role
from livetables.server.live import protocol
from livetables.server.live.protocol import Change, Heartbeat, Hello, Resync, Subscribe, Unsubscribe
from livetables.server.live.serving import Serving
from livetables.server.live.state import State
from livetables.server.live.subscription import Subscription
from livetables.server.live.websocket import WRITE_NOW
from livetables.server.viewports.masking import for_role
from livetables.server.viewports.viewport import ViewOptions

CLOSE_SECONDS = 2.0  # a client that does not read does not take its farewell either
MAX_REPLIES = 100

log = logging.getLogger(__name__)
throttle = Throttle()


class Session:
    """A client that has logged in."""

    def __init__(self, websocket: WebSocket, services: Serving, token: str, role: Role) -> None:
        self.token = token  # that it logged in with
        self.role = role
        self._websocket = websocket
        self._services = services
        self._subscriptions: dict[int, Subscription] = {}
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
            await close(self._websocket, *self.end.result())

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
            text = await received(self._websocket)
            self.heard = time.monotonic()
            try:
                self._take(protocol.client_frame(text))
            except LivetablesError as problem:
                self.reply(protocol.error(problem, protocol.sub_of(text)))

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
        notify = partial(self._notified, sub)
        view = for_role(view, self.role, hides_raw=self._services.hides_raw)
        viewport = self._services.hub.subscribe(table, view, notify)
        subscription = self._subscriptions[sub] = Subscription(sub, revision, payload, has_checksum, viewport, notify)
        self._services.metrics.subscriptions.inc()
        self._mark(sub)
        return subscription

    def _unsubscribe(self, sub: int) -> None:
        subscription = self._subscriptions.pop(sub)
        self._news.pop(sub, None)
        self._services.metrics.subscriptions.dec()
        self._services.hub.unsubscribe(subscription.viewport, subscription.notify)

    def _subscription(self, sub: int) -> Subscription:
        if sub not in self._subscriptions:
            raise RequestError("unknown_subscription", f"there is no subscription {sub}", "subscribe first")
        return self._subscriptions[sub]

    # Writing

    def _notified(self, sub: int) -> None:
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


async def received(websocket: WebSocket) -> str:
    """The text of the next frame; of a binary one, text that is not a frame."""
    message = await websocket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message["code"])
    return message.get("text") or ""


async def close(websocket: WebSocket, code: int, reason: str) -> None:
    if websocket.application_state == WebSocketState.CONNECTED:
        with suppress(WebSocketDisconnect, OSError, RuntimeError, TimeoutError):
            await asyncio.wait_for(websocket.close(code, reason[:120]), CLOSE_SECONDS)
