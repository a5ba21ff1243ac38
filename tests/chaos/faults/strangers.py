"""Clients that do harm: sockets that say nothing, half requests, exports that nobody reads, queries without an end."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress

from pyarrow import flight
from websockets.exceptions import WebSocketException

from tests.chaos.faults.fault import fault
from tests.chaos.subject import Subject, at_once
from tests.support.bombs import planning_bombs
from tests.support.server import TOKEN, LiveClient

SECONDS_MIN, SECONDS_MAX = 0.3, 2.0
SOCKETS = 60
HERD = 25
SQL_SECONDS = 3.0  # then its asker goes away
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD = "POST /api/frames HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\nAuthorization: Bearer {}\r\n\r\n"
HALVES = (
    b"",
    b"GET /api/tables HTTP/1.1\r\nHost: x\r\n",
    b"G",
    HEAD.format("wrong").encode() + b"{",
    HEAD.format(TOKEN).encode() + b"\x00" * 1000,
    b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n\x81\xfe",
    b"\x16\x03\x01\x02\x00\x01",
    PREFACE,
    PREFACE[:9],
    b"\xff" * 500,
)
BOMBS = (
    "SELECT " + "(" * 3000 + "1" + ")" * 3000,
    "SELECT " + "(" * 190 + "1" + ")" * 190,
    "SELECT count(*) FROM range(100000000) a, range(100000000) b",
    "SELECT repeat('x', 1000000000)",
    "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT max(n) FROM r",
    "SELECT * FROM range(100000000) ORDER BY hash(range)",
    "SELECT list(a.range) FROM range(100000000) a",
    "COPY users_ui TO '/tmp/x.csv'",
    "SELECT * FROM read_csv('/etc/passwd')",
    "DROP TABLE users_ui",
    "SELECT " + "1+" * 4000 + "1",
    *planning_bombs("users_ui").values(),
)


def idle_sockets(subject: Subject, chance: random.Random) -> str:
    seconds, server = chance.uniform(SECONDS_MIN, SECONDS_MAX), subject.system.server
    with ExitStack() as opened:
        for _ in range(SOCKETS):
            with suppress(OSError):
                port = chance.choice((server.port, server.flight_port))
                opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=1))
        time.sleep(seconds)
    return f"{SOCKETS} for {seconds:.1f} s"


def half_requests(subject: Subject, chance: random.Random) -> str:
    seconds, server = chance.uniform(SECONDS_MIN, SECONDS_MAX), subject.system.server
    with ExitStack() as opened:
        for _ in range(SOCKETS // 2):
            with suppress(OSError):
                port = chance.choice((server.port, server.flight_port))
                connection = opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=1))
                connection.sendall(chance.choice(HALVES))
        time.sleep(seconds)
    return f"{SOCKETS // 2} for {seconds:.1f} s"


def stalled_export(subject: Subject, chance: random.Random) -> str:
    """Whoever asks for much and reads nothing: over HTTP a table, over Flight an answer that does not end."""
    seconds, server = chance.uniform(SECONDS_MIN, SECONDS_MAX), subject.system.server
    kind = chance.choice(("csv", "arrow", "flight"))
    with ExitStack() as opened, suppress(OSError, flight.FlightError, WebSocketException):
        if kind == "flight":
            options = flight.FlightCallOptions(
                timeout=seconds + 5, headers=[(b"authorization", f"Bearer {TOKEN}".encode())]
            )
            client = opened.enter_context(flight.FlightClient(server.flight))
            ticket = {"sql": "SELECT a.*, b.* FROM final_ui a, final_ui b"}
            reader = client.do_get(flight.Ticket(json.dumps(ticket)), options)
            reader.read_chunk()
            time.sleep(seconds)
            reader.cancel()
        else:
            media = "text/csv" if kind == "csv" else "application/vnd.apache.arrow.stream"
            connection = opened.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=1))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            head = f"GET /api/tables/final_ui/rows HTTP/1.1\r\nHost: x\r\nAccept: {media}\r\n"
            connection.sendall(f"{head}Authorization: Bearer {TOKEN}\r\n\r\n".encode())
            time.sleep(seconds)
    return f"{kind} for {seconds:.1f} s"


def sql_bomb(subject: Subject, chance: random.Random) -> str:
    """A query that would take everything: it is refused, or ended when its asker has gone."""
    bomb = chance.choice(BOMBS)
    request = urllib.request.Request(  # noqa: S310
        f"{subject.system.server.http}/api/sql",
        json.dumps({"sql": bomb}).encode(),
        {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=SQL_SECONDS) as response:  # noqa: S310
            answered = f"{len(response.read()):,} bytes"
    except urllib.error.HTTPError as error:
        answered = f"{error.code}"
    except OSError as error:
        answered = type(error).__name__
    return f"{bomb[:60]}: {answered}"


def herd(subject: Subject, chance: random.Random) -> str:
    """Many clients that connect at the same moment, look once, and are gone."""
    address, seen = subject.system.server.websocket, list[int]()
    together = threading.Barrier(HERD)

    def visit() -> None:
        together.wait(10)
        with suppress(OSError, WebSocketException), LiveClient(address, open_timeout=5, close_timeout=1) as client:
            client.subscribe(1, chance.choice(("users_ui", "accounts_ui", "final_ui")), size=100)
            client.receive_type("snapshot", "error", seconds=5)
            seen.append(1)

    at_once(*[visit] * HERD)
    return f"{len(seen)} of {HERD} saw a table"


FAULTS = (
    fault("idle_sockets", idle_sockets, "strangers", 5),
    fault("half_requests", half_requests, "strangers", 5),
    fault("stalled_export", stalled_export, "exports", 4),
    fault("sql_bomb", sql_bomb, "sql", 2),
    fault("herd", herd, "herd", 4),
)
