"""The Flight half of a client: rows as Arrow.

What the server refuses is a RequestError, with its own code and cure; what does not reach it is an UnreachableError.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import flight

from livetables.client.http import UnreachableError
from livetables.model.errors import RequestError, SetupError
from livetables.tls import trusted_certificates

# With connections of its own a new client tries at once, while one that has failed refuses for a time without a try.
CLIENT_OPTIONS = [("grpc.use_local_subchannel_pool", 1)]
SCHEMA_SECONDS_MAX = 30.0


class Flight:
    """Client of the Flight endpoint at a location like grpc://host:port. Any thread may use it."""

    def __init__(self, location: str, token: str, ca_file: Path | None = None) -> None:
        if not (token.isascii() and token.isprintable()):
            raise SetupError("the key has characters that a header cannot carry", "use a key in plain ASCII")
        self._trusted = {"tls_root_certs": trusted_certificates(ca_file)} if ca_file else {}
        self._location = location
        self._headers = [(b"authorization", b"Bearer " + token.encode())]
        self._lock = threading.Lock()
        try:
            self._client: flight.FlightClient | None = self._connected()
        except pa.ArrowException as error:
            raise SetupError(
                f"{location} is not the address of a Flight endpoint: {_first_line(error)}",
                "give one like grpc://host:port",
            ) from None

    def rows(self, ticket: dict[str, Any], seconds_max: float | None = None) -> pa.Table:
        """The answer to a ticket."""
        client = self._client
        if client is None:
            raise UnreachableError("this connection is closed", "open another one with livetables.connect")
        with self._translated_errors():
            return client.do_get(flight.Ticket(json.dumps(ticket)), self._options(seconds_max)).read_all()

    def schema(self, table: str) -> pa.Schema:
        """A table's columns. By a window without rows: Flight's own request for it loses the text of an error."""
        return self.rows({"table": table, "offset": 0, "size": 0}, SCHEMA_SECONDS_MAX).schema

    def close(self) -> None:
        """Take no more calls. The connection ends with the last one: to close it during a call crashes the process."""
        with self._lock:
            self._client = None

    def _connected(self) -> Any:
        return flight.FlightClient(self._location, generic_options=CLIENT_OPTIONS, **self._trusted)

    def _options(self, seconds_max: float | None) -> Any:
        return flight.FlightCallOptions(timeout=seconds_max, headers=self._headers)

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise self._translated(error) from None

    def _translated(self, error: Exception) -> Exception:
        """What an error means. One that says what it is comes from the server itself, others from the way to it."""
        with suppress(ValueError, TypeError, KeyError):
            fields = json.loads(getattr(error, "extra_info", b""))
            return RequestError(fields["code"], fields["problem"], fields["cure"])
        with self._lock:
            if self._client is not None:
                self._client = self._connected()
        return UnreachableError(
            f"no livetables server answers at {self._location}: {_first_line(error)}",
            "see that it runs and that its Flight port can be reached from here; behind a proxy, give `flight=`",
        )


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0][:300]
