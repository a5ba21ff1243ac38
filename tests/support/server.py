"""A real server in a process of its own, and a client of its WebSocket that keeps its windows as a page would."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
from pyarrow import flight
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from livetables.model.wire import FramePart
from livetables.pipeline.server_client import ServerClient
from livetables.server.viewports.viewport import Patch
from tests.support.frames import encode_part
from tests.support.windows import patched

TOKEN = "a-key-for-tests"  # noqa: S105
START_SECONDS = 30
WITH_RELAYS = {"LIVETABLES_SERVER_RELAYS": "2"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


class ServerProcess:
    """`livetables serve` on free ports, which it keeps when it is started again."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        self.port, self.flight_port = free_port(), free_port()
        self._directory = directory
        self._settings = dict(settings or {})
        self._process: subprocess.Popen[str] | None = None
        self._tls = "LIVETABLES_SERVER_TLS_CERTIFICATE" in self._settings

    @property
    def http(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def websocket(self) -> str:
        return f"{'wss' if self._tls else 'ws'}://127.0.0.1:{self.port}/ws"

    @property
    def flight(self) -> str:
        return f"{'grpc+tls' if self._tls else 'grpc'}://127.0.0.1:{self.flight_port}"

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("LIVETABLES_")},
            **({} if "LIVETABLES_SERVER_TOKEN_FILE" in self._settings else {"LIVETABLES_TOKEN": TOKEN}),
            "LIVETABLES_SERVER_PORT": str(self.port),
            "LIVETABLES_SERVER_FLIGHT_PORT": str(self.flight_port),
            "LIVETABLES_SERVER_STORE": str(self._directory / "store.duckdb"),
            **self._settings,
        }
        command = [sys.executable, "-m", "livetables.cli.main", "serve"]
        log = (self._directory / "server.log").open("a")
        self._process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line.startswith("serving "), f"the server did not start: {line}{self.log()}"

    def stop(self) -> int:
        """Ask it to stop; its exit code."""
        assert self._process
        self._process.send_signal(signal.SIGTERM)
        return self.ended()

    def kill(self) -> None:
        if self._process and self._process.poll() is None:
            self._process.kill()
            self.ended()

    def log(self) -> str:
        return (self._directory / "server.log").read_text()

    def sink(self, patience_seconds: float = 30) -> ServerClient:
        return ServerClient(self.flight, TOKEN, patience_seconds=patience_seconds)

    def relays(self) -> list[int]:
        """The process ids of its relays."""
        return self._children("livetables.server.relays.main")

    def planners(self) -> list[int]:
        """The process id of its process that plans SQL, if there is one."""
        return self._children("livetables.server.storage.plan_process")

    def _children(self, module: str) -> list[int]:
        """The process ids of what it has started, of those that run a module."""
        tasks = Path(f"/proc/{self.pid}/task")
        pids = [int(pid) for children in tasks.glob("*/children") for pid in children.read_text().split()]
        found = []
        for pid in pids:
            with suppress(OSError):  # it has just ended
                if module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    found.append(pid)
        return found

    def rss_megabytes(self) -> float:
        """The memory of the server and its relays."""
        statuses = [Path(f"/proc/{pid}/status").read_text() for pid in (self.pid, *self.relays())]
        return sum(int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) for status in statuses) / 1024

    def cpu_seconds(self) -> float:
        """The time that the server and its relays have used."""
        stats = [Path(f"/proc/{pid}/stat").read_text() for pid in (self.pid, *self.relays())]
        fields = [stat.rpartition(")")[2].split() for stat in stats]
        return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")

    def get(self, path: str) -> str:
        request = urllib.request.Request(f"{self.http}{path}", headers={"Authorization": f"Bearer {TOKEN}"})  # noqa: S310
        with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
            text: str = response.read().decode()
            return text

    def sql(self, text: str) -> list[list[Any]]:
        """The rows of an answer to SQL, over HTTP; a urllib.error.HTTPError if it is refused."""
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.http}/api/sql", json.dumps({"sql": text}).encode(), headers)  # noqa: S310
        with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
            rows: list[list[Any]] = json.loads(response.read())["rows"]
            return rows

    def send_frame(self, part: FramePart) -> None:
        """Send a part of a frame as a writer of the pipeline does."""
        headers = {"Authorization": f"Bearer {TOKEN}"}
        request = urllib.request.Request(f"{self.http}/api/frames", encode_part(part), headers)  # noqa: S310
        with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
            assert response.status == 200

    def rows(self, table: str, query: str = "") -> list[dict[str, Any]]:
        answer: dict[str, Any] = json.loads(self.get(f"/api/tables/{table}/rows?{query}"))
        rows: list[dict[str, Any]] = answer["rows"]
        return rows

    def table(self, name: str) -> pa.Table:
        """All rows of a table, over Flight."""
        return flight_table(self.flight, TOKEN, name)

    def metric(self, name: str) -> float:
        (value,) = re.findall(rf"^{re.escape(name)} (\S+)$", self.get("/metrics"), re.MULTILINE)
        return float(value)

    def ended(self) -> int:
        """Wait until it has ended; its exit code."""
        assert self._process
        assert self._process.stdout
        code = self._process.wait(timeout=30)
        self._process.stdout.close()
        return code

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


