"""The HTTP door: health, tables as JSON, CSV or Arrow, SQL, control messages, metrics, and the web app.

Everything under /api, and /metrics, needs the key in an `Authorization: Bearer` header. Every answer that is not what
was asked for is a `Problem`: a code for programs, what is wrong, and what mends it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from itertools import chain
from typing import Annotated, Any

import anyio.to_thread
import duckdb
import pyarrow as pa
from anyio import CancelScope, CapacityLimiter, fail_after
from fastapi import APIRouter, Depends, FastAPI, Header, Query, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from prometheus_client import Gauge
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic_core import to_json
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from livetables.log import Throttle
from livetables.model.columns import column_type
from livetables.model.errors import RequestError, StoreError
from livetables.server.api.control_requests import MAX_WAITING
from livetables.server.api.gate import (
    Gate,
    frame_problem,
    http_problem,
    is_locked,
    request_problem,
    role_of,
    validation_problem,
)
from livetables.server.api.messages import (
    MAX_SQL_ROWS,
    Column,
    ControlFields,
    ControlReceipt,
    GenerationStatus,
    Health,
    Problem,
    Readiness,
    Rows,
    RowsQuestion,
    ServerStatus,
    SourceStatus,
    SqlAnswer,
    SqlQuestion,
    Table,
    Tables,
    UnknownField,
)
from livetables.server.api.services import Services
from livetables.server.health.metrics import SQL, Now, counted
from livetables.server.live.session import serve_session
from livetables.server.storage.frames import FrameError
from livetables.server.storage.query import first_line
from livetables.server.storage.reader import SQL_AT_ONCE
from livetables.server.viewports.encoding import (
    ARROW,
    CSV,
    JSON,
    MEDIA_TYPES,
    MediaType,
    after,
    arrow_chunks,
    chosen_media_type,
    csv_chunks,
    encoded_rows,
)
from livetables.server.viewports.masking import for_role
from livetables.server.viewports.viewport import Selection, ViewOptions

MAX_SQL_BYTES = 64 * 1024 * 1024
MAX_SQL_WAITING = 32
KEY_DESCRIPTION = (
    "The pre-shared key. Its role is viewer (reads), operator (also sends control messages) or pipeline (sends frames, "
    "and nothing else); what it may not do is answered with 403, `forbidden`, and the role that is needed."
)
# A client that takes nothing of an export for so long loses it: DuckDB cannot write its file meanwhile.
STALLED_SECONDS_MAX = 60.0
PIECE_BYTES = 64 * 1024  # of an export, each of which a client has that time for

PROBLEMS = {
    400: "The question does not fit the table, or the query is wrong",
    401: "The key is missing or wrong",
    403: "The key's role may not do this, or a page of another origin asks",
    404: "There is no such table",
    406: "The answer is not to be had in any of the accepted media types",
    413: "The request is larger than the server takes",
    422: "A parameter or the body is not what this operation takes",
    429: "Too much is waiting already, or too many wrong keys came from this address",
    500: "The server made a mistake; its log tells which",
    503: "What this needs is not there yet",
    504: "It took too long",
}
PAGE_CACHING = "no-cache"  # a browser that knew an older page asks whether it is still the same
WELCOME = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>livetables</title>
<style>body { font: 1rem/1.5 system-ui, sans-serif; margin: 3rem auto; max-width: 42rem; padding: 0 1rem }
pre { overflow-x: auto }</style>
<h1>livetables</h1>
<p>This server runs. Its web app is not installed here, but all its tables are to be had:</p>
<ul>
<li><a href="/healthz">/healthz</a>: whether it runs; <a href="/readyz">/readyz</a>: whether it has tables</li>
<li><a href="/openapi.json">/openapi.json</a>: everything that can be asked for</li>
</ul>
<p>Log in with the key that the server was started with:</p>
<pre>curl -H "Authorization: Bearer $KEY" http://localhost:PORT/api/tables
curl -H "Authorization: Bearer $KEY" -H "Accept: text/csv" http://localhost:PORT/api/tables/final_ui/rows</pre>
</html>
"""

log = logging.getLogger(__name__)
throttle = Throttle()


