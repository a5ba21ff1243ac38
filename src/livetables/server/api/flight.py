"""The endpoint for programs, Arrow Flight: the pipeline brings batches by actions, clients take tables by tickets.

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
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from functools import partial, wraps
from typing import Any

import pyarrow as pa
from prometheus_client import Counter
from pyarrow import flight
from pydantic import TypeAdapter, ValidationError

from livetables.config.settings import choice
from livetables.log import Throttle
from livetables.model.errors import RequestError, SinkError
from livetables.model.roles import Right, Role
from livetables.model.wire import Holder
from livetables.server.access.key import Key, bearer, let_in
from livetables.server.access.logins import Peer
from livetables.server.api.flight_actions import ACTIONS, PipelineActions
from livetables.server.api.flight_errors import error_arguments, flight_errors
from livetables.server.api.flight_streams import Stream, Streams
from livetables.server.api.flight_tickets import (
    CHANGES_WAIT_SECONDS_MAX,
    ChangesTicket,
    SqlTicket,
    TableTicket,
    Ticket,
    WindowTicket,
    described,
    parsed_ticket,
    schema_of,
    table_ticket,
)
from livetables.server.api.front import LOOPBACK, Front
from livetables.server.api.services import Backend
from livetables.server.health.metrics import SQL, Metrics, counted
from livetables.server.storage.feed import changes_schema
from livetables.server.storage.fencing import NO_PIPELINE
from livetables.server.storage.reader import SQL_SECONDS_MAX
from livetables.server.viewports.viewport import Selection
from livetables.tls import ServerCertificate

STALLED_SECONDS_MAX = 60.0  # a client that takes no chunk for so long loses its stream; one of SQL has its own time
LOOK_SECONDS = 1.0
GOODBYE_SECONDS = 3.0

PRESENTED = "key"  # the middleware's name
PIPELINE_HEADER = "livetables-pipeline"  # the number of the pipeline that calls
NUMBER_DIGITS_MAX = 18
HOLDER_HEADER = "livetables-holder"  # its process, as JSON
WRITES = frozenset({"begin", "put", "publish", "drop"})
BEFORE_HOLDING = frozenset({"holder", "start_pipeline"})  # what one may do that waits for the server
# Only the pipeline that holds the server may do these; where one does, a call without a number is refused.
OF_THE_HOLDER = WRITES | {"report", "control_requests", "control_settled"}
# Who asks for a schema. Of what that handler raises, pyarrow sends the trace instead of the kind of error, so its key
# is checked before it is known who calls: all who guess that way count as one.
ANYBODY = Peer("anybody who asks for a schema")

log = logging.getLogger(__name__)
throttle = Throttle()


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
            arguments = error_arguments(problem.code, problem.problem, problem.cure)
            if problem.code == "busy":
                raise flight.FlightUnavailableError(*arguments) from None
            if problem.code == "forbidden":
                raise flight.FlightUnauthorizedError(*arguments) from None
            cure = "send the header `authorization: Bearer <key>` with the server's key (LIVETABLES_TOKEN)"
            raise flight.FlightUnauthenticatedError(*error_arguments(problem.code, problem.problem, cure)) from None


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
        def checked(server: FlightServer, context: Any, *arguments: Any) -> Any:
            presented = context.get_middleware(PRESENTED)
            uri = context.peer()
            presented.role = server.check_key(server.front.peer_of(uri), presented.token, right)
            server.front.let_in(uri, may_write=right == "write")
            return handler(server, context, *arguments)

        return checked

    return locked


class FlightServer(flight.FlightServerBase):  # type: ignore[misc]
    """Serves from its construction until `shutdown`. `port` is the one it got when 0 was asked for."""

    def __init__(
        self,
        host: str,
        port: int,
        backend: Backend,
        *,
        http_port: int = 0,
        certificate: ServerCertificate | None = None,
    ) -> None:
        """`http_port` is where the pipeline's writers find the same server."""
        self._store, self._pulse, self._metrics = backend.store, backend.pulse, backend.metrics
        http = {"http_port": http_port, "scheme": "https" if certificate else "http"}
        self._hides_raw = backend.hides_raw
        self._stopping = threading.Event()
        self._streams = Streams()
        self._actions = PipelineActions(backend, http, self._stopping, self._hold)
        self.check_key = _KeyCheck(backend.key, backend.metrics)
        self.front = Front(host, port, certificate)
        super().__init__(
            flight.Location.for_grpc_unix(str(self.front.path))
            if self.front.path
            else flight.Location.for_grpc_tcp(LOOPBACK, 0),
            middleware={PRESENTED: _PresentedFactory(self.check_key)},
        )
        self.front.start(super().port)
        threading.Thread(target=self._watch, name="flight-streams", daemon=True).start()

    @property
    def port(self) -> int:
        return self.front.port

    def shutdown(self) -> None:
        """Stop: calls have GOODBYE_SECONDS to end, then their connections are cut."""
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

    def _hold(self, context: Any, action: str) -> int:
        """The number of the pipeline that acts, which holds the server. Where none does, tools act without one."""
        presented = context.get_middleware(PRESENTED)
        number = _number(presented.pipeline)
        if presented.pipeline is not None or action in OF_THE_HOLDER:
            self._store.fencing.check(number)
        if number:
            self._store.holding.heard(_holder(presented.holder))
        return number

    def _watch(self) -> None:
        """Close streams that are stalled, until the server stops."""
        while not self._stopping.wait(LOOK_SECONDS):
            try:
                self._streams.close_stalled()
            except Exception:  # one bad second must not be the last one
                log.exception("cannot close a stalled stream")

    # The pipeline's side

    @_locked("write")
    def list_actions(self, _context: Any) -> list[tuple[str, str]]:
        return list(ACTIONS.items())

    @_locked("write")
    def do_action(self, context: Any, action: Any) -> list[bytes]:
        with flight_errors():
            if action.type not in ACTIONS:
                raise SinkError(f"there is no action {ascii(action.type)[:80]}", choice(action.type, ACTIONS))
            number = self._hold(context, action.type)
            if action.type not in BEFORE_HOLDING:
                self._pulse.heard()
            with self._store.fencing.held_by(number) if action.type in WRITES else nullcontext():
                answer = self._actions.answer(action.type, context, action.body)
            if action.type not in BEFORE_HOLDING:
                self._pulse.heard()  # a large batch takes a while
            return [answer if isinstance(answer, bytes) else json.dumps(answer).encode()]

    # The clients' side

    @_locked("read")
    def list_flights(self, _context: Any, _criteria: bytes) -> list[Any]:
        with flight_errors():
            return [
                _info(schema_of(table.shape, Selection()), flight.FlightDescriptor.for_path(name), table_ticket(name))
                for name, table in self._store.tables().items()
            ]

    @_locked("read")
    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        with flight_errors():
            ticket = described(descriptor)
            schema = self._answer_schema(parsed_ticket(ticket), masked=self._is_masked(context))
            return _info(schema, descriptor, ticket)

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        with flight_errors():
            self.front.let_in(context.peer(), may_write=False)  # its key was checked before, see ANYBODY
            ticket = parsed_ticket(described(descriptor))
            return flight.SchemaResult(self._answer_schema(ticket, masked=self._is_masked(context)))

    def _is_masked(self, context: Any) -> bool:
        return self._hides_raw and context.get_middleware(PRESENTED).role == "viewer"

    @_locked("read")
    def do_get(self, context: Any, ticket: Any) -> Any:
        with flight_errors():
            request, masked = parsed_ticket(ticket.ticket), self._is_masked(context)
            if isinstance(request, Selection):
                request = request.model_copy(update={"masked": masked})
            if isinstance(request, ChangesTicket):
                return self._changes(context, request, masked=masked)
            if isinstance(request, WindowTicket):
                _, window = self._store.reader.window(request.table, request)
                return self._answered(context, window.rows, request.table)
            stream = self._opened(context, request, masked=masked)
            name = SQL if isinstance(request, SqlTicket) else request.table
            return flight.GeneratorStream(stream.schema, counted(stream, self._sent(name)))

    def _changes(self, context: Any, request: ChangesTicket, *, masked: bool) -> Any:
        if request.reason == "checksum":
            self._metrics.checksum_mismatches.inc()
            throttle.log_event(log, "checksum_mismatch", logging.ERROR, table=request.changes[:100])
        if request.place is None and not request.snapshot:
            return self._answered(context, self._store.changes.no_changes(request.changes), request.changes)
        if request.place is not None:
            seconds_max = min(request.seconds_max, CHANGES_WAIT_SECONDS_MAX)
            changes = self._store.changes.since(
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
                return self._answered(context, changes, request.changes)
            if not request.snapshot:
                raise RequestError(
                    "limit",
                    f"the changes after batch {request.place.sequence} of generation {request.place.generation} are "
                    "not held any more",
                    "ask with `snapshot` for the whole table",
                )
        whole = self._store.changes.whole(request.changes, masked=masked)
        stream = self._streams.opened(whole, STALLED_SECONDS_MAX, self._cut(context))
        return flight.GeneratorStream(stream.schema, counted(stream, self._sent(request.changes)))

    def _answered(self, context: Any, rows: pa.Table, table: str) -> Any:
        """A stream of rows that have been read. Not one of gRPC's own, which nobody could give up."""
        stream = self._streams.made(rows, STALLED_SECONDS_MAX, self._cut(context))
        return flight.GeneratorStream(stream.schema, counted(stream, self._sent(table)))

    def _cut(self, context: Any) -> Callable[[], None]:
        return partial(self.front.cut, context.peer())

    def _sent(self, name: str) -> Counter:
        """The count of rows that went out of a table, by whatever name it was asked for."""
        table = self._store.tables().get(name)
        return self._metrics.rows_sent.labels(table.shape.name if table else SQL, "flight")

    def _opened(self, context: Any, request: TableTicket | SqlTicket, *, masked: bool) -> Stream:
        cut = self._cut(context)
        if isinstance(request, SqlTicket):
            return self._streams.opened(self._store.reader.sql(request.sql, masked=masked), SQL_SECONDS_MAX, cut)
        return self._streams.opened(self._store.reader.scan(request.table, request), STALLED_SECONDS_MAX, cut)

    def _answer_schema(self, request: Ticket, *, masked: bool) -> pa.Schema:
        if isinstance(request, SqlTicket):
            with self._store.reader.sql(request.sql, masked=masked) as reader, closing(reader):
                return reader.schema
        if isinstance(request, ChangesTicket):
            return changes_schema(self._store.table(request.changes).shape)
        return schema_of(self._store.table(request.table).shape, request)


def _number(text: str | None) -> int:
    if text is None:
        return NO_PIPELINE
    if not (text.isascii() and text.isdecimal() and len(text) <= NUMBER_DIGITS_MAX):
        raise RequestError("bad_frame", f"{PIPELINE_HEADER} is {text[:80]!r}", "send the number of start_pipeline")
    return int(text)


def _holder(text: str | None) -> Holder | None:
    try:
        return TypeAdapter(Holder).validate_json(text) if text else None
    except ValidationError:
        return None  # of another version


def _info(schema: pa.Schema, descriptor: Any, ticket: bytes) -> Any:
    return flight.FlightInfo(schema, descriptor, [flight.FlightEndpoint(ticket, [])], -1, -1)
