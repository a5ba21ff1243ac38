"""Control messages: one is published before it is answered."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import Header, Request

from livetables.server.api.http_operations import Shared, locked_routes, problems
from livetables.server.api.messages import ControlFields, ControlReceipt

IdempotencyKey = Annotated[
    str | None,
    Header(
        description="an id that the client makes for each message: the same message with the same id is published once",
        pattern="^[A-Za-z0-9_-]{8,100}$",
    ),
]

routes = locked_routes("control")


@routes.post(
    "/api/control",
    summary="Publish a control message",
    tags=["control"],
    status_code=202,
    responses=problems(400, 422, 429, 503, 504),
)
async def control(
    message: ControlFields, request: Request, services: Shared, idempotency_key: IdempotencyKey = None
) -> ControlReceipt:
    slots: CapacityLimiter = request.app.state.control_slots
    send = partial(services.control.send, message.fields, message_id=idempotency_key)
    receipt = await anyio.to_thread.run_sync(send, limiter=slots)
    return ControlReceipt(topic=receipt.topic, partition=receipt.partition, offset=receipt.offset)
