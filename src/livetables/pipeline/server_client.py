"""The client of the table server, over Arrow Flight.

A server that is away for a while is waited for: the calls are idempotent, and retried until there is an answer or
patience ends. What the server refuses is an error at once.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import flight

from livetables.backoff import delays
from livetables.config.load import token_in
from livetables.model.change import Batch, TableShape
from livetables.model.errors import RETRYABLE, LivetablesError, RequestError, SetupError, SinkError
from livetables.model.wire import (
    ControlRequest,
    Holder,
    PipelineReport,
    Receipt,
    SourceReport,
    encode_batch,
    encode_shapes,
)
from livetables.pipeline.process import is_dead, this_process
from livetables.pipeline.table_server import (
    ConnectionClosedError,
    DeadLetters,
    FencedError,
    HeldError,
    NoAnswerError,
    Positions,
    StoredGeneration,
    TableServer,
)
from livetables.tls import trusted_certificates

BODY_BYTES_MAX = 2_000_000_000  # gRPC's messages end at 2 GiB
SMALL_BODY_BYTES = 64 * 1024
DELAY_SECONDS_MAX = 2.0
ANSWER_SECONDS = 10.0  # for a call that needs no work, beyond the time it asks the server to wait
# gRPC's own back-off grows to two minutes, in which a server that is back would not be noticed.
CLIENT_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]

log = logging.getLogger(__name__)

PIPELINE_HEADER, HOLDER_HEADER = b"livetables-pipeline", b"livetables-holder"

Answer = TypeVar("Answer")
Call = Callable[[flight.FlightCallOptions], Answer]
Calls = queue.SimpleQueue[tuple[Future[Any], Call[Any], flight.FlightCallOptions] | None]  # None: no more


class _NoTableError(SinkError):
    pass


# The server's errors, by their codes; all others are refusals.
ERRORS: Mapping[str, type[SinkError]] = {
    "fenced": FencedError,
    "held": HeldError,
    **dict.fromkeys(RETRYABLE, NoAnswerError),
    "internal": NoAnswerError,  # a fault of the server must not end the pipeline
    "unknown_table": _NoTableError,
}


class ServerClient(TableServer):
    """Client of the server at a location like grpc://host:port. Any thread may use it; calls are made one by one."""

    def __init__(
        self,
        location: str,
        token: str,
        *,
        token_file: str | None = None,
        ca_file: Path | None = None,
        number: int | None = None,
        call_seconds_max: float = 60.0,
        patience_seconds: float = 60.0,
    ) -> None:
        """With a token file, a key that the server rejects is read from there again.

        With the `number` of a pipeline, calls are refused (FencedError) when a newer pipeline has taken over.

        With a grpc+tls:// location, `ca_file` has the certificates to trust; without it, the system's are trusted.
        """
        self._location = location
        self._number = number
        self._holder = this_process()
        self._token_file = token_file
        self._ca_file = ca_file if location.startswith("grpc+tls:") else None
        self._headers = _headers(token)
        self._trusted = trusted_certificates(self._ca_file) if self._ca_file else None
        self._client: flight.FlightClient | None = self._connected()
        self._call_seconds_max = call_seconds_max
        self._patience_seconds = patience_seconds
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._waiting: set[Future[Any]] = set()
        self._calls: Calls = queue.SimpleQueue()
        self._worker: threading.Thread | None = None
        weakref.finalize(self, self._calls.put, None)  # the worker does not outlive a client that was not closed

    def __repr__(self) -> str:
        return f"ServerClient({self._location!r})"

    def close(self) -> None:
        with self._lock:
            self._closed.set()
            self._client = None  # the connection ends with its last call, also if somebody still has this client
            waiting = list(self._waiting)
        for answer in waiting:
            answer.cancel()
        self._calls.put(None)

    # Idempotent calls, retried

    def start_pipeline(self) -> int:
        fields = self._act_patiently("holder", b"")
        replaces = Holder(**fields) if fields else None
        start = {
            "holder": asdict(self._holder),
            "replaces": replaces.process if replaces and is_dead(replaces) else None,
        }
        number: int = self._act_patiently("start_pipeline", _json(start))["number"]
        if replaces and replaces.process != self._holder.process:
            log.warning("this is pipeline %d of the server at %s; before, it was %s", number, self._location, replaces)
        self._number = number
        return number

    def begin(self, generation: str, shapes: Sequence[TableShape]) -> str:
        answer = self._act_patiently("begin", encode_shapes(generation, shapes))
        host = urlsplit(self._location).hostname or ""
        return f"{answer['scheme']}://{f'[{host}]' if ':' in host else host}:{answer['http_port']}"

    def put(self, batch: Batch) -> None:
        body = encode_batch(batch)
        if len(body) > BODY_BYTES_MAX:
            raise SinkError(
                f"batch {batch.batch_id} of generation {batch.generation} has {len(body):,} bytes, too many to send",
                "lower pipeline.max_records_per_batch",
            )
        self._act_patiently("put", body)

    def publish(self, generation: str) -> None:
        self._act_patiently("publish", _json({"generation": generation}))

    def drop(self, generation: str) -> None:
        self._act_patiently("drop", _json({"generation": generation}))

    def generations(self) -> tuple[StoredGeneration, ...]:
        return tuple(
            StoredGeneration(
                each["name"],
                each["last_batch_id"],
                datetime.fromisoformat(each["published"]) if each["published"] else None,
                datetime.fromisoformat(each["begun"]),
                each["rows"],
                each["sequence"],
                _positions(each["positions"]),
                each["records"],
            )
            for each in self._act_patiently("generations", b"")
        )

    def positions(self) -> dict[str, Positions]:
        return {name: _positions(each) for name, each in self._act_patiently("positions", b"").items()}

    def dead_letters(self, generation: str) -> dict[str, DeadLetters]:
        answer = self._act_patiently("dead_letters", _json({"generation": generation}))
        return {source: DeadLetters(each["count"], each["reason"]) for source, each in answer.items()}

    def lost_records(
        self, generation: str, successor: str, ends: Mapping[str, Mapping[int, int] | None]
    ) -> dict[str, int]:
        asked = {"generation": generation, "successor": successor, "ends": ends}
        lost: dict[str, int] = self._act_patiently("lost_records", _json(asked))
        return lost

    def table(self, name: str) -> pa.Table | None:
        try:
            stream = self._ask_patiently(self._call("status_table", _json({"table": name})))
        except _NoTableError:
            return None
        return pa.ipc.open_stream(stream).read_all()

    # Calls without a retry: the caller repeats them with newer values

    def report(
        self,
        generation: str | None,
        sources: Sequence[SourceReport],
        problem: str | None = None,
        pipeline: PipelineReport | None = None,
    ) -> None:
        fields = {
            "generation": generation,
            "sources": [asdict(source) for source in sources],
            "problem": problem,
            "pipeline": asdict(pipeline) if pipeline else None,
        }
        self._act("report", _json(fields), ANSWER_SECONDS)

    def control_requests(self, seconds_max: float) -> tuple[ControlRequest, ...]:
        answer = self._act("control_requests", _json({"seconds_max": seconds_max}), seconds_max + ANSWER_SECONDS)
        return tuple(ControlRequest(each["request_id"], each["fields"], each.get("message_id")) for each in answer)

    def control_settled(self, request_id: int, outcome: Receipt | RequestError) -> None:
        if isinstance(outcome, Receipt):
            fields: dict[str, object] = {
                "topic": outcome.topic,
                "partition": outcome.partition,
                "offset": outcome.offset,
            }
        else:
            fields = {"code": outcome.code, "problem": outcome.problem, "cure": outcome.cure}
        self._act("control_settled", _json({"request_id": request_id, **fields}), ANSWER_SECONDS)

    def _act_patiently(self, action: str, body: bytes) -> Any:
        return self._ask_patiently(self._action(action, body))

    def _act(self, action: str, body: bytes, seconds_max: float) -> Any:
        return self._ask(self._action(action, body), seconds_max)

    def _action(self, action: str, body: bytes) -> Call[Any]:
        call = self._call(action, body)
        if len(body) <= SMALL_BODY_BYTES:
            return lambda options: json.loads(call(options))
        # The server takes little from a connection on which it has seen no key, and gRPC may open another at any time.
        first = self._call("holder", b"")

        def call_known(options: flight.FlightCallOptions) -> Any:
            first(options)
            return json.loads(call(options))

        return call_known

    def _call(self, action: str, body: bytes) -> Call[bytes]:
        def call(options: flight.FlightCallOptions) -> bytes:
            results = self._connection().do_action(flight.Action(action, body), options)
            return b"".join(result.body.to_pybytes() for result in results)

        return call

    def _connected(self) -> flight.FlightClient:
        trusted = {"tls_root_certs": self._trusted} if self._trusted else {}
        try:
            return flight.FlightClient(self._location, generic_options=CLIENT_OPTIONS, **trusted)
        except pa.ArrowException as error:
            raise SinkError(
                f"{self._location} is not the address of a server: {_first_line(error)}",
                "give one like grpc://host:port",
            ) from None

    def _connection(self) -> flight.FlightClient:
        client = self._client
        if client is None:
            raise ConnectionClosedError
        return client

    def _ask_patiently(self, call: Call[Answer]) -> Answer:
        """Call until there is an answer, or none has come for patience_seconds after it was due."""
        give_up: float | None = None
        for delay in delays(DELAY_SECONDS_MAX):
            try:
                return self._ask(call, self._call_seconds_max)
            except HeldError:
                raise
            except NoAnswerError as error:
                if give_up is None:
                    give_up = time.monotonic() + self._patience_seconds
                    log.warning("%s; trying for %g s", error.problem, self._patience_seconds)
                left = give_up - time.monotonic()
                if left <= 0:
                    raise
            if self._closed.wait(min(delay, left)):
                raise ConnectionClosedError
        raise AssertionError("delays have no end")

    def _ask(self, call: Call[Answer], seconds_max: float) -> Answer:
        """Call once. The worker makes the call: gRPC cannot be interrupted, and `close` must end the wait."""
        answer: Future[Answer] = Future()
        with self._lock:
            if self._closed.is_set():
                raise ConnectionClosedError
            self._waiting.add(answer)
            if self._worker is None:
                name = f"calls-{self._location}"
                self._worker = threading.Thread(target=_work, args=(self._calls,), name=name, daemon=True)
                self._worker.start()
        number = []
        if self._number is not None:
            holder = json.dumps(asdict(self._holder)).encode()
            number = [(PIPELINE_HEADER, str(self._number).encode()), (HOLDER_HEADER, holder)]
        options = flight.FlightCallOptions(timeout=seconds_max, headers=[*self._headers, *number])
        self._calls.put((answer, call, options))
        try:
            return answer.result()
        except CancelledError:
            raise ConnectionClosedError from None
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise self._translated(error) from None
        finally:
            with self._lock:
                self._waiting.discard(answer)

    def _translated(self, error: Exception) -> SinkError:
        """Return what an error means. One with a code comes from the server, others from the connection to it."""
        if isinstance(error, flight.FlightUnauthenticatedError):
            return self._refused_key()
        with suppress(ValueError, TypeError, KeyError):
            fields = json.loads(getattr(error, "extra_info", b""))
            return ERRORS.get(fields["code"], SinkError)(fields["problem"], fields["cure"])
        self._trust_again()
        text = _first_line(error)
        return NoAnswerError(f"the server at {self._location} does not answer: {text}", _cure(text))

    def _refused_key(self) -> SinkError:
        """Return what a rejected key means. With a token file, the file or the server has changed, or soon will."""
        if self._token_file is None:
            return SinkError(
                f"the server at {self._location} does not know this token",
                "set LIVETABLES_PIPELINE_TOKEN, or LIVETABLES_TOKEN, to the server's; both must have the same",
            )
        try:
            self._headers = _headers(token_in(self._token_file, "pipeline"))
        except LivetablesError as error:
            return NoAnswerError(error.problem, error.cure)
        return NoAnswerError(
            f"the server at {self._location} does not know the pipeline's key in server.token_file",
            "let the server's file and this one have the same keys; this one is read again until they do",
        )

    def _trust_again(self) -> None:
        """Trust a server whose certificate was renewed, if the file was renewed with it."""
        if self._ca_file is None:
            return
        with suppress(SetupError):
            trusted = trusted_certificates(self._ca_file)
            with self._lock:
                if trusted != self._trusted and self._client is not None:
                    self._trusted = trusted
                    self._client = self._connected()