def create_app(services: Services) -> FastAPI:
    """The HTTP and WebSocket doors of a server."""
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
    app.state.control_slots = CapacityLimiter(MAX_WAITING + 1)  # one more than the door holds: it is to refuse
    app.include_router(open_routes)
    app.include_router(locked_routes)
    app.router.add_websocket_route("/ws", _session)
    app.add_exception_handler(RequestError, request_problem)
    app.add_exception_handler(FrameError, frame_problem)
    app.add_exception_handler(RequestValidationError, validation_problem)
    app.add_exception_handler(HTTPException, http_problem)
    app.add_middleware(Gate, services=services, frames=_Frames(services))
    if services.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=services.origins,
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "Idempotency-Key"],
            expose_headers=["X-Generation", "X-Total-Count", "X-Truncated"],
        )
    # Not a mount: that would match every path, and a wrong method would be told as a missing file.
    app.router.default = _web(services, app.router.default)
    return app


class Chunks(StreamingResponse):
    """A body that is made while it is sent. Its rows are let go at the end, also when the client left before it."""

    def __init__(self, chunks: Iterator[bytes], close: Callable[[], None], media_type: MediaType) -> None:
        super().__init__(_on_threads(chunks), media_type=_with_charset(media_type), headers={"Vary": "Accept"})
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_stalled = False

        async def send_in_time(message: Message) -> None:
            nonlocal is_stalled
            try:
                with fail_after(STALLED_SECONDS_MAX):
                    await send(message)
            except TimeoutError:
                is_stalled = True
                raise

        try:
            await super().__call__(scope, receive, send_in_time)
        except (TimeoutError, ClientDisconnect):  # Starlette takes one for the other
            if not is_stalled:
                raise
            # Returning without the end of the body closes the connection.
            client = scope.get("client") or ("?",)
            throttle.log_event(log, "export_stalled", logging.WARNING, client=client[0], seconds=STALLED_SECONDS_MAX)
        finally:
            with CancelScope(shield=True):
                await run_in_threadpool(self._close)


async def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


def _problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The documentation of an operation's problems."""
    return {status: {"model": Problem, "description": PROBLEMS[status]} for status in statuses}


def _media(*media_types: MediaType) -> dict[str, Any]:
    """The documentation of answers that are not JSON."""
    schemas = {CSV: {"type": "string"}, ARROW: {"type": "string", "format": "binary"}}
    return {media_type: {"schema": schemas[media_type]} for media_type in media_types}


def _header(description: str, kind: str) -> dict[str, Any]:
    return {"description": description, "schema": {"type": kind}}


Shared = Annotated[Services, Depends(_services)]
IdempotencyKey = Annotated[
    str | None,
    Header(
        description="an id that the client makes for each message: the same message with the same id is published once",
        pattern="^[A-Za-z0-9_-]{8,100}$",
    ),
]

open_routes = APIRouter(tags=["health"])
locked_routes = APIRouter(
    # The gate has checked it already; this is for the documentation.
    dependencies=[Security(HTTPBearer(auto_error=False, scheme_name="key", description=KEY_DESCRIPTION))],
    responses=_problems(401, 403, 413, 429, 500),
)


@open_routes.get("/healthz", summary="Whether the server runs")
async def healthz() -> Health:
    return Health()


@open_routes.get("/readyz", summary="Whether there is data to read", responses=_problems(500, 503))
def readyz(services: Shared) -> Readiness:
    try:
        services.store.check()
    except (StoreError, duckdb.Error) as error:
        problem = error.problem if isinstance(error, StoreError) else f"the store cannot be read: {first_line(error)}"
        raise RequestError(
            "unavailable", problem, "see the server's log; a store that failed ends the server"
        ) from None
    live = services.store.live()
    if not live:
        raise RequestError(
            "unavailable",
            f"no generation with data is published yet: {services.pulse.status().message}",
            "start the pipeline if it does not run, and wait until its first generation has caught up",
        )
    return Readiness(generation=live[-1])


