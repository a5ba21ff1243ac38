"""The door for programs, Arrow Flight: the pipeline brings batches by actions, clients take tables by tickets.

The actions (`ACTIONS`) have JSON bodies and results, but for `begin` and `put`, whose bodies are those of
`livetables.model.wire`, and `status_table`, whose result is Arrow. They need a key that may write; everything else
needs one that may read.

A ticket is JSON: `{"table": …}` with the fields of a `Selection` for all its rows, with those of `ViewOptions` for a
window of them, `{"sql": …}`, or `{"changes": <table>}` with the fields of a `ChangesTicket` to follow a table. An
error's `extra_info` is JSON: `code`, `problem` and `cure`.

Rows are read as the client takes them, from a snapshot that is closed when the stream ends, however it ends.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import asdict
from functools import wraps
from typing import Any, Literal, TypeVar
from weakref import WeakSet

import pyarrow as pa
from prometheus_client import Counter
from pyarrow import flight
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic_core import from_json

from livetables.config.settings import choice
from livetables.log import Throttle, log_event
from livetables.model.change import TableShape
from livetables.model.columns import kind_of
from livetables.model.errors import ErrorCode, LivetablesError, RequestError, SinkError
from livetables.model.roles import Right, Role
from livetables.model.spec import CONTROL_TABLES
from livetables.model.wire import (
    NO_BATCH,
    Holder,
    PipelineReport,
    Place,
    Receipt,
    SourceReport,
    decode_batch,
    decode_shapes,
)
from livetables.server.access.key import Key, bearer, let_in
from livetables.server.access.logins import Peer
from livetables.server.api.control_requests import ControlDoor
from livetables.server.api.front import LOOPBACK, Front
from livetables.server.api.services import Pulse
from livetables.server.health.metrics import SQL, Metrics, counted
from livetables.server.storage.feed import changes_schema
from livetables.server.storage.frames import FrameError
from livetables.server.storage.reader import SQL_SECONDS_MAX
from livetables.server.storage.store import Store
from livetables.server.viewports.viewport import Selection, ViewOptions, chosen_columns
from livetables.tls import ServerCertificate

SCANS_MAX = 8
STALLED_SECONDS_MAX = 60.0  # a client that takes no chunk for so long loses its stream; one of SQL has its own time
JSON_BYTES_MAX = 65_536
CONTROL_WAIT_SECONDS_MAX = 20.0
CHANGES_WAIT_SECONDS_MAX = 20.0
CONTROL_SLICE_SECONDS = 0.5
GOODBYE_SECONDS = 3.0
# gRPC sends an error in a header of at most 8 KiB, in which a byte of the message may take four.
PROBLEM_BYTES_MAX = 1_000
CURE_BYTES_MAX = 500

PRESENTED = "key"  # the middleware's name
PIPELINE_HEADER = "livetables-pipeline"  # the number of the pipeline that calls
HOLDER_HEADER = "livetables-holder"  # its process, as JSON
WRITES = frozenset({"begin", "put", "publish", "drop"})
BEFORE_HOLDING = frozenset({"holder", "start_pipeline"})  # what one may do that waits for the server
# Only the pipeline that holds the server may do these; where one does, a call without a number is refused.
OF_THE_HOLDER = WRITES | {"report", "control_requests", "control_settled"}
# Who asks for a schema. Of what that handler raises, pyarrow sends the trace instead of the kind of error, so its key
# is checked before it is known who calls: all who guess that way count as one.
ANYBODY = Peer("anybody who asks for a schema")

ACTIONS = {
    "start_pipeline": "get a number; pipelines with an older one are refused from then on",
    "holder": "tell which process holds the server",
    "begin": "make room for a generation; tells where to send frames",
    "put": "apply a batch, once",
    "publish": "let the stable names mean a generation's tables",
    "drop": "forget a generation",
    "generations": "list the generations that the server has, and their rows",
    "positions": "list how far each generation is in its topics",
    "dead_letters": "count the dead letters of a generation, with the first reason of each table",
    "status_table": "read all rows of a status table back, as an Arrow stream",
    "lost_records": "count the records that a generation has and its successor has not, by topic",
    "report": "tell how far behind its topics a generation is, or why it does not move",
    "control_requests": "wait for control messages to publish",
    "control_settled": "tell what became of a control message",
}

log = logging.getLogger(__name__)
throttle = Throttle()

Parsed = TypeVar("Parsed")


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class TableTicket(Selection):
    """All rows of a selection."""

    table: str


class WindowTicket(ViewOptions):
    """The rows of a window."""

    table: str


class SqlTicket(_Value):
    """The answer to a SELECT over the stable names."""

    sql: str


class ChangesTicket(_Value):
    """What changed in a table after a place: at once if something has, else when it does, or when time is up.

    Without a place, or with one that is not known any more: the whole table if `snapshot`. Without either, where the
    table is now.
    """

    changes: str
    generation: str | None = None
    begun: str | None = None
    after: int | None = Field(default=None, ge=NO_BATCH)
    snapshot: bool = True
    seconds_max: float = Field(default=CHANGES_WAIT_SECONDS_MAX, ge=0)
    checksum: bool = False  # whether changes since a place are to have one
    reason: Literal["checksum"] | None = None  # why the same is asked for again: it came with another checksum

    @model_validator(mode="after")
    def _has_a_whole_place(self) -> ChangesTicket:
        if (self.generation is None) != (self.after is None):
            raise ValueError("generation and after go together")
        return self

    @property
    def place(self) -> Place | None:
        if self.generation is None or self.after is None:
            return None
        return Place(self.generation, self.after, self.begun)


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


Ticket = TableTicket | WindowTicket | SqlTicket | ChangesTicket
_Settled = TypeAdapter[_Published | _NotPublished](_Published | _NotPublished)


class _Presented(flight.ServerMiddleware):  # type: ignore[misc]
    """The key that a call brings, which is checked where it is known who calls, and its pipeline's number.

    `role` is known when the key was checked.
    """

    def __init__(
        self, token: str | None, pipeline: str | None, role: Role | None = None, holder: str | None = None
    ) -> None:
        self.token = token
        self.pipeline = pipeline
        self.holder = holder
        self.role = role


class _KeyCheck:
    """Lets no call in without a key whose role has the right."""

    def __init__(self, key: Key, metrics: Metrics) -> None:
        self._key = key
        self._metrics = metrics

    def __call__(self, peer: Peer, token: str | None, right: Right) -> Role:
        try:
            return let_in(self._key, self._metrics, "flight", peer, token, right)
        except RequestError as problem:
            if problem.code == "busy":
                raise flight.FlightUnavailableError(*_told(problem.code, problem.problem, problem.cure)) from None
            if problem.code == "forbidden":
                raise flight.FlightUnauthorizedError(*_told(problem.code, problem.problem, problem.cure)) from None
            cure = "send the header `authorization: Bearer <key>` with the server's key (LIVETABLES_TOKEN)"
            raise flight.FlightUnauthenticatedError(*_told(problem.code, problem.problem, cure)) from None


class _PresentedFactory(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    def __init__(self, check: _KeyCheck) -> None:
        self._check = check

    def start_call(self, info: Any, headers: Mapping[str, list[str]]) -> _Presented:
        token = bearer(next(iter(headers.get("authorization", [])), None))
        role = self._check(ANYBODY, token, "read") if info.method == flight.FlightMethod.GET_SCHEMA else None
        number, holder = (next(iter(headers.get(name, [])), None) for name in (PIPELINE_HEADER, HOLDER_HEADER))
        return _Presented(token, number, role, holder)


def _locked(right: Right) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let no call through to its handler without a key whose role has the right."""

    def locked(handler: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(handler)
        def checked(door: FlightDoor, context: Any, *arguments: Any) -> Any:
            presented = context.get_middleware(PRESENTED)
            uri = context.peer()
            presented.role = door.check_key(door.front.peer_of(uri), presented.token, right)
            door.front.let_in(uri, may_write=right == "write")
            with _flight_errors():
                door.check_pipeline(presented.pipeline)
            return handler(door, context, *arguments)

        return checked

    return locked


class FlightDoor(flight.FlightServerBase):  # type: ignore[misc]
    """Serves from its construction until `shutdown`. `port` is the one it got when 0 was asked for."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        store: Store,
        key: Key,
        pulse: Pulse,
        control: ControlDoor,
        metrics: Metrics,
        http_port: int = 0,
        certificate: ServerCertificate | None = None,
        hides_raw: bool = False,
    ) -> None:
        """`http_port` is where the pipeline's writers find the same server."""
        self._store = store
        self._http = {"http_port": http_port, "scheme": "https" if certificate else "http"}
        self._pulse = pulse
        self._control = control
        self._metrics = metrics
        self._hides_raw = hides_raw  # from viewers
        self._stopping = threading.Event()
        self._streams = _Streams()
        self._actions: Mapping[str, Callable[[Any, Any], object]] = {
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
        self.check_key = _KeyCheck(key, metrics)
        self.front = Front(host, port, certificate)
        super().__init__(
            flight.Location.for_grpc_unix(str(self.front.path))
            if self.front.path
            else flight.Location.for_grpc_tcp(LOOPBACK, 0),
            middleware={PRESENTED: _PresentedFactory(self.check_key)},
        )
        self.front.start(super().port)

    @property
    def port(self) -> int:
        return self.front.port

    def shutdown(self) -> None:
        """Close the door: calls have GOODBYE_SECONDS to end, then their connections are cut."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self.front.stop_accepting()
        self._store.feed.wake()
        ending = threading.Thread(target=super().shutdown, name="flight-shutdown", daemon=True)
        ending.start()
        ending.join(GOODBYE_SECONDS)
        self.front.close()  # a call whose client has stopped reading ends in no other way in gRPC
        ending.join(GOODBYE_SECONDS)

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def check_pipeline(self, number: str | None) -> None:
        """Refuse a call of a pipeline when another one has taken over."""
        if number is None:
            return
        if not (number.isascii() and number.isdecimal()):
            raise RequestError("bad_frame", f"{PIPELINE_HEADER} is {number!r}", "send the number of start_pipeline")
        self._store.check_pipeline(int(number))

    def _number(self, context: Any, action: str) -> int:
        """The number of the pipeline that acts, which holds the server. Where none does, tools act without one."""
        presented = context.get_middleware(PRESENTED)
        number = int(presented.pipeline or 0)
        if action in OF_THE_HOLDER:
            self._store.check_pipeline(number)
        if number:
            self._store.holding.heard(_holder(presented.holder))
        return number

    # The pipeline's side

    @_locked("write")
    def list_actions(self, _context: Any) -> list[tuple[str, str]]:
        return list(ACTIONS.items())

    @_locked("write")
    def do_action(self, context: Any, action: Any) -> list[bytes]:
        with _flight_errors():
            if action.type not in self._actions:
                raise SinkError(f"there is no action {ascii(action.type)[:80]}", choice(action.type, ACTIONS))
            number = self._number(context, action.type)
            if action.type not in BEFORE_HOLDING:
                self._pulse.heard()
            self._streams.close_stalled()
            with self._store.held_by(number) if action.type in WRITES else nullcontext():
                answer = self._actions[action.type](context, action.body)
            if action.type not in BEFORE_HOLDING:
                self._pulse.heard()  # a large batch takes a while
            return [answer if isinstance(answer, bytes) else json.dumps(answer).encode()]

    def _start_pipeline(self, _context: Any, body: Any) -> dict[str, int]:
        data = _limited(body)
        start = _decoded(_Start.model_validate_json, data, "start_pipeline") if data else _Start()
        before = self._store.holding.holder
        number = self._store.start_pipeline(start.holder, start.replaces)
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
        generation = _decoded(_Named.model_validate_json, _limited(body), "publish").generation
        self._store.publish(generation)
        log_event(log, "generation_published", generation=generation)

    def _drop(self, _context: Any, body: Any) -> None:
        generation = _decoded(_Named.model_validate_json, _limited(body), "drop").generation
        is_there = generation in self._store.generations()
        self._store.drop(generation)
        if is_there:
            log_event(log, "generation_dropped", generation=generation)

    def _generations(self, _context: Any, _body: Any) -> list[dict[str, object]]:
        generations = self._store.generations()
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
        generation = _decoded(_Named.model_validate_json, _limited(body), "dead_letters").generation
        summary = self._store.dead_letter_summary(generation)
        return {source: {"count": count, "reason": reason} for source, (count, reason) in summary.items()}

    def _status_table(self, _context: Any, body: Any) -> bytes:
        """What the pipeline has written itself. It reads no other tables."""
        name = _decoded(_NamedTable.model_validate_json, _limited(body), "status_table").table
        if name not in CONTROL_TABLES:
            raise RequestError("unknown_table", f"{ascii(name)[:80]} is no status table", choice(name, CONTROL_TABLES))
        with self._store.scan(name, Selection()) as reader, closing(reader):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, reader.schema) as writer:
                for batch in reader:
                    writer.write_batch(batch)
        return bytes(sink.getvalue())

    def _lost_records(self, _context: Any, body: Any) -> dict[str, int]:
        asked = _decoded(_Successor.model_validate_json, _limited(body), "lost_records")
        return self._store.lost_records(asked.generation, asked.successor, asked.ends)

    def _report(self, _context: Any, body: Any) -> None:
        report = _decoded(_Report.model_validate_json, _limited(body), "report")
        sources = [SourceReport(each.table, each.topic, each.lag_records) for each in report.sources]
        if report.generation is not None:
            self._pulse.reported(report.generation, sources, report.problem)
        if report.pipeline is not None:
            self._pulse.pipeline = report.pipeline
        self._metrics.reported(sources)

    def _control_requests(self, context: Any, body: Any) -> list[dict[str, object]]:
        wanted = _decoded(_Wait.model_validate_json, _limited(body), "control_requests").seconds_max
        deadline = time.monotonic() + min(wanted, CONTROL_WAIT_SECONDS_MAX)
        # In slices, because a pipeline that has gone must not take a request with it, and one that waits is alive.
        while not (context.is_cancelled() or self._stopping.is_set()):
            left = deadline - time.monotonic()
            if requests := self._control.take(max(0.0, min(left, CONTROL_SLICE_SECONDS))):
                try:
                    self._number(context, "control_requests")
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
        settled = _decoded(_Settled.validate_json, _limited(body), "control_settled")
        if isinstance(settled, _Published):
            self._control.settle(settled.request_id, Receipt(settled.topic, settled.partition, settled.offset))
        else:
            self._control.settle(settled.request_id, RequestError(settled.code, settled.problem, settled.cure))

    # The clients' side

    @_locked("read")
    def list_flights(self, _context: Any, _criteria: bytes) -> list[Any]:
        with _flight_errors():
            return [
                _info(_schema(table.shape, Selection()), flight.FlightDescriptor.for_path(name), _table_ticket(name))
                for name, table in self._store.tables().items()
            ]

    @_locked("read")
    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        with _flight_errors():
            ticket = _described(descriptor)
            schema = self._answer_schema(_parsed_ticket(ticket), masked=self._is_masked(context))
            return _info(schema, descriptor, ticket)

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        with _flight_errors():
            self.front.let_in(context.peer(), may_write=False)  # its key was checked before, see ANYBODY
            ticket = _parsed_ticket(_described(descriptor))
            return flight.SchemaResult(self._answer_schema(ticket, masked=self._is_masked(context)))

    def _is_masked(self, context: Any) -> bool:
        return self._hides_raw and context.get_middleware(PRESENTED).role == "viewer"

    @_locked("read")
    def do_get(self, context: Any, ticket: Any) -> Any:
        with _flight_errors():
            request, masked = _parsed_ticket(ticket.ticket), self._is_masked(context)
            if isinstance(request, Selection):
                request = request.model_copy(update={"masked": masked})
            if isinstance(request, ChangesTicket):
                return self._changes(context, request, masked=masked)
            if isinstance(request, WindowTicket):
                _, window = self._store.window(request.table, request)
                self._sent(request.table).inc(window.rows.num_rows)
                return flight.RecordBatchStream(window.rows)
            stream = self._opened(request, masked=masked)
            name = SQL if isinstance(request, SqlTicket) else request.table
            return flight.GeneratorStream(stream.schema, counted(stream, self._sent(name)))

    def _changes(self, context: Any, request: ChangesTicket, *, masked: bool) -> Any:
        if request.reason == "checksum":
            self._metrics.checksum_mismatches.inc()
            throttle.log_event(log, "checksum_mismatch", logging.ERROR, table=request.changes[:100])
        if request.place is None and not request.snapshot:
            return flight.RecordBatchStream(self._store.no_changes(request.changes))
        if request.place is not None:
            seconds_max = min(request.seconds_max, CHANGES_WAIT_SECONDS_MAX)
            changes = self._store.changes(
                request.changes,
                request.place,
                seconds_max,
                lambda: context.is_cancelled() or self._stopping.is_set(),
                has_checksum=request.checksum,
                masked=masked,
            )
            if self._stopping.is_set():
                raise RequestError("unavailable", "the server is stopping", "connect again when it is back")
            if changes is not None:
                self._sent(request.changes).inc(changes.num_rows)
                return flight.RecordBatchStream(changes)
            if not request.snapshot:
                raise RequestError(
                    "limit",
                    f"the changes after batch {request.place.sequence} of generation {request.place.generation} are "
                    "not held any more",
                    "ask with `snapshot` for the whole table",
                )
        stream = self._streams.opened(self._store.whole(request.changes, masked=masked), STALLED_SECONDS_MAX)
        return flight.GeneratorStream(stream.schema, counted(stream, self._sent(request.changes)))

    def _sent(self, name: str) -> Counter:
        """The count of rows that went out of a table, by whatever name it was asked for."""
        table = self._store.tables().get(name)
        return self._metrics.rows_sent.labels(table.shape.name if table else SQL, "flight")

    def _opened(self, request: TableTicket | SqlTicket, *, masked: bool) -> _Stream:
        if isinstance(request, SqlTicket):
            return self._streams.opened(self._store.sql(request.sql, masked=masked), SQL_SECONDS_MAX)
        return self._streams.opened(self._store.scan(request.table, request), STALLED_SECONDS_MAX)

    def _answer_schema(self, request: Ticket, *, masked: bool) -> pa.Schema:
        if isinstance(request, SqlTicket):
            with self._store.sql(request.sql, masked=masked) as reader, closing(reader):
                return reader.schema
        if isinstance(request, ChangesTicket):
            return changes_schema(self._store.table(request.changes).shape)
        return _schema(self._store.table(request.table).shape, request)


class _Stream:
    """The chunks of an answer, for a GeneratorStream."""

    def __init__(self, chunks: Generator[Any, None, None], rest_seconds_max: float) -> None:
        self.schema = next(chunks)
        self._chunks = chunks
        self._reading = threading.Lock()
        self._rest_seconds_max = rest_seconds_max
        self._resting_since = time.monotonic()
        self._is_given_up = False

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        with self._reading, _flight_errors():
            if self._is_given_up:
                raise RequestError(
                    "timeout",
                    f"the stream was left unread for {self._rest_seconds_max:g} s",
                    "ask again, and read it to its end without a long pause",
                )
            chunk = next(self._chunks, None)
            self._resting_since = time.monotonic()
        if chunk is None:
            raise StopIteration
        return chunk

    def close_if_stalled(self) -> None:
        if not self._reading.acquire(blocking=False):
            return
        try:
            if time.monotonic() - self._resting_since > self._rest_seconds_max:
                self._is_given_up = True
                self._chunks.close()
        finally:
            self._reading.release()


class _Streams:
    """The streams that are being read, at most SCANS_MAX. One that its client leaves unread too long is closed."""

    def __init__(self) -> None:
        self._places = threading.BoundedSemaphore(SCANS_MAX)
        self._lock = threading.Lock()
        self._open: WeakSet[_Stream] = WeakSet()  # gRPC lets a stream go when its call has ended

    def opened(self, reader: AbstractContextManager[pa.RecordBatchReader], rest_seconds_max: float) -> _Stream:
        self.close_stalled()
        stream = _Stream(self._chunks(reader), rest_seconds_max)
        with self._lock:
            self._open.add(stream)
        return stream

    def close_stalled(self) -> None:
        with self._lock:
            streams = list(self._open)
        for stream in streams:
            stream.close_if_stalled()

    def _chunks(self, reader: AbstractContextManager[pa.RecordBatchReader]) -> Generator[Any, None, None]:
        """First the schema, so that whoever has it has opened the reader, and letting go closes it; then the chunks."""
        with self._place(), reader as opened, closing(opened):  # a cursor with an open result cannot be used again
            yield opened.schema
            yield from opened

    @contextmanager
    def _place(self) -> Iterator[None]:
        if not self._places.acquire(blocking=False):
            raise RequestError(
                "busy",
                f"{SCANS_MAX} tables or queries are being read already, which is the most at one time",
                "ask again when one has been read, or ask for a window (`offset` and `size`)",
            )
        try:
            yield
        finally:
            self._places.release()


def _holder(text: str | None) -> Holder | None:
    try:
        return TypeAdapter(Holder).validate_json(text) if text else None
    except ValidationError:
        return None  # of another version


@contextmanager
def _flight_errors() -> Iterator[None]:
    """Turn every error into one that Flight tells the client."""
    try:
        yield
    except flight.FlightError:
        raise
    except RequestError as error:
        raise flight.FlightServerError(*_told(error.code, error.problem, error.cure)) from None
    except LivetablesError as error:
        code = error.code if isinstance(error, FrameError) else "refused"
        raise flight.FlightServerError(*_told(code, error.problem, error.cure)) from None
    except Exception as error:
        log.exception("a Flight call failed")
        problem = f"the server failed: {type(error).__name__}: {error}"
        raise flight.FlightInternalError(*_told("internal", problem, "look into the server's log")) from None


def _told(code: str, problem: str, cure: str) -> tuple[str, bytes]:
    """An error's message and extra_info."""
    problem, cure = _clipped(problem, PROBLEM_BYTES_MAX), _clipped(cure, CURE_BYTES_MAX)
    extra_info = json.dumps({"code": code, "problem": problem, "cure": cure}, ensure_ascii=False)
    return f"{problem}\n  cure: {cure}", extra_info.encode()


def _clipped(text: str, bytes_max: int) -> str:
    """The text as one line that is not too long."""
    line = "".join(character if character.isprintable() else " " for character in text)
    data = line.encode()
    return line if len(data) <= bytes_max else f"{data[: bytes_max - 3].decode(errors='ignore')}…"


def _decoded(decode: Callable[[Any], Parsed], body: Any, action: str) -> Parsed:
    """The body of an action. The pipeline made it, so one that cannot be read is of another version."""
    try:
        return decode(body)
    except Exception as error:
        raise SinkError(
            f"the body of {action} cannot be read: {_reason(error)}",
            "let the pipeline and the server be of the same version of livetables",
        ) from None


def _limited(body: Any) -> bytes:
    """JSON as bytes, unless there is too much of it."""
    data = memoryview(body)
    if data.nbytes > JSON_BYTES_MAX:
        raise RequestError("limit", f"{data.nbytes:,} bytes of JSON are too many", f"send at most {JSON_BYTES_MAX:,}")
    return data.tobytes()


def _parsed_ticket(data: bytes) -> Ticket:
    try:
        fields = from_json(_limited(data), allow_inf_nan=False)
        if not isinstance(fields, dict):
            raise ValueError("it is not a JSON object")
        if "changes" in fields:
            return ChangesTicket.model_validate_json(data)
        if "sql" in fields:
            return SqlTicket.model_validate_json(data)
        if "offset" in fields or "size" in fields:
            return WindowTicket.model_validate_json(data)
        return TableTicket.model_validate_json(data)
    except ValueError as error:
        raise RequestError(
            "bad_frame",
            f"the ticket cannot be read: {_reason(error)}",
            'send JSON: {"table": …} with columns, sort, filters, quick, offset or size as needed; {"sql": …}; '
            'or {"changes": …} with generation, after, snapshot, seconds_max or checksum as needed',
        ) from None


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return ": ".join(filter(None, [".".join(map(str, first["loc"])), first["msg"]]))
    return f"{error}" if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"


def _described(descriptor: Any) -> bytes:
    """The ticket for what a descriptor means: a table by its path, or a ticket by its command."""
    if descriptor.descriptor_type == flight.DescriptorType.CMD:
        command: bytes = descriptor.command
        return command
    path = descriptor.path or []
    if len(path) != 1:
        raise RequestError("bad_frame", f"a path of {len(path)} names is no table", "give the table's name alone")
    return _table_ticket(path[0].decode(errors="replace"))


def _table_ticket(name: str) -> bytes:
    return json.dumps({"table": name}).encode()


def _info(schema: pa.Schema, descriptor: Any, ticket: bytes) -> Any:
    return flight.FlightInfo(schema, descriptor, [flight.FlightEndpoint(ticket, [])], -1, -1)


def _schema(shape: TableShape, selection: Selection) -> pa.Schema:
    """The schema of a table's rows as they are sent."""
    columns = chosen_columns(shape.schema, selection)
    return pa.schema([(name, kind_of(shape.schema.field(name).type).arrow) for name in columns])
