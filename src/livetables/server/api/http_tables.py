"""All tables, and the rows of one: a window of it, or all of it while it is read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Annotated

import pyarrow as pa
from anyio import CancelScope
from fastapi import Query, Request
from pydantic_core import to_json
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from livetables.model.errors import RequestError
from livetables.server.api.gate import role_of
from livetables.server.api.http_operations import Shared, columns_of, header, locked_routes, media, negotiated, problems
from livetables.server.api.messages import Rows, RowsQuestion, Table, Tables
from livetables.server.api.services import Services
from livetables.server.health.metrics import counted
from livetables.server.viewports.encoding import (
    ARROW,
    CSV,
    JSON,
    MEDIA_TYPES,
    MediaType,
    after,
    arrow_chunks,
    csv_chunks,
    encoded_rows,
)
from livetables.server.viewports.masking import for_role
from livetables.server.viewports.viewport import Selection, ViewOptions

routes = locked_routes()


class Chunks(StreamingResponse):
    """A body that is made while it is sent. Its rows are released at the end, also when the client left before it."""

    def __init__(self, chunks: Iterator[bytes], close: Callable[[], None], media_type: MediaType) -> None:
        super().__init__(_on_threads(chunks), media_type=_with_charset(media_type), headers={"Vary": "Accept"})
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            with CancelScope(shield=True):
                await run_in_threadpool(self._close)


@routes.get("/api/tables", summary="All tables", tags=["tables"])
def tables(services: Shared) -> Tables:
    found = []
    for name in sorted(services.store.tables()):
        with suppress(RequestError):  # it went away meanwhile
            table, window = services.store.reader.window(name, ViewOptions(size=0))
            found.append(
                Table(
                    name=name,
                    columns=columns_of(table.shape.schema),
                    generation=table.generation,
                    rows=window.total,
                    newest=table.newest,
                    alias_of=None if name == table.shape.name else table.shape.name,
                )
            )
    return Tables(tables=found)


@routes.get(
    "/api/tables/{name}/rows",
    summary="Rows of a table",
    tags=["tables"],
    response_model=Rows,
    responses={
        200: {
            "description": "The rows",
            "content": media(CSV, ARROW),
            "headers": {
                "X-Total-Count": header("in windows: rows that pass the filters in the whole table", "integer"),
                "X-Generation": header("in windows: the generation that the rows are from", "string"),
            },
        },
        **problems(400, 404, 406, 422),
    },
)
def rows(name: str, question: Annotated[RowsQuestion, Query()], request: Request, services: Shared) -> Response:
    media_type, role = negotiated(request, MEDIA_TYPES), role_of(request.scope)
    if media_type != JSON and question.limit is None:
        selection = for_role(question.selection(), role, hides_raw=services.hides_raw)
        return _exported(services, name, selection, question.offset, media_type)
    table, window = services.store.reader.window(name, for_role(question.window(), role, hides_raw=services.hides_raw))
    services.metrics.rows_sent.labels(table.shape.name, "http").inc(window.rows.num_rows)
    headers = {"X-Total-Count": str(window.total), "X-Generation": table.generation, "Vary": "Accept"}
    if media_type == JSON:
        names = window.rows.column_names
        found = [dict(zip(names, row, strict=True)) for row in encoded_rows(window.rows)]
        body = to_json({"rows": found, "total": window.total, "generation": table.generation})
    else:
        body = b"".join(_encoding(media_type)(window.rows.schema, window.rows.to_batches()))
    return Response(body, headers=headers, media_type=_with_charset(media_type))


def _exported(services: Services, name: str, selection: Selection, offset: int, media_type: MediaType) -> Response:
    """The whole selection, a chunk at a time. The first chunk is made here, so that a problem is an error response."""

    def exported() -> Generator[bytes]:
        sent = services.metrics.rows_sent.labels(services.store.table(name).shape.name, "http")
        with services.store.reader.scan(name, selection) as reader:
            yield from _encoding(media_type)(reader.schema, counted(after(offset, reader), sent))

    chunks = exported()
    return Chunks(chain([next(chunks)], chunks), chunks.close, media_type)


async def _on_threads(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    while (chunk := await run_in_threadpool(next, chunks, None)) is not None:
        yield chunk


def _encoding(media_type: MediaType) -> Callable[[pa.Schema, Iterable[pa.RecordBatch]], Iterator[bytes]]:
    return csv_chunks if media_type == CSV else arrow_chunks


def _with_charset(media_type: MediaType) -> str:
    return f"{media_type}; charset=utf-8" if media_type == CSV else media_type
