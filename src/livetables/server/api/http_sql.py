"""Queries in SQL, some at once."""

from __future__ import annotations

from functools import partial

import anyio.to_thread
import pyarrow as pa
from anyio import CapacityLimiter
from fastapi import Request
from pydantic_core import to_json
from starlette.responses import Response

from livetables.model.errors import RequestError
from livetables.server.api.gate import role_of
from livetables.server.api.http_operations import Shared, columns_of, header, locked_routes, media, negotiated, problems
from livetables.server.api.messages import MAX_SQL_ROWS, SqlAnswer, SqlQuestion
from livetables.server.api.services import Services
from livetables.server.health.metrics import SQL
from livetables.server.viewports.encoding import ARROW, JSON, MediaType, arrow_chunks, encoded_rows

MAX_SQL_BYTES = 64 * 1024 * 1024
MAX_SQL_WAITING = 32

routes = locked_routes()


@routes.post(
    "/api/sql",
    summary="Ask in SQL",
    tags=["tables"],
    response_model=SqlAnswer,
    responses={
        200: {
            "description": f"At most {MAX_SQL_ROWS:,} rows",
            "content": media(ARROW),
            "headers": {"X-Truncated": header("whether there are more", "boolean")},
        },
        **problems(400, 406, 422, 429, 504),
    },
)
async def sql(question: SqlQuestion, request: Request, services: Shared) -> Response:
    media_type = negotiated(request, (JSON, ARROW))
    slots: CapacityLimiter = request.app.state.sql_slots
    if slots.statistics().tasks_waiting >= MAX_SQL_WAITING:
        raise RequestError("busy", "too many queries are waiting", "send it again later")
    masked = services.hides_raw and role_of(request.scope) == "viewer"
    answer = partial(_sql_answer, services, question.sql, media_type, masked=masked)
    return await anyio.to_thread.run_sync(answer, limiter=slots)


def _sql_answer(services: Services, text: str, media_type: MediaType, *, masked: bool) -> Response:
    batches: list[pa.RecordBatch] = []
    found = size = 0
    with services.store.reader.sql(text, masked=masked) as reader:
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
    columns = [column.model_dump() for column in columns_of(answer.schema)]
    body = {"columns": columns, "rows": encoded_rows(answer), "truncated": found > MAX_SQL_ROWS}
    return Response(to_json(body), headers=headers, media_type=JSON)
