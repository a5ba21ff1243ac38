"""The HTTP and WebSocket server: puts the operations together. Each concept has its own module, `http_*.py`.

Everything under /api, and /metrics, needs the key in an `Authorization: Bearer` header. Every error is a `Problem`: a
code for programs, what is wrong, and how to fix it.
"""

from __future__ import annotations

from importlib.metadata import version

from anyio import CapacityLimiter
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.websockets import WebSocket

from livetables.model.errors import RequestError
from livetables.server.api import http_control, http_health, http_sql, http_tables
from livetables.server.api.control_requests import MAX_WAITING
from livetables.server.api.gate import Gate, frame_problem, http_problem, request_problem, validation_problem
from livetables.server.api.http_frames import Frames
from livetables.server.api.http_page import page
from livetables.server.api.http_sending import Sending
from livetables.server.api.services import Services
from livetables.server.live.connection import serve_session
from livetables.server.storage.frames import FrameError
from livetables.server.storage.reader import SQL_AT_ONCE


def create_app(services: Services) -> FastAPI:
    """The HTTP and WebSocket endpoints of a server."""
    app = FastAPI(
        title="livetables",
        description="Live, joined, hot-swappable tables.",
        version=version("livetables"),
        docs_url=None,  # its page would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.services = services
    app.state.sql_slots = CapacityLimiter(SQL_AT_ONCE)
    app.state.control_slots = CapacityLimiter(MAX_WAITING + 1)  # one more than may wait: that one is refused there
    for routes in (
        http_health.open_routes,
        http_health.routes,
        http_tables.routes,
        http_control.routes,
        http_sql.routes,
    ):
        app.include_router(routes)
    app.router.add_websocket_route("/ws", _session)
    app.add_exception_handler(RequestError, request_problem)
    app.add_exception_handler(FrameError, frame_problem)
    app.add_exception_handler(RequestValidationError, validation_problem)
    app.add_exception_handler(HTTPException, http_problem)
    app.add_middleware(Gate, services=services, frames=Frames(services))
    if services.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=services.origins,
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "Idempotency-Key"],
            expose_headers=["X-Generation", "X-Total-Count", "X-Truncated"],
        )
    app.add_middleware(Sending)  # the last one is around all others
    # Not a mount: that would match every path, and a wrong method would be reported as a missing file.
    app.router.default = page(services, app.router.default)
    return app


async def _session(websocket: WebSocket) -> None:
    await serve_session(websocket, websocket.app.state.services)
