"""Whether the server runs, has data, how fresh they are, and its metrics."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.metadata import version

import duckdb
from fastapi import APIRouter, Request
from prometheus_client import Gauge
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.responses import Response

from livetables.model.errors import RequestError, StoreError
from livetables.server.api.gate import role_of
from livetables.server.api.http_operations import Shared, locked_routes, problems
from livetables.server.api.messages import (
    GenerationStatus,
    Health,
    Readiness,
    ServerStatus,
    UnknownField,
)
from livetables.server.health.metrics import Now
from livetables.server.storage.sql import first_line

open_routes = APIRouter(tags=["health"])
routes = locked_routes()


@open_routes.get("/healthz", summary="Whether the server runs")
async def healthz() -> Health:
    return Health()


@open_routes.get("/readyz", summary="Whether there is data to read", responses=problems(500, 503))
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


@routes.get(
    "/metrics",
    summary="Counters for Prometheus",
    tags=["health"],
    response_class=Response,
    responses={200: {"description": "Prometheus text", "content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def metrics(services: Shared) -> Response:
    store, pulse = services.store, services.pulse
    now = Now(pulse.status(), store.generations(), store.reader.row_counts(), pulse.pipeline)
    return Response(services.metrics.exposition(now), media_type=CONTENT_TYPE_LATEST)


@routes.get("/api/status", summary="How fresh the tables are, and why", tags=["status"])
def status(request: Request, services: Shared) -> ServerStatus:
    generations = services.store.generations()
    counted = services.store.reader.row_counts()
    return ServerStatus(
        **dict(services.pulse.status()),
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


def _number(gauge: Gauge) -> int:
    (family,) = gauge.collect()
    return int(family.samples[0].value)