class LiveClient:
    """A WebSocket client that applies what it is sent."""

    def __init__(self, address: str, token: str = TOKEN, protocol: int = 1, **options: Any) -> None:
        self._open = ExitStack()
        opening = connect(address, compression=None, max_size=None, ping_interval=None, **options)
        self.socket: ClientConnection = self._open.enter_context(opening)
        self.frames: list[dict[str, Any]] = []
        self.windows: dict[int, Window] = {}
        self.send({"type": "hello", "protocol": protocol, "token": token})

    def send(self, frame: Mapping[str, Any]) -> None:
        self.socket.send(json.dumps(frame))

    def subscribe(self, sub: int, table: str, **view: Any) -> None:
        self.send({"type": "subscribe", "sub": sub, "table": table, "view": view})

    def receive(self, seconds: float = 10) -> dict[str, Any]:
        """The next frame, after it was applied."""
        frame: dict[str, Any] = json.loads(self.socket.recv(timeout=seconds))
        self.frames.append(frame)
        if frame["type"] in ("schema", "snapshot", "patch", "rebound"):
            self.windows.setdefault(frame["sub"], Window()).apply(frame)
        return frame

    def receive_type(self, *types: str, seconds: float = 10) -> dict[str, Any]:
        """The next frame of one of these types; others on the way are applied."""
        return self.receive_until(lambda frame: frame["type"] in types, " or ".join(types), seconds)

    def receive_until(
        self, condition: Callable[[dict[str, Any]], bool], what: str, seconds: float = 10
    ) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            frame = self.receive(left)
            if condition(frame):
                return frame
        raise AssertionError(f"no {what} within {seconds} s; last frames: {self.frames[-3:]}")

    def receive_to_the_end(self) -> None:
        """Everything until the server closes."""
        with suppress(ConnectionClosed):
            while True:
                self.receive()

    def close(self) -> None:
        self._open.close()

    def __enter__(self) -> LiveClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Window:
    """What a page shows of one subscription."""

    def __init__(self) -> None:
        self.columns: list[str] = []
        self.rows: list[tuple[int, tuple[Any, ...]]] = []
        self.total: int | None = None
        self.generation: str | None = None
        self.sequence: int | None = None
        self.newest: str | None = None

    def apply(self, frame: Mapping[str, Any]) -> None:
        match frame["type"]:
            case "schema":
                self.columns = [column["name"] for column in frame["columns"]]
            case "snapshot":
                rows = zip(frame["ids"], frame["rows"], strict=True)
                self.rows = [(row_id, tuple(values)) for row_id, values in rows]
            case "patch":
                assert frame["sequence"] == (self.sequence or 0) + 1, "a patch that does not follow what the client has"
                assert frame["generation"] == self.generation, "a patch from another generation"
                inserted = tuple((position, row_id, tuple(values)) for position, row_id, values in frame["inserted"])
                self.rows = patched(
                    self.rows, Patch(tuple(frame["removed"]), inserted, tuple(map(tuple, frame["updated"])))
                )
        if frame["type"] in ("snapshot", "patch"):
            self.total, self.generation, self.sequence = frame["total"], frame["generation"], frame["sequence"]
            self.newest = frame["newest"]

    def as_dicts(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, values, strict=True)) for _, values in self.rows]


def flight_table(address: str, key: str, name: str) -> pa.Table:
    """All rows of a table of a server, over Flight."""
    options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {key}".encode())])
    with flight.FlightClient(address) as client:
        return client.do_get(flight.Ticket(json.dumps({"table": name})), options).read_all()
