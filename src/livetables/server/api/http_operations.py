"""What all HTTP operations share: who may call them, what their documentation says, the media type of an answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import pyarrow as pa
from fastapi import APIRouter, Depends, Request, Security
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException

from livetables.model.columns import column_type
from livetables.model.roles import Right
from livetables.server.api.gate import role_of
from livetables.server.api.messages import Column, Problem
from livetables.server.api.services import Services
from livetables.server.viewports.encoding import ARROW, CSV, MediaType, chosen_media_type

KEY_DESCRIPTION = (
    "The pre-shared key. Its role is viewer (reads), operator (also sends control messages) or pipeline (sends frames, "
    "and nothing else); what it may not do is answered with 403, `forbidden`, and the role that is needed."
)
PROBLEMS = {
    400: "The request does not match the table, or the query is wrong",
    401: "The key is missing or wrong",
    403: "The key's role may not do this, or a page of another origin asks",
    404: "There is no such table",
    406: "The answer is not to be had in any of the accepted media types",
    413: "The request is larger than the server takes",
    422: "A parameter or the body is not what this operation takes",
    429: "Too much is waiting already, or too many wrong keys came from this address",
    500: "Internal error; see the server's log",
    503: "What this needs is not there yet",
    504: "It took too long",
}


async def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The documentation of an operation's problems."""
    return {status: {"model": Problem, "description": PROBLEMS[status]} for status in statuses}


def media(*media_types: MediaType) -> dict[str, Any]:
    """The documentation of answers that are not JSON."""
    schemas = {CSV: {"type": "string"}, ARROW: {"type": "string", "format": "binary"}}
    return {media_type: {"schema": schemas[media_type]} for media_type in media_types}


def header(description: str, kind: str) -> dict[str, Any]:
    return {"description": description, "schema": {"type": kind}}


Shared = Annotated[Services, Depends(_services)]


def locked_routes(right: Right = "read") -> APIRouter:
    """A router of operations that need a key whose role has the right.

    The gate has checked that before the body is read, by the path. Here it is checked by the route, so that no spelling
    of a path that the two would take for different things opens anything.
    """
    documentation = HTTPBearer(auto_error=False, scheme_name="key", description=KEY_DESCRIPTION)
    return APIRouter(
        dependencies=[Security(documentation), Depends(_checked(right))],
        responses=problems(401, 403, 413, 429, 500),
    )


def _checked(right: Right) -> Callable[[Request, Services], Awaitable[None]]:
    async def checked(request: Request, services: Shared) -> None:
        services.key.check_right(role_of(request.scope), right)

    return checked


def negotiated(request: Request, offered: tuple[MediaType, ...]) -> MediaType:
    media_type = chosen_media_type(", ".join(request.headers.getlist("accept")), offered)
    if media_type is None:
        raise HTTPException(406, f"accept one of {', '.join(offered)}")
    return media_type


def columns_of(schema: pa.Schema) -> list[Column]:
    return [Column(name=field.name, type=_type(field.type)) for field in schema]


def _type(data_type: pa.DataType) -> str:
    try:
        return column_type(data_type)
    except KeyError:  # SQL has more types than tables have
        return str(data_type)