def _work(calls: Calls) -> None:
    """Make calls one by one, until the client is closed or gone. Between two of them, nothing is kept of the last."""
    while _make_next(calls):
        pass


def _make_next(calls: Calls) -> bool:
    queued = calls.get()
    if queued is None:
        return False
    answer, call, options = queued
    with suppress(InvalidStateError):  # nobody waits any more
        if answer.cancelled():
            return True
        try:
            answer.set_result(call(options))
        except Exception as error:
            answer.set_exception(error.with_traceback(None))  # its frames would keep the body
    return True


def _headers(token: str) -> list[tuple[bytes, bytes]]:
    if not (token.isascii() and token.isprintable()):
        raise SinkError("the token has characters that a header cannot carry", "set LIVETABLES_TOKEN to plain ASCII")
    return [(b"authorization", b"Bearer " + token.encode())]


def _positions(answer: Mapping[str, Mapping[str, int]]) -> Positions:
    return {
        source: {int(partition): position for partition, position in each.items()} for source, each in answer.items()
    }


def _cure(text: str) -> str:
    """Return how to fix a connection to the server that does not work."""
    if "is not in peer certificate" in text:
        return (
            "make the server's certificate for the host in pipeline.server too (subjectAltName), or write there a host "
            "that it is for"
        )
    if "certificate verify failed" in text:
        return (
            "let pipeline.server_ca be the file of the authority that made the server's certificate, or of the "
            "certificate itself; renew it if it has expired"
        )
    if "wrong version number" in text:
        return "the server has no TLS: write grpc:// instead of grpc+tls:// in pipeline.server"
    if "Socket closed" in text:
        return "if the server has TLS, write grpc+tls:// in pipeline.server; else look into its log"
    return "start it with `livetables serve`, or correct the address"


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0][:300]
