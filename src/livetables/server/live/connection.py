"""A WebSocket connection, from its login to its end."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import Protocol

from starlette.websockets import WebSocket, WebSocketDisconnect

from livetables.log import Throttle
from livetables.model.errors import ERROR_KINDS, RequestError
from livetables.model.roles import Role
from livetables.server.access.key import Key, peer_of
from livetables.server.access.logins import Peer
from livetables.server.access.origins import may_ask
from livetables.server.live import protocol
from livetables.server.live.protocol import Hello
from livetables.server.live.serving import Serving
from livetables.server.live.session import CLOSE_SECONDS, Session, close, received
from livetables.server.live.sessions import Sessions

HELLO_SECONDS = 5.0
CLOSE_TOO_MANY = 1013

log = logging.getLogger(__name__)
throttle = Throttle()


class Accepting(Serving, Protocol):
    """What a connection needs of its process: that of its session, and what decides who may have one."""

    @property
    def key(self) -> Key: ...

    @property
    def sessions(self) -> Sessions: ...

    @property
    def origins(self) -> tuple[str, ...]: ...

    @property
    def hosts(self) -> tuple[str, ...]: ...

    async def log_in(self, peer: Peer, token: str) -> Role:
        """The role of a peer that may log in; a RequestError has the reason why not."""


async def serve_session(websocket: WebSocket, services: Accepting) -> None:
    """Serve one client from its connection to its end."""
    if not may_ask(websocket.scope, services.origins, services.hosts):
        services.sessions.turned_away(websocket.headers.get("origin", "")[:200])
        await websocket.close(reason="this origin may not connect: add it to server.origins")
        return
    sessions = services.sessions
    await websocket.accept()
    if sessions.is_full:
        await close(websocket, CLOSE_TOO_MANY, "too many clients: try again later")
        return
    logged_in = await _logged_in(websocket, services)
    if logged_in is None:
        return
    token, role = logged_in
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


async def _logged_in(websocket: WebSocket, services: Accepting) -> tuple[str, Role] | None:
    """The key that the client has logged in with, and its role; None if it has left, or was refused."""
    services.sessions.waiting += 1
    try:
        return await asyncio.wait_for(_log_in(websocket, services), HELLO_SECONDS)
    except TimeoutError:
        problem = RequestError("timeout", "no hello came in time", "send hello first")
    except RequestError as error:
        problem = error
    except (WebSocketDisconnect, OSError):
        return None
    finally:
        services.sessions.waiting -= 1
    await _refuse(websocket, problem)
    return None


async def _log_in(websocket: WebSocket, services: Accepting) -> tuple[str, Role]:
    """The key that the client has logged in with, and its role."""
    frame = protocol.client_frame(await received(websocket))
    if not isinstance(frame, Hello):
        raise RequestError("unauthorized", f"{frame.type} came before hello", "send hello with the key first")
    if frame.protocol != protocol.PROTOCOL:
        raise RequestError(
            "unsupported_protocol",
            f"the client speaks protocol {frame.protocol}, the server {protocol.PROTOCOL}",
            "reload the page, or install the client of the server's version",
        )
    return frame.token, await services.log_in(peer_of(websocket.scope), frame.token)


def _address(websocket: WebSocket) -> str | None:
    return websocket.client.host if websocket.client else None


async def _refuse(websocket: WebSocket, problem: RequestError) -> None:
    with suppress(WebSocketDisconnect, OSError, RuntimeError, TimeoutError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await websocket.send_text(protocol.error(problem))
    await close(websocket, ERROR_KINDS[problem.code].close_code, problem.problem)
