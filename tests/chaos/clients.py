"""Clients that watch through everything, connect again when they must, and note what no client may ever be shown."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Protocol, Self

from pyarrow import flight
from websockets.exceptions import WebSocketException

import livetables
from livetables.model.errors import LivetablesError
from tests.support.checksum import checksum
from tests.support.server import TOKEN, LiveClient, ServerProcess, Window
from tests.support.watcher import MARKS, TABLES, mark

WINDOW_ROWS = 50
INTERVAL_MS = 100
SORTED_BY: Mapping[str, str] = {"users_ui": "ts", "accounts_ui": "ts", "final_ui": "users_ts"}
RECEIVE_SECONDS = 0.5
HEARTBEAT_SECONDS = 2.0
SILENT_SECONDS = 8.0  # a client that has heard nothing for so long connects again
AGAIN_SECONDS = 0.2
LOOK_SECONDS = 1.0
ANSWER_SECONDS = 10.0
SINGLE_ROWS = """
    SELECT (SELECT list(DISTINCT split_part(name, ' ', 1)) FROM users_ui WHERE name IS NOT NULL) AS users,
           (SELECT list(DISTINCT accountType) FROM accounts_ui WHERE accountType IS NOT NULL) AS accounts,
           (SELECT list(DISTINCT split_part(name, ' ', 1)) FROM final_ui WHERE name IS NOT NULL) AS final_users,
           (SELECT list(DISTINCT accountType) FROM final_ui WHERE accountType IS NOT NULL) AS final_accounts,
           (SELECT count(*) - count(DISTINCT _id) FROM users_ui)
           + (SELECT count(*) - count(DISTINCT _id) FROM accounts_ui)
           + (SELECT count(*) - count(DISTINCT (_left_id, _right_id)) FROM final_ui) AS doubled