@locked_routes.get(
    "/metrics",
    summary="Counters for Prometheus",
    tags=["health"],
    response_class=Response,
    responses={200: {"description": "Prometheus text", "content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def metrics(services: Shared) -> Response:
    store, pulse = services.store, services.pulse
    now = Now(pulse.status(), store.generations(), store.row_counts(), pulse.pipeline)
    return Response(services.metrics.exposition(now), media_type=CONTENT_TYPE_LATEST)


@locked_routes.get("/api/tables", summary="All tables", tags=["tables"])
def tables(services: Shared) -> Tables:
    found = []
    for name in sorted(services.store.tables()):
        with suppress(RequestError):  # it went away meanwhile
            table, window = services.store.window(name, ViewOptions(size=0))
            found.append(
                Table(
                    name=name,
                    columns=_columns(table.shape.schema),
                    generation=table.generation,
                    rows=window.total,
                    newest=table.newest,
                    alias_of=None if name == table.shape.name else table.shape.name,
                )
            )
    return Tables(tables=found)


@locked_routes.get(
    "/api/tables/{name}/rows",
    summary="Rows of a table",
    tags=["tables"],
    response_model=Rows,
    responses={
        200: {
            "description": "The rows",
            "content": _media(CSV, ARROW),
            "headers": {
                "X-Total-Count": _header("in windows: rows that pass the filters in the whole table", "integer"),
                "X-Generation": _header("in windows: the generation that the rows are from", "string"),
            },
        },
        **_problems(400, 404, 406, 422),
    },
)
def rows(name: str, question: Annotated[RowsQuestion, Query()], request: Request, services: Shared) -> Response:
    media_type, role = _negotiated(request, MEDIA_TYPES), role_of(request.scope)
    if media_type != JSON and question.limit is None:
        selection = for_role(question.selection(), role, hides_raw=services.hides_raw)
        return _exported(services, name, selection, question.offset, media_type)
    table, window = services.store.window(name, for_role(question.window(), role, hides_raw=services.hides_raw))
    services.metrics.rows_sent.labels(table.shape.name, "http").inc(window.rows.num_rows)
    headers = {"X-Total-Count": str(window.total), "X-Generation": table.generation, "Vary": "Accept"}
    if media_type == JSON:
        names = window.rows.column_names
        found = [dict(zip(names, row, strict=True)) for row in encoded_rows(window.rows)]
        body = to_json({"rows": found, "total": window.total, "generation": table.generation})
    else:
        body = b"".join(_encoding(media_type)(window.rows.schema, window.rows.to_batches()))
    return Response(body, headers=headers, media_type=_with_charset(media_type))


@locked_routes.get("/api/status", summary="How fresh the tables are, and why", tags=["status"])
def status(request: Request, services: Shared) -> ServerStatus:
    told = services.pulse.status()
    generations = services.store.generations()
    counted = services.store.row_counts()
    return ServerStatus(
        state=told.state,
        message=told.message,
        pipeline_seen=told.pipeline_seen,
        spark_ui=told.spark_ui,
        sources=[
            SourceStatus(table=source.table, topic=source.topic, lag_records=source.lag_records, newest=source.newest)
            for source in told.sources
        ],
        generations=[
            GenerationStatus(
                name=generation.name,
                begun=generation.begun,
                published=generation.published,
                last_batch_id=generation.last_batch_id,
                rows=counted.get(generation.name, {}),
            )
            for generation in generations.values()
        ],
        unknown_fields=[
            UnknownField(table=table, field=field, records=records)
            for (table, field), records in sorted(services.store.unknown_fields.items())
        ],
        clients=_number(services.metrics.clients),
        subscriptions=_number(services.metrics.subscriptions),
        viewports=_number(services.metrics.viewports),
        version=version("livetables"),
        started=services.started,
        time=datetime.now(UTC),
        role=role_of(request.scope),
        flight_port=services.flight_port,
    )


@locked_routes.post(
    "/api/control",
    summary="Publish a control message",
    tags=["control"],
    status_code=202,
    responses=_problems(400, 422, 429, 503, 504),
)
async def control(
    message: ControlFields, request: Request, services: Shared, idempotency_key: IdempotencyKey = None
) -> ControlReceipt:
    slots: CapacityLimiter = request.app.state.control_slots
    send = partial(services.control.send, message.fields, message_id=idempotency_key)
    receipt = await anyio.to_thread.run_sync(send, limiter=slots)
    return ControlReceipt(topic=receipt.topic, partition=receipt.partition, offset=receipt.offset)


@locked_routes.post(
    "/api/sql",
    summary="Ask in SQL",
    tags=["tables"],
    response_model=SqlAnswer,
    responses={
        200: {
            "description": f"At most {MAX_SQL_ROWS:,} rows",
            "content": _media(ARROW),
            "headers": {"X-Truncated": _header("whether there are more", "boolean")},
        },
        **_problems(400, 406, 422, 429, 504),
    },
)
async def sql(question: SqlQuestion, request: Request, services: Shared) -> Response:
    media_type = _negotiated(request, (JSON, ARROW))
    slots: CapacityLimiter = request.app.state.sql_slots
    if slots.statistics().tasks_waiting >= MAX_SQL_WAITING:
        raise RequestError("busy", "too many queries are waiting", "send it again later")
    masked = services.hides_raw and role_of(request.scope) == "viewer"
    answer = partial(_sql_answer, services, question.sql, media_type, masked=masked)
    return await anyio.to_thread.run_sync(answer, limiter=slots)


def _sql_answer(services: Services, text: str, media_type: MediaType, *, masked: bool) -> Response:
    batches: list[pa.RecordBatch] = []
    found = size = 0
    with services.store.sql(text, masked=masked) as reader:
        for batch in reader:
            batches.append(batch)
            found += batch.num_rows
            size += batch.nbytes
            if size > MAX_SQL_BYTES:
                raise RequestError("limit", "the answer is too large", "ask for fewer or shorter columns, or less rows")
            if found > MAX_SQL_ROWS:
                break
        answer = pa.Table.from_batches(batches, reader.schema).slice(0, MAX_SQL_ROWS)
    services.metrics.rows_sent.labels(SQL, "http").inc(answer.num_rows)
    headers = {"X-Truncated": "true" if found > MAX_SQL_ROWS else "false", "Vary": "Accept"}
    if media_type == ARROW:
        return Response(b"".join(arrow_chunks(answer.schema, answer.to_batches())), headers=headers, media_type=ARROW)
    columns = [column.model_dump() for column in _columns(answer.schema)]
    body = {"columns": columns, "rows": encoded_rows(answer), "truncated": found > MAX_SQL_ROWS}
    return Response(to_json(body), headers=headers, media_type=JSON)


def _exported(services: Services, name: str, selection: Selection, offset: int, media_type: MediaType) -> Response:
    """The whole selection, a chunk at a time. The first chunk is made here, so that a problem is told as one."""

    def exported() -> Generator[bytes]:
        sent = services.metrics.rows_sent.labels(services.store.table(name).shape.name, "http")
        with services.store.scan(name, selection) as reader:
            yield from _encoding(media_type)(reader.schema, counted(after(offset, reader), sent))

    chunks = exported()
    return Chunks(chain([next(chunks)], chunks), chunks.close, media_type)


async def _on_threads(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    while (chunk := await run_in_threadpool(next, chunks, None)) is not None:
        for start in range(0, len(chunk), PIECE_BYTES):
            yield chunk[start : start + PIECE_BYTES]


def _encoding(media_type: MediaType) -> Callable[[pa.Schema, Iterable[pa.RecordBatch]], Iterator[bytes]]:
    return csv_chunks if media_type == CSV else arrow_chunks


def _with_charset(media_type: MediaType) -> str:
    return f"{media_type}; charset=utf-8" if media_type == CSV else media_type


def _negotiated(request: Request, offered: tuple[MediaType, ...]) -> MediaType:
    media_type = chosen_media_type(", ".join(request.headers.getlist("accept")), offered)
    if media_type is None:
        raise HTTPException(406, f"accept one of {', '.join(offered)}")
    return media_type


def _columns(schema: pa.Schema) -> list[Column]:
    return [Column(name=field.name, type=_type(field.type)) for field in schema]


def _type(data_type: pa.DataType) -> str:
    try:
        return column_type(data_type)
    except KeyError:  # SQL has more types than tables have
        return str(data_type)


def _number(gauge: Gauge) -> int:
    (family,) = gauge.collect()
    return int(family.samples[0].value)


class _Page(StaticFiles):
    """The web app's files."""

    def file_response(self, *arguments: Any, **options: Any) -> Response:
        response = super().file_response(*arguments, **options)
        response.headers["Cache-Control"] = PAGE_CACHING
        return response


class _Frames:
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
            answer = Response(to_json(taken), media_type=JSON)
        except FrameError as error:
            answer = await frame_problem(request, error)
        except RequestError as error:
            answer = await request_problem(request, error)
        except HTTPException as error:
            answer = await http_problem(request, error)
        await answer(scope, receive, send)


async def _session(websocket: WebSocket) -> None:
    await serve_session(websocket, websocket.app.state.services)


def _web(services: Services, missing: ASGIApp) -> ASGIApp:
    """What answers on every path that is no operation: the web app's files, or a page that tells what there is."""
    directory = services.web_directory
    files = _Page(directory=directory, html=True) if directory and directory.is_dir() else None

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or is_locked(scope):
            await missing(scope, receive, send)
        elif files:
            await files(scope, receive, send)
        elif scope["path"] == "/" and scope["method"] in ("GET", "HEAD"):
            await HTMLResponse(WELCOME)(scope, receive, send)
        else:
            await missing(scope, receive, send)

    return answer
