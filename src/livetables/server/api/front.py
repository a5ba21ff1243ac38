"""What is in front of Flight, and bounds strangers: gRPC takes whole messages before anybody can look at their key.

gRPC listens on a socket that nobody but this user can reach; on Windows, which has none such, on loopback. Connections
to the Flight port are accepted here, and their bytes are passed on. Who has shown no key yet may send little, for a
short time, and is the first to go when there are too many; who reads tables may send as much as tickets need; who
writes them may send all.

Bytes are passed on by a thread of its own, with back-pressure on both sides: no queue grows.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import re
import socket
import ssl
import threading
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field

from livetables.log import Throttle
from livetables.server.access.logins import Peer
from livetables.server.api.socket_directory import SocketDirectory
from livetables.tls import ServerCertificate

try:
    import uvloop
except ModuleNotFoundError:  # Windows
    uvloop = None  # type: ignore[assignment]

HAS_UNIX_SOCKETS = hasattr(socket, "AF_UNIX")
LOOPBACK = "127.0.0.1"
STRANGER_SECONDS = 10.0  # to show a key
STRANGER_BYTES_MAX = 256 * 1024  # in all, until then
STRANGERS_MAX = 256
READER_BYTES_MAX = 1024 * 1024  # in calls that are not whole yet
BACKLOG = 512
CHUNK_BYTES = 256 * 1024
LOOK_SECONDS = 0.5
PREFACE_BYTES = 24  # with which HTTP/2 begins
HEADER_BYTES = 9  # of a frame of HTTP/2
DATA, RESET = 0x0, 0x3
END_STREAM = 0x1
SOCKET = "grpc"

log = logging.getLogger(__name__)
throttle = Throttle()


class Meter:
    """Counts what a client has sent in calls that are not whole yet, by reading HTTP/2's frame headers. Pure."""

    def __init__(self) -> None:
        self._skip = PREFACE_BYTES
        self._header = b""
        self._open: dict[int, int] = {}
        self.open_bytes = 0

    def take(self, data: bytes) -> None:
        """The next bytes that the client sent."""
        place = 0
        while place < len(data):
            if self._skip:
                skipped = min(self._skip, len(data) - place)
                self._skip -= skipped
                place += skipped
                continue
            needed = HEADER_BYTES - len(self._header)
            self._header += data[place : place + needed]
            place += needed
            if len(self._header) == HEADER_BYTES:
                self._count(self._header)
                self._header = b""

    def _count(self, header: bytes) -> None:
        self._skip = int.from_bytes(header[:3], "big")
        kind, flags, stream = header[3], header[4], int.from_bytes(header[5:], "big") & 0x7FFFFFFF
        if kind == DATA:
            self._open[stream] = self._open.get(stream, 0) + self._skip
            self.open_bytes += self._skip
        if kind == RESET or (kind == DATA and flags & END_STREAM):
            self.open_bytes -= self._open.pop(stream, 0)


@dataclass(eq=False)
class _Connection:
    """A client's connection."""

    peer: Peer
    client: asyncio.StreamWriter
    since: float
    meter: Meter = field(default_factory=Meter)
    sent_bytes: int = 0
    has_key: bool = False
    may_write: bool = False

    def may_send(self, data: bytes) -> bool:
        """Count what the client has sent; whether it may."""
        if self.may_write:
            return True
        self.sent_bytes += len(data)
        self.meter.take(data)
        if not self.has_key:
            return self.sent_bytes <= STRANGER_BYTES_MAX
        return self.meter.open_bytes <= READER_BYTES_MAX