"""


class Client(Protocol):
    """Anything that watches."""

    name: str
    violations: list[str]

    def difference(self, server: ServerProcess) -> str | None:
        """What it has and the server has not, or the other way round, now that nothing changes; None if they agree."""

    def close(self) -> None: ...


class Page:
    """A client of the WebSocket, as a page is: its windows are checked by checksum after every frame."""

    def __init__(self, name: str, address: str) -> None:
        self.name, self.violations = name, list[str]()
        self.frames, self.connections, self.errors = 0, 0, Counter[str]()
        self._address = address
        self._windows: dict[int, Window] = {}
        self._seen: set[str] = set()  # tables that had rows
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def difference(self, server: ServerProcess) -> str | None:
        windows = self._windows
        for sub, table in enumerate(TABLES):
            window = windows.get(sub)
            if window is None or window.total is None:
                return f"{self.name} has no {table}"
            answer = json.loads(
                server.get(f"/api/tables/{table}/rows?sort={SORTED_BY[table]}:desc&limit={WINDOW_ROWS}")
            )
            if window.total != answer["total"] or window.generation != answer["generation"]:
                return (
                    f"{self.name} has {window.total} rows of {table} in {window.generation}, "
                    f"and the server {answer['total']} in {answer['generation']}"
                )
            if window.as_dicts() != answer["rows"]:
                return f"{self.name} has other rows of {table} than the server: {window.as_dicts()[:1]}"
        return None

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._watch()
            except (OSError, WebSocketException, EOFError):
                self._windows = {}
                self._closing.wait(AGAIN_SECONDS)
            except Exception as error:  # anything else is a fault of what it was sent
                self.violations.append(f"{self.name}: {type(error).__name__}: {error}")
                self._closing.wait(AGAIN_SECONDS)

    def _watch(self) -> None:
        with LiveClient(self._address, open_timeout=ANSWER_SECONDS, close_timeout=1) as client:
            self.connections += 1
            self._windows = client.windows
            for sub, table in enumerate(TABLES):
                client.send(
                    {
                        "type": "subscribe",
                        "sub": sub,
                        "table": table,
                        "view": {
                            "sort": [{"column": SORTED_BY[table], "descending": True}],
                            "size": WINDOW_ROWS,
                            "interval_ms": INTERVAL_MS,
                        },
                        "checksum": True,
                    }
                )
            beaten = heard = time.monotonic()
            while not self._closing.is_set():
                now = time.monotonic()
                if now > beaten + HEARTBEAT_SECONDS:
                    beaten = now
                    client.send({"type": "heartbeat"})
                if now > heard + SILENT_SECONDS:
                    raise OSError("silent")
                try:
                    frame = self._received(client)
                except TimeoutError:
                    continue
                heard = time.monotonic()
                client.frames.clear()
                self._take(frame, client)

    def _received(self, client: LiveClient) -> dict[str, Any]:
        try:
            return client.receive(RECEIVE_SECONDS)
        except AssertionError as fault:
            self.violations.append(f"{self.name}: a frame does not follow the one before: {fault}")
            raise OSError("out of step") from fault

    def _take(self, frame: dict[str, Any], client: LiveClient) -> None:
        self.frames += 1
        if frame["type"] == "error":
            self.errors[frame.get("code", "?")] += 1
        if frame["type"] in ("snapshot", "patch"):
            window = client.windows[frame["sub"]]
            self._check(frame, window)

    def _check(self, frame: dict[str, Any], window: Window) -> None:
        table, total = frame["table"], frame["total"]
        found = checksum(total, [row_id for row_id, _ in window.rows], [values for _, values in window.rows])
        if found != frame["checksum"]:
            self.violations.append(f"{self.name}: {table} has checksum {found} and not {frame['checksum']}: {frame}")
        if window.rows:
            self._seen.add(table)
        elif table in self._seen:
            self.violations.append(f"{self.name}: {table} was empty in {window.generation}")
        for column in MARKS[table]:
            place = window.columns.index(column)
            topics = {mark(values[place]) for _, values in window.rows if values[place] is not None}
            if len(topics) > 1:
                self.violations.append(f"{self.name}: {table} was mixed of {topics} in {window.generation}")


class Follower:
    """The Python client, following the joined table: a copy of it, step by step."""

    TABLE = "final_ui"

    def __init__(self, name: str, url: str) -> None:
        self.name, self.violations = name, list[str]()
        self.changes, self.connections, self.errors = 0, 0, Counter[str]()
        self._url = url
        self._rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._key: tuple[str, ...] = ()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._following: livetables.client.Changes | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._following:
            self._following.close()
        self._thread.join()

    def difference(self, server: ServerProcess) -> str | None:
        expected = server.table(self.TABLE).to_pylist()
        with self._lock:
            found = dict(self._rows)
            wanted = {tuple(row[column] for column in self._key): row for row in expected}
        if not self._key:
            return f"{self.name} has nothing"
        if found == wanted:
            return None
        return (
            f"{self.name} has {len(found)} rows, and the server {len(wanted)}; "
            f"too many {sorted(map(str, found.keys() - wanted.keys()))[:3]}, "
            f"lacking {sorted(map(str, wanted.keys() - found.keys()))[:3]}"
        )

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                with livetables.connect(self._url, TOKEN) as connection:
                    self.connections += 1
                    self._follow(connection)
            except (LivetablesError, OSError) as error:  # as when the server has lost its tables
                self.errors[type(error).__name__] += 1
                self._closing.wait(AGAIN_SECONDS)
            except Exception as error:
                self.violations.append(f"{self.name}: {type(error).__name__}: {error}")
                self._closing.wait(AGAIN_SECONDS)

    def _follow(self, connection: livetables.client.Connection) -> None:
        with connection.table(self.TABLE).changes() as following:
            self._following = following
            for change in following:
                self.changes += 1
                with self._lock:
                    self._key = change.key
                    change.apply_to(self._rows)
                if following.checksum_mismatches:
                    self.violations.append(f"{self.name}: {following.checksum_mismatches} answers were damaged")


class Reader:
    """Somebody who reads all tables in one statement, again and again: of one generation, and no row twice."""

    def __init__(self, name: str, location: str) -> None:
        self.name, self.violations = name, list[str]()
        self.looks, self.doubled = 0, 0
        self._location = location
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def difference(self, _: ServerProcess) -> str | None:
        return None

    def _run(self) -> None:
        while not self._closing.wait(LOOK_SECONDS):
            with suppress(flight.FlightError, OSError):
                self._look()

    def _look(self) -> None:
        options = flight.FlightCallOptions(
            timeout=ANSWER_SECONDS, headers=[(b"authorization", f"Bearer {TOKEN}".encode())]
        )
        with flight.FlightClient(self._location) as client:
            (row,) = client.do_get(flight.Ticket(json.dumps({"sql": SINGLE_ROWS})), options).read_all().to_pylist()
        self.looks += 1
        users, accounts = set(row["users"] or ()), set(row["accounts"] or ())
        joined = set(row["final_users"] or ()) | set(row["final_accounts"] or ())
        if len(users) > 1 or len(accounts) > 1 or not joined <= users | accounts:
            self.violations.append(f"{self.name}: one statement saw rows of several generations: {row}")
        if row["doubled"]:
            self.doubled += row["doubled"]
            self.violations.append(f"{self.name}: {row['doubled']} rows were there twice")


class Clients:
    """All of them."""

    def __init__(self, clients: list[Client]) -> None:
        self.all = clients

    def violations(self) -> list[str]:
        return [each for client in self.all for each in client.violations]

    def differences(self, server: ServerProcess) -> list[str]:
        return [found for client in self.all if (found := client.difference(server))]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self.all:
            client.close()
