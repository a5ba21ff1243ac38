"""The endpoint that takes the frames of the pipeline."""

from __future__ import annotations

import asyncio

from fastapi import Request
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from livetables.model.errors import RequestError
from livetables.server.api.gate import frame_problem, http_problem, request_problem
from livetables.server.api.services import Services
from livetables.server.storage.frames import FrameError
from livetables.server.viewports.encoding import JSON


class Frames:
    """What takes the frames of the pipeline, see `livetables.model.wire.FramePart`.

    It is asked hundreds of times a second: the layers that every other request passes would take longer than it.
    """

    def __init__(self, services: Services) -> None:
        self._intake = services.intake

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            if scope["method"] != "POST":
                raise HTTPException(405)
            chunks = [chunk async for chunk in request.stream() if chunk]
            body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            chunks.clear()
            taken = await asyncio.wrap_future(self._intake.take(body))
            answer = Response(to_json(taken.fields()), media_type=JSON)
        except FrameError as error:
            answer = await frame_problem(request, error)
        except RequestError as error:
            answer = await request_problem(request, error)
        except HTTPException as error:
            answer = await http_problem(request, error)
        await answer(scope, receive, send)