class Front:
    """Listens from its construction until `close`.

    `path` is where gRPC is to listen before `start`; where it is None, on any port of LOOPBACK.
    """

    def __init__(self, host: str, port: int, certificate: ServerCertificate | None = None) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
        self.port: int = self._listening.getsockname()[1]
        self._directory = SocketDirectory() if HAS_UNIX_SOCKETS else None
        self.path = self._directory.path / SOCKET if self._directory else None
        self._grpc_port = 0
        self._tls = _tls(certificate) if certificate else None
        self._lock = threading.Lock()
        self._connections: dict[str, _Connection] = {}  # by the name of the socket on which gRPC sees them
        self._strangers: dict[str, _Connection] = {}  # those without a key, the longest waiting first
        self._names = itertools.count(1)
        self._loop = asyncio.new_event_loop() if uvloop is None else uvloop.new_event_loop()
        self._server: asyncio.Server | None = None
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="flight-front", daemon=True)

    def start(self, grpc_port: int) -> None:
        """Accept connections from now on. gRPC has this port where it has no `path`."""
        self._grpc_port = grpc_port
        self._thread.start()

    def stop_accepting(self) -> None:
        """Take no more connections; those that are there stay."""
        with contextlib.suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._stop_accepting)

    def close(self) -> None:
        """Close all connections."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join()
        self._listening.close()
        if self._directory:
            self._directory.remove()

    def peer_of(self, uri: str) -> Peer:
        """Who calls, by gRPC's name of the connection."""
        connection = self._connections.get(_name(uri))
        return connection.peer if connection else Peer("")

    def let_in(self, uri: str, *, may_write: bool) -> None:
        """Somebody has shown a right key on this connection."""
        name = _name(uri)
        with self._lock:
            connection = self._connections.get(name)
            self._strangers.pop(name, None)
        if connection:
            connection.has_key = True
            connection.may_write = connection.may_write or may_write

    def cut(self, uri: str) -> None:
        """End a connection whose client does not read what it has asked for, and every call on it."""
        connection = self._connections.get(_name(uri))
        if connection:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(_send_away, connection, "reads nothing")

    def _stop_accepting(self) -> None:
        if self._server:
            self._server.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        self._server = server = await asyncio.start_server(
            self._accepted,
            sock=self._listening,
            limit=CHUNK_BYTES,
            ssl=self._tls,
            ssl_handshake_timeout=STRANGER_SECONDS if self._tls else None,
        )
        watching = asyncio.create_task(self._watch())
        await self._ended.wait()
        watching.cancel()
        server.close()
        for connection in list(self._connections.values()):
            connection.client.transport.abort()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)

    async def _watch(self) -> None:
        """Send those away who have shown no key in time. Runs forever."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = time.monotonic()
            with self._lock:
                late = [each for each in self._strangers.values() if now - each.since > STRANGER_SECONDS]
            for connection in late:
                _send_away(connection, "no key in time")

    async def _accepted(self, client_reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        address = client.get_extra_info("peername") or ("",)
        connection = _Connection(Peer(address[0]), client, time.monotonic())
        try:
            with self._named_socket() as (name, named), self._known(name, connection):
                place = (LOOPBACK, self._grpc_port) if self.path is None else str(self.path)
                await asyncio.get_running_loop().sock_connect(named, place)
                reader, writer = await asyncio.open_connection(sock=named, limit=CHUNK_BYTES)
                try:
                    await _first_ended(_pass_on(client_reader, writer, connection), _pass_on(reader, client))
                finally:
                    writer.transport.abort()
        except OSError as error:
            throttle.log_event(log, "flight_connection_failed", logging.DEBUG, cause=error)
        finally:
            client.close()

    @contextlib.contextmanager
    def _known(self, name: str, connection: _Connection) -> Iterator[None]:
        """Know a connection by its name, as one without a key at first; the eldest of too many such has to go."""
        with self._lock:
            self._connections[name] = self._strangers[name] = connection
            eldest = next(iter(self._strangers.values())) if len(self._strangers) > STRANGERS_MAX else None
        if eldest:
            _send_away(eldest, "too many without a key")
        try:
            yield
        finally:
            with self._lock:
                self._connections.pop(name, None)
                self._strangers.pop(name, None)

    @contextlib.contextmanager
    def _named_socket(self) -> Iterator[tuple[str, socket.socket]]:
        """A socket, and the name that gRPC knows the client by: that of its file, or its port."""
        if self.path is None:
            named, path = socket.socket(socket.AF_INET), None
            named.bind((LOOPBACK, 0))
            name = str(named.getsockname()[1])
        else:
            name = f"c{next(self._names)}"
            named, path = socket.socket(socket.AF_UNIX), self.path.with_name(name)
            named.bind(str(path))
        named.setblocking(False)
        try:
            yield name, named
        finally:
            if path:
                path.unlink(missing_ok=True)


async def _pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sender: _Connection | None = None
) -> None:
    """Pass bytes on until the one who sends them ends, or sends more than it may."""
    while data := await reader.read(CHUNK_BYTES):
        if sender and not sender.may_send(data):
            _send_away(sender, "too much without a key" if not sender.has_key else "too large a call")
            return
        writer.write(data)
        await writer.drain()


async def _first_ended(*coroutines: Coroutine[None, None, None]) -> None:
    """Until one of them has ended; the others are ended then."""
    tasks = [asyncio.create_task(each) for each in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _send_away(connection: _Connection, why: str) -> None:
    throttle.log_event(log, "flight_sent_away", logging.WARNING, address=connection.peer.address or None, why=why)
    connection.client.transport.abort()


def _name(uri: str) -> str:
    """The name of a connection's socket in what gRPC calls it, like unix:/tmp/…/c7 or ipv4:127.0.0.1:50123."""
    return re.split("[/:]", uri)[-1]


def _tls(certificate: ServerCertificate) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.certificate, certificate.key)
    context.set_alpn_protocols(["h2"])
    return context
