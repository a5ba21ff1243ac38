"""The actions of the pipeline: what it may do over Flight, and the bodies and results of each."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict
from typing import Any, TypeVar

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from livetables.config.settings import choice
from livetables.log import log_event
from livetables.model.errors import ErrorCode, RequestError, SinkError
from livetables.model.spec import CONTROL_TABLES
from livetables.model.wire import Holder, PipelineReport, Receipt, SourceReport, decode_batch, decode_shapes
from livetables.server.api.flight_errors import limited, reason
from livetables.server.api.services import Backend
from livetables.server.storage.frames import FrameError
from livetables.server.viewports.viewport import Selection

CONTROL_WAIT_SECONDS_MAX = 20.0
CONTROL_SLICE_SECONDS = 0.5

ACTIONS = {
    "start_pipeline": "get a number; pipelines with an older one are refused from then on",
    "holder": "return which process holds the server",
    "begin": "make room for a generation; returns where to send frames",
    "put": "apply a batch, once",
    "publish": "let the stable names mean a generation's tables",
    "drop": "forget a generation",
    "generations": "list the generations that the server has, and their rows",
    "positions": "list how far each generation is in its topics",
    "dead_letters": "count the dead letters of a generation, with the first reason of each table",
    "status_table": "read all rows of a status table back, as an Arrow stream",
    "lost_records": "count the records that a generation has and its successor has not, by topic",
    "report": "report how far behind its topics a generation is, or why it does not move",
    "control_requests": "wait for control messages to publish",
    "control_settled": "report what became of a control message",
}

log = logging.getLogger(__name__)

Parsed = TypeVar("Parsed")


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class _Named(_Value):
    generation: str


class _Start(_Value):
    holder: Holder | None = None
    replaces: str | None = None  # the process that held the server, if it is known to be dead


class _NamedTable(_Value):
    table: str


class _Successor(_Value):
    generation: str
    successor: str
    ends: dict[str, dict[int, int] | None]


class _SourceReport(_Value):
    table: str
    topic: str
    lag_records: int = Field(ge=0)


class _Report(_Value):
    generation: str | None  # what is shown; None while there is nothing
    sources: list[_SourceReport]
    problem: str | None = None
    pipeline: PipelineReport | None = None


class _Wait(_Value):
    seconds_max: float = Field(ge=0)


class _Published(_Value):
    request_id: int
    topic: str
    partition: int
    offset: int


class _NotPublished(_Value):
    request_id: int
    code: ErrorCode
    problem: str
    cure: str


_Settled = TypeAdapter[_Published | _NotPublished](_Published | _NotPublished)


class PipelineActions:
    """The handlers of all actions. `hold` checks that the pipeline that calls holds the server."""

    def __init__(
        self,
        backend: Backend,
        http: Mapping[str, object],
        stopping: threading.Event,
        hold: Callable[[Any, str], int],
    ) -> None:
        """`http` is where the pipeline's writers find the same server."""
        self._store, self._pulse = backend.store, backend.pulse
        self._control, self._metrics = backend.control, backend.metrics
        self._http = http
        self._stopping = stopping
        self._hold = hold
        self._handlers: Mapping[str, Callable[[Any, Any], object]] = {
            "start_pipeline": self._start_pipeline,
            "holder": self._holder,
            "begin": self._begin,
            "put": self._put,
            "publish": self._publish,
            "drop": self._drop,
            "generations": self._generations,
            "positions": self._positions,
            "dead_letters": self._dead_letters,
            "status_table": self._status_table,
            "lost_records": self._lost_records,
            "report": self._report,
            "control_requests": self._control_requests,
            "control_settled": self._control_settled,
        }

    def answer(self, action: str, context: Any, body: Any) -> object:
        """The result of an action: bytes as they are, or what is to be sent as JSON."""
        return self._handlers[action](context, body)

    def _start_pipeline(self, _context: Any, body: Any) -> dict[str, int]:
        data = limited(body)
        start = _decoded(_Start.model_validate_json, data, "start_pipeline") if data else _Start()
        before = self._store.holding.holder
        number = self._store.fencing.start_pipeline(start.holder, start.replaces)
        log_event(log, "pipeline_started", number=number, holder=start.holder, before=before)
        return {"number": number}

    def _holder(self, _context: Any, _body: Any) -> dict[str, object] | None:
        holder = self._store.holding.holder
        return asdict(holder) if holder else None

    def _begin(self, _context: Any, body: Any) -> dict[str, object]:
        generation, shapes = _decoded(decode_shapes, body, "begin")
        is_new = generation not in self._store.generations()
        self._store.begin(generation, shapes)
        if is_new:
            log_event(log, "generation_begun", generation=generation, tables=len(shapes))
        return dict(self._http)

    def _put(self, _context: Any, body: Any) -> dict[str, bool]:
        batch = _decoded(decode_batch, body, "put")
        started = time.perf_counter()
        applied = self._store.put(batch)
        if applied:
            seconds = time.perf_counter() - started
            generation = self._store.generations().get(batch.generation)
            self._metrics.committed(batch, is_published=bool(generation and generation.published), seconds=seconds)
        return {"applied": applied}

    def _publish(self, _context: Any, body: Any) -> None:
        generation = _decoded(_Named.model_validate_json, limited(body), "publish").generation
        self._store.publish(generation)
        log_event(log, "generation_published", generation=generation)

    def _drop(self, _context: Any, body: Any) -> None:
        generation = _decoded(_Named.model_validate_json, limited(body), "drop").generation
        is_there = generation in self._store.generations()
        self._store.drop(generation)
        if is_there:
            log_event(log, "generation_dropped", generation=generation)

    def _generations(self, _context: Any, _body: Any) -> list[dict[str, object]]:
        generations = self._store.generations()  # before the rows: none of what it says was read is missing in them
        counted = self._store.row_counts()
        return [
            {
                "name": each.name,
                "last_batch_id": each.last_batch_id,
                "sequence": each.sequence,
                "positions": each.positions,
                "records": each.records,
                "published": each.published.isoformat() if each.published else None,
                "begun": each.begun.isoformat(),
                "rows": counted.get(each.name, {}),
            }
            for each in generations.values()
        ]

    def _positions(self, _context: Any, _body: Any) -> dict[str, dict[str, dict[int, int]]]:
        return {name: each.positions for name, each in self._store.generations().items()}

    def _dead_letters(self, _context: Any, body: Any) -> dict[str, dict[str, object]]:
        generation = _decoded(_Named.model_validate_json, limited(body), "dead_letters").generation
        summary = self._store.dead_letter_summary(generation)
        return {source: {"count": count, "reason": reason} for source, (count, reason) in summary.items()}

    def _status_table(self, _context: Any, body: Any) -> bytes:
        """What the pipeline has written itself. It reads no other tables."""
        name = _decoded(_NamedTable.model_validate_json, limited(body), "status_table").table
        if name not in CONTROL_TABLES:
            raise RequestError(
                "unknown_table", f"{ascii(name)[:80]} is not a status table", choice(name, CONTROL_TABLES)
            )
        with self._store.reader.scan(name, Selection()) as reader, closing(reader):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, reader.schema) as writer:
                for batch in reader:
                    writer.write_batch(batch)
        return bytes(sink.getvalue())

    def _lost_records(self, _context: Any, body: Any) -> dict[str, int]:
        asked = _decoded(_Successor.model_validate_json, limited(body), "lost_records")
        return self._store.lost_records(asked.generation, asked.successor, asked.ends)

    def _report(self, _context: Any, body: Any) -> None:
        report = _decoded(_Report.model_validate_json, limited(body), "report")
        sources = [SourceReport(each.table, each.topic, each.lag_records) for each in report.sources]
        if report.generation is not None:
            self._pulse.reported(report.generation, sources, report.problem)
        if report.pipeline is not None:
            self._pulse.pipeline = report.pipeline
        self._metrics.reported(sources)

    def _control_requests(self, context: Any, body: Any) -> list[dict[str, object]]:
        wanted = _decoded(_Wait.model_validate_json, limited(body), "control_requests").seconds_max
        deadline = time.monotonic() + min(wanted, CONTROL_WAIT_SECONDS_MAX)
        # In slices, because a pipeline that has gone must not take a request with it, and one that waits is alive.
        while not (context.is_cancelled() or self._stopping.is_set()):
            left = deadline - time.monotonic()
            if requests := self._control.take(max(0.0, min(left, CONTROL_SLICE_SECONDS))):
                try:
                    self._hold(context, "control_requests")
                except FrameError:  # another pipeline has taken over meanwhile
                    self._control.give_back(requests)
                    raise
                return [
                    {"request_id": each.request_id, "fields": dict(each.fields), "message_id": each.message_id}
                    for each in requests
                ]
            if left <= 0:
                break
            self._pulse.heard()
        return []

    def _control_settled(self, _context: Any, body: Any) -> None:
        settled = _decoded(_Settled.validate_json, limited(body), "control_settled")
        if isinstance(settled, _Published):
            self._control.settle(settled.request_id, Receipt(settled.topic, settled.partition, settled.offset))
        else:
            self._control.settle(settled.request_id, RequestError(settled.code, settled.problem, settled.cure))


def _decoded(decode: Callable[[Any], Parsed], body: Any, action: str) -> Parsed:
    """The body of an action. The pipeline made it, so one that cannot be read is of another version."""
    try:
        return decode(body)
    except Exception as error:
        raise SinkError(
            f"the body of {action} cannot be read: {reason(error)}",
            "let the pipeline and the server be of the same version of livetables",
        ) from None
