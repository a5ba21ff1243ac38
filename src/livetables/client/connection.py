"""A connection to a server: found by one address, asked over HTTP and Arrow Flight."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakSet

import pyarrow as pa

from livetables.client.changes import Changes
from livetables.client.clock import Clock
from livetables.client.control import Outcome, control_fields, send
from livetables.client.flight import Flight
from livetables.client.html import tables_html
from livetables.client.http import HttpClient
from livetables.client.local_system import LocalSystem
from livetables.client.table import Table
from livetables.model.errors import ConfigError


@dataclass(frozen=True)
class TableSummary:
    """A table as it was when asked: its columns with their types, and the table that it is another name for, if any."""

    name: str
    columns: Mapping[str, str]
    rows: int
    generation: str
    alias_of: str | None = None


def connect(
    url: str | None = None, token: str | None = None, *, ca_file: str | Path | None = None, flight: str | None = None
) -> Connection:
    """Connect to the server at `url`, like http://host:8765, with its key.

    Without `url`, or without `token`: those of what `livetables up` runs in the working directory. For https,
    `ca_file` has the certificates to trust, unless the system trusts the server's. `flight`, like grpc://host:port, is
    needed only where a proxy gives the Flight endpoint another address than the server knows.

    >>> import livetables
    >>> server = livetables.connect(url, token)
    >>> server.table("accounts_ui").count()
    4
    """
    running = LocalSystem.read()
    if url is None:
        if running is None:
            raise ConfigError(
                "no address is given, and `livetables up` does not run in this directory",
                'give one: connect("http://host:8765", "the key")',
            )
        url = running.addresses.http
    url = url.rstrip("/")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{url!r} is not the address of a server", "give one like http://host:8765")
    if token is None and running and running.addresses.http == url:
        token = running.key
    if token is None:
        raise ConfigError(
            f"there is no key for the server at {url}",
            "give it as `token`, or connect in the directory where `livetables up` runs",
        )
    if ca_file is None and running and running.addresses.http == url:
        ca_file = running.ca_file
    connection = Connection(HttpClient(url, token, ca_file=Path(ca_file) if ca_file else None), flight)
    connection.clock()  # an address or key that is wrong is an error now
    return connection


class Connection:
    """A server. Any thread may use it; close it when done, or use it in a `with` block.

    >>> [table.name for table in server.tables()]
    ['account', 'accounts_ui', 'final_ui']
    >>> server.sql("SELECT userId, count(*) AS n FROM accounts_ui GROUP BY userId ORDER BY n DESC LIMIT 1").to_pylist()
    [{'userId': 'u1', 'n': 2}]
    """

    def __init__(self, http_client: HttpClient, flight: str | None = None) -> None:
        self._http_client = http_client
        self._flight_location = flight
        self._flight: Flight | None = None
        self._clock: Clock | None = None
        self._lock = threading.Lock()
        self._following: WeakSet[Changes] = WeakSet()

    @property
    def url(self) -> str:
        return self._http_client.url

    def tables(self) -> list[TableSummary]:
        """Return all tables, aliases too."""
        return [
            TableSummary(
                each["name"],
                {column["name"]: column["type"] for column in each["columns"]},
                each["rows"],
                each["generation"],
                each["alias_of"],
            )
            for each in self._http_client.get("/api/tables")["tables"]
        ]

    def table(self, name: str) -> Table:
        """A table by its name or an alias; one that is not there is a RequestError that names the nearest."""
        self._opened().schema(name)
        return Table(name, self._http_client, self._opened, self.clock, self._followed)

    def sql(self, text: str) -> pa.Table:
        """The answer to one SELECT over the tables: read-only, and for a limited time."""
        return self._opened().rows({"sql": text})

    def status(self) -> dict[str, Any]:
        """How fresh the tables are, and why; the same as GET /api/status."""
        status: dict[str, Any] = self._http_client.get("/api/status")
        return status

    def clock(self) -> Clock:
        """The server's clock as seen from here, measured once: by it, latencies are right where clocks differ."""
        if self._clock is None:
            asked = time.time() * 1000
            server = datetime.fromisoformat(self.status()["time"]).timestamp() * 1000
            self._clock = Clock.measured(asked, server, time.time() * 1000)
        return self._clock

    def control(
        self,
        *,
        users_topic: str | None = None,
        accounts_topic: str | None = None,
        join: str | None = None,
        view: str | None = None,
        topics: Mapping[str, str] | None = None,
        rollback: bool = False,
        discard: str | None = None,
        timeout: float = 300.0,
        progress: Callable[[str], None] | None = None,
    ) -> Outcome:
        """Switch to other topics or another join, and wait for what comes of it; what is not given stays as it is.

        `topics` are those of any tables, by table. `join` is that of `view`; without one, of the view that the
        configuration means by `joinType`: the default preset's `final_ui`, or else the only one. `rollback`
        goes back to the generation before; `discard` removes one that is kept. `progress` hears what is waited for.
        A message that is not decided within `timeout` seconds is a SetupError; it is not lost.

        >>> outcome = server.control(join="natural")
        >>> outcome.outcome, outcome.is_done
        ('applied', True)
        """
        by_table = {"users": users_topic, "accounts": accounts_topic, **(topics or {})}
        message = control_fields(by_table, join, view, rollback, discard)
        return send(self._http_client, message, timeout, progress or (lambda _: None))

    def close(self) -> None:
        """Close it, and all that follow its tables."""
        for changes in list(self._following):
            changes.close()
        with self._lock:
            if self._flight is not None:
                self._flight.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<livetables at {self.url}>"

    def _repr_html_(self) -> str:
        rows = ((each.name, each.rows, each.generation) for each in self.tables())
        return tables_html(f"livetables at {self.url}", rows)

    def _opened(self) -> Flight:
        """Return the Flight client; the server reports its port."""
        with self._lock:
            if self._flight is None:
                location = self._flight_location or self._advertised_location()
                self._flight = Flight(location, self._http_client.token, self._http_client.ca_file)
            return self._flight

    def _advertised_location(self) -> str:
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        scheme = "grpc+tls" if parts.scheme == "https" else "grpc"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.status()['flight_port']}"

    def _followed(self, changes: Changes) -> Changes:
        self._following.add(changes)
        return changes
