"""Somebody who looks at all tables through everything that happens, and notes whatever a page should never show."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from types import TracebackType
from typing import Any

from pyarrow import flight
from websockets.exceptions import ConnectionClosed

from tests.support.kafka import wait_until
from tests.support.server import TOKEN, LiveClient, ServerProcess, Window

TABLES = ("users_ui", "accounts_ui", "final_ui")
# Where a row shows which topics it is from: see `marked_records`.
MARKS: Mapping[str, tuple[str, ...]] = {
    "users_ui": ("name",),
    "accounts_ui": ("accountType",),
    "final_ui": ("name", "accountType"),
}
POLL_SECONDS = 0.5
HEARTBEAT_SECONDS = 10.0
# All of it in one statement, so of one moment: which generation's rows each table has.
MARKS_OF_ALL = """
    SELECT (SELECT list(DISTINCT split_part(name, ' ', 1)) FROM users_ui) AS users,
           (SELECT list(DISTINCT accountType) FROM accounts_ui) AS accounts,
           (SELECT list(DISTINCT split_part(name, ' ', 1)) FROM final_ui WHERE name IS NOT NULL) AS final_users,
           (SELECT list(DISTINCT accountType) FROM final_ui WHERE accountType IS NOT NULL) AS final_accounts
"""


@dataclass
class Sight:
    """What was seen of one table in one generation."""

    rows_at_first: int
    rows: int = 0
    topics: set[str] = field(default_factory=set)


class Watcher:
    """A client of the WebSocket and one of SQL, each with a thread that looks until the watcher is closed."""

    def __init__(self, server: ServerProcess) -> None:
        self.violations: list[str] = []
        self.sights: dict[tuple[str, str], Sight] = {}  # by table and generation, in the order seen
        self._server = server
        self._newest: dict[str, str] = {}
        self._arrivals: dict[str, list[float]] = {table: [] for table in TABLES}
        self._closing = threading.Event()
        self._client = LiveClient(server.websocket)
        for sub, table in enumerate(TABLES):
            self._client.subscribe(sub, table, size=10_000)
        self._threads = [
            threading.Thread(target=self._watch, name="watcher", daemon=True),
            threading.Thread(target=self._ask, name="watcher-sql", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def wait_for_rows(self) -> None:
        """Return when every table was seen: from now on an empty one is a fault."""
        wait_until(lambda: {table for table, _ in self.sights} == set(TABLES), "the watcher has seen all tables")

    def generation(self, table: str) -> str:
        """The generation that was seen last."""
        return self._newest[table]

    def gap_seconds(self, start: float, end: float) -> float:
        """The longest time without a frame of a table, between two times of `time.monotonic()`."""
        return max(
            after - before
            for arrivals in self._arrivals.values()
            for before, after in pairwise([start, *(time for time in arrivals if start < time < end), end])
        )

    def close(self) -> None:
        self._closing.set()
        for thread in self._threads:
            thread.join()
        self._client.close()

    def __enter__(self) -> Watcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _watch(self) -> None:
        beaten = time.monotonic()
        while not self._closing.is_set():
            if time.monotonic() > beaten + HEARTBEAT_SECONDS:
                beaten = time.monotonic()
                self._client.send({"type": "heartbeat"})
            try:
                frame = self._client.receive(POLL_SECONDS)
            except TimeoutError:
                continue
            except ConnectionClosed as closed:
                self.violations.append(f"the socket was closed: {closed}")
                return
            except AssertionError as fault:
                self.violations.append(f"a frame does not follow the previous one: {fault}")
                continue
            self._client.frames.clear()
            if frame["type"] == "error":
                self.violations.append(f"an error came: {frame}")
            elif frame["type"] in ("snapshot", "patch"):
                self._arrivals[frame["table"]].append(time.monotonic())
                self._look(frame["table"], self._client.windows[frame["sub"]])

    def _look(self, table: str, window: Window) -> None:
        """Compare the window with what was seen before, and note which topics its rows are from."""
        assert window.generation
        if not window.rows:
            if any(seen == table for seen, _ in self.sights):
                self.violations.append(f"{table} was empty in {window.generation}")
            return
        known = (table, window.generation) in self.sights
        sight = self.sights.setdefault((table, window.generation), Sight(len(window.rows)))
        if known and len(window.rows) < sight.rows:
            self.violations.append(
                f"{table} had {sight.rows} rows and then {len(window.rows)}, both in {window.generation}"
            )
        sight.rows, self._newest[table] = len(window.rows), window.generation
        for column in MARKS[table]:
            place = window.columns.index(column)
            topics = {mark(values[place]) for _, values in window.rows if values[place] is not None}
            if len(topics) > 1:
                self.violations.append(f"{table} was mixed of {topics} in {window.generation}")
            sight.topics |= topics

    def _ask(self) -> None:
        """All tables at one moment: the views have rows of the same topics as the tables."""
        while not self._closing.wait(POLL_SECONDS):
            if self._client.socket.close_code is not None:
                return
            try:
                (marks,) = self._sql(MARKS_OF_ALL)
            except Exception as error:
                self.violations.append(f"SQL was refused: {error}")
                return
            users, accounts = set(marks["users"] or ()), set(marks["accounts"] or ())
            joined = set(marks["final_users"] or ()) | set(marks["final_accounts"] or ())
            if len(users) > 1 or len(accounts) > 1 or not joined <= users | accounts:
                self.violations.append(f"one statement saw rows of several generations: {marks}")

    def _sql(self, text: str) -> list[dict[str, Any]]:
        options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {TOKEN}".encode())])
        with flight.FlightClient(self._server.flight) as client:
            rows: list[dict[str, Any]] = (
                client.do_get(flight.Ticket(json.dumps({"sql": text})), options).read_all().to_pylist()
            )
        return rows


def mark(value: Any) -> str:
    """The topic in a marked value."""
    return str(value).split(" ", 1)[0]
