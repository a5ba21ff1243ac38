"""What every HTTP request passes: its origin, its key's role, the limit of its body, and the form of every refusal."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from livetables.model.errors import ERROR_KINDS, RequestError
from livetables.model.roles import Right, Role
from livetables.server.access.key import TooManyLoginsError, bearer, let_in, peer_of
from livetables.server.access.origins import may_ask
from livetables.server.api.http_timeouts import ROLE
from livetables.server.api.messages import first_problem
from livetables.server.api.services import Services
from livetables.server.storage.frames import FrameError
from livetables.server.viewports.encoding import JSON

MAX_BODY_BYTES = 64 * 1024
MAX_PART_BYTES = 256 * 1024 * 1024  # of a frame of the pipeline
FRAMES_PATH = "/api/frames"
CONTROL_PATH = "/api/control"

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "; ".join(
        [
            "default-src 'self'",
            "style-src 'self' 'unsafe-inline'",  # the grid sizes its columns with style attributes
            "img-src 'self' data:",
            "font-src 'self' data:",  # the grid's icons
            "connect-src 'self' ws: wss:",  # not every browser counts a WebSocket of one's own as 'self'
            "object-src 'none'",
            "base-uri 'self'",
            "form-action 'self'",
            "frame-ancestors 'self'",
        ]
    ),
}

log = logging.getLogger(__name__)


class Gate:
    """What every request passes: its origin, the key, the limit of its body. Every response leaves with its headers."""

    def __init__(self, app: ASGIApp, services: Services, frames: ASGIApp) -> None:
        self._app = app
        self._services = services
        self._frames = frames

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_started = False
        needs_key = is_locked(scope)

        async def send_with_headers(message: Message) -> None:
            nonlocal is_started
            if message["type"] == "http.response.start":
                is_started = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if needs_key:
                    headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            answer = self._refusal(scope) or (self._frames if _path(scope) == FRAMES_PATH else self._app)
            await answer(scope, _limited(receive, _bytes_max(scope)), send_with_headers)
        except Exception:
            if is_started:  # the connection must break, or half an answer would look whole
                raise
            log.exception("cannot answer %s %s", scope["method"], ascii(scope["path"]))
            answer = _problem(500, "internal", "the server made a mistake", "see its log, and report it, please")
            await answer(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = dict(scope["headers"])
        if not scope["path"].isprintable():  # the pattern of a route may end before a line feed, a comparison does not
            return _problem(400, "bad_frame", "the path has a control character", "/openapi.json lists every path")
        if is_locked(scope):
            if not may_ask(scope, self._services.origins, self._services.hosts):
                return _problem(
                    403,
                    "forbidden",
                    "a page of another origin may not ask",
                    "add its origin to server.origins if it is yours",
                )
            # A key may be any UTF-8 text, which is not how headers are usually read.
            authorization = headers.get(b"authorization", b"").decode(errors="surrogateescape")
            try:
                peer, right = peer_of(scope), needed_right(scope)
                role = let_in(self._services.key, self._services.metrics, "http", peer, bearer(authorization), right)
            except RequestError as problem:
                return _locked_out(problem)
            scope.setdefault("state", {})[ROLE] = role
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > _bytes_max(scope):
            return _too_large(_bytes_max(scope))
        return None


def _problem(
    status: int,
    code: str,
    problem: str,
    cure: str,
    headers: Mapping[str, str] | None = None,
    facts: Mapping[str, int] | None = None,
) -> Response:
    text = json.dumps(
        {"code": code, "problem": problem, "cure": cure, **(facts or {})}
    )  # all ASCII: what a client sent may be no text
    return Response(text, status, headers, JSON)


def _locked_out(problem: RequestError) -> Response:
    headers: dict[str, str]
    if problem.code == "forbidden":
        headers, cure = {}, problem.cure
    elif isinstance(problem, TooManyLoginsError):
        headers, cure = {"Retry-After": str(problem.wait_seconds)}, problem.cure
    else:
        headers = {"WWW-Authenticate": "Bearer"}
        cure = "send the header `Authorization: Bearer <key>` with the key that the server has"
    return _problem(ERROR_KINDS[problem.code].status, problem.code, problem.problem, cure, headers)


def _too_large(bytes_max: int) -> Response:
    return _problem(413, "limit", "the body is too large", f"send at most {bytes_max:,} bytes")


async def frame_problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, FrameError)
    facts = {} if error.stored is None else {"stored": error.stored}
    return _problem(409, error.code, error.problem, error.cure, facts=facts)


async def request_problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return _problem(ERROR_KINDS[error.code].status, error.code, error.problem, error.cure)


async def validation_problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _problem(422, "invalid", first_problem(error.errors()), "/openapi.json has what this operation takes")


async def http_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 413:
        return _too_large(_bytes_max(request.scope))
    code, problem, cure = {
        404: ("not_found", "there is nothing under this path", "/openapi.json lists every path"),
        405: ("method_not_allowed", f"{request.method} is not for this path", "/openapi.json lists what is"),
        406: ("not_acceptable", "no accepted media type can be given", error.detail),
    }.get(error.status_code, ("bad_frame", "the request cannot be read", "/openapi.json has what to send"))
    return _problem(error.status_code, code, problem, cure, error.headers)


def is_locked(scope: Scope) -> bool:
    path = _path(scope)
    return path in ("/api", "/metrics") or path.startswith("/api/")


def needed_right(scope: Scope) -> Right:
    """What somebody must have the right to do who sends this request."""
    rights: Mapping[str, Right] = {FRAMES_PATH: "write", CONTROL_PATH: "control"}
    return rights.get(_path(scope), "read")


def role_of(scope: Scope) -> Role:
    """The role of who sent a request; a RequestError if the gate has not asked for the key."""
    role: Role | None = scope.get("state", {}).get(ROLE)
    if role is None:
        raise RequestError("unauthorized", "the key is missing", "send the server's key")
    return role


def _path(scope: Scope) -> str:
    path: str = scope["path"].removeprefix(scope.get("root_path", ""))
    return path


def _bytes_max(scope: Scope) -> int:
    return MAX_PART_BYTES if _path(scope) == FRAMES_PATH else MAX_BODY_BYTES


def _limited(receive: Receive, bytes_max: int) -> Receive:
    """Count what is received: a body may come in chunks, without its length in a header."""
    received = 0

    async def receive_counted() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > bytes_max:
            raise HTTPException(413)
        return message

    return receive_counted
