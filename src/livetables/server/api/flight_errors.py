"""The errors of Flight calls, and the limit of the JSON that they bring."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyarrow import flight
from pydantic import ValidationError

from livetables.model.errors import LivetablesError, RequestError
from livetables.server.storage.frames import FrameError

JSON_BYTES_MAX = 65_536
# gRPC sends an error in a header of at most 8 KiB, in which a byte of the message may take four.
PROBLEM_BYTES_MAX = 1_000
CURE_BYTES_MAX = 500

log = logging.getLogger(__name__)


@contextmanager
def flight_errors() -> Iterator[None]:
    """Turn every error into one that Flight sends to the client."""
    try:
        yield
    except flight.FlightError:
        raise
    except RequestError as error:
        raise flight.FlightServerError(*error_arguments(error.code, error.problem, error.cure)) from None
    except LivetablesError as error:
        code = error.code if isinstance(error, FrameError) else "refused"
        raise flight.FlightServerError(*error_arguments(code, error.problem, error.cure)) from None
    except Exception as error:
        log.exception("a Flight call failed")
        problem = f"the server failed: {type(error).__name__}: {error}"
        raise flight.FlightInternalError(*error_arguments("internal", problem, "look into the server's log")) from None


def error_arguments(code: str, problem: str, cure: str) -> tuple[str, bytes]:
    """An error's message and extra_info."""
    problem, cure = _clipped(problem, PROBLEM_BYTES_MAX), _clipped(cure, CURE_BYTES_MAX)
    extra_info = json.dumps({"code": code, "problem": problem, "cure": cure}, ensure_ascii=False)
    return f"{problem}\n  cure: {cure}", extra_info.encode()


def _clipped(text: str, bytes_max: int) -> str:
    """The text as one line that is not too long."""
    line = "".join(character if character.isprintable() else " " for character in text)
    data = line.encode()
    return line if len(data) <= bytes_max else f"{data[: bytes_max - 3].decode(errors='ignore')}…"


def limited(body: Any) -> bytes:
    """JSON as bytes, unless there is too much of it."""
    data = memoryview(body)
    if data.nbytes > JSON_BYTES_MAX:
        raise RequestError("limit", f"{data.nbytes:,} bytes of JSON are too many", f"send at most {JSON_BYTES_MAX:,}")
    return data.tobytes()


def reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return ": ".join(filter(None, [".".join(map(str, first["loc"])), first["msg"]]))
    return f"{error}" if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
