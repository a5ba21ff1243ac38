"""The sink's way in: encrypted, trusted by a file, and with a key that may change. A real server, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from livetables.model.change import Batch, TableChanges, TableShape
from livetables.model.errors import SetupError, SinkError
from livetables.model.roles import Role
from livetables.pipeline.server_client import ServerClient
from livetables.pipeline.table_server import NoAnswerError
from livetables.server.access.key import Key
from livetables.server.access.logins import Peer
from livetables.server.api.control_requests import ControlQueue
from livetables.server.api.flight import FlightServer
from livetables.server.api.services import Backend, Pulse
from livetables.server.health.metrics import Metrics
from livetables.server.storage.store import Store
from livetables.tls import ServerCertificate
from tests.support import certificates
from tests.support.certificates import Certificate

PEOPLE = TableShape("people", pa.schema([("id", pa.int64())]), ("id",))


class Server:
    """A server that can be opened again at its port, with the same tables, and another certificate."""

    def __init__(self) -> None:
        self.store = Store(None)
        self.key = Key("old")
        self.port = 0

    def open(self, shown: Certificate | None = None) -> None:
        self.flight = FlightServer(
            "127.0.0.1",
            self.port,
            Backend(self.store, self.key, Pulse(self.store), ControlQueue(), Metrics()),
            certificate=ServerCertificate(shown.certificate, shown.key) if shown else None,
        )
        self.port = self.flight.port

    def close(self) -> None:
        self.flight.shutdown()
        self.store.close()


@pytest.fixture
def server() -> Iterator[Server]:
    with closing(Server()) as server:
        yield server


def batch(number: int) -> Batch:
    rows = pa.table({"id": [number]}, PEOPLE.schema)
    return Batch("g", number, (TableChanges("people", rows, PEOPLE.key_schema.empty_table()),))


def deliver(sink: ServerClient, *numbers: int) -> None:
    for number in numbers:
        sink.put(batch(number))


def delivered(server: Server) -> int | None:
    return server.store.generations()["g"].last_batch_id


# TLS


def test_batches_go_to_an_encrypted_server(server: Server, tmp_path: Path) -> None:
    authority = certificates.authority(tmp_path)
    server.open(certificates.signed_by(authority, tmp_path))
    for ca_file in (authority.certificate, tmp_path / "signed.pem"):
        with closing(ServerClient(f"grpc+tls://127.0.0.1:{server.port}", "old", ca_file=ca_file)) as sink:
            assert sink.generations() == ()


@pytest.mark.parametrize(
    ("scheme", "host", "ca", "cure"),
    [
        ("grpc+tls", "127.0.0.1", "other.pem", "let pipeline.server_ca be the file of the authority"),
        ("grpc+tls", "127.0.0.1", None, "let pipeline.server_ca be the file of the authority"),
        ("grpc+tls", "localhost", "self.pem", "make the server's certificate for the host in pipeline.server too"),
        ("grpc", "127.0.0.1", "self.pem", "if the server has TLS, write grpc"),
    ],
)
def test_a_server_that_is_not_trusted_gets_no_key_and_the_error_has_the_cure(
    server: Server, tmp_path: Path, scheme: str, host: str, ca: str | None, cure: str
) -> None:
    server.open(certificates.self_signed(tmp_path, hosts="IP:127.0.0.1"))
    certificates.self_signed(tmp_path, "other")
    ca_file = tmp_path / ca if ca else None
    location = f"{scheme}://{host}:{server.port}"
    with (
        closing(ServerClient(location, "old", ca_file=ca_file, patience_seconds=0)) as sink,
        pytest.raises(NoAnswerError) as caught,
    ):
        sink.generations()
    assert cure in caught.value.cure


def test_a_plain_server_is_distinguished_from_an_encrypted_one(server: Server, tmp_path: Path) -> None:
    server.open()
    ca_file = certificates.self_signed(tmp_path).certificate
    location = f"grpc+tls://127.0.0.1:{server.port}"
    with (
        closing(ServerClient(location, "old", ca_file=ca_file, patience_seconds=0)) as sink,
        pytest.raises(NoAnswerError) as caught,
    ):
        sink.generations()
    assert "write grpc:// instead of grpc+tls://" in caught.value.cure


def test_a_file_that_vouches_for_nobody_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="cannot be read: No such file"):
        ServerClient("grpc+tls://127.0.0.1:1", "old", ca_file=tmp_path / "none.pem")


def test_a_server_that_comes_back_with_a_renewed_certificate_is_trusted_by_the_renewed_file(
    server: Server, tmp_path: Path
) -> None:
    shown = certificates.self_signed(tmp_path)
    server.open(shown)
    with closing(ServerClient(f"grpc+tls://127.0.0.1:{server.port}", "old", ca_file=shown.certificate)) as sink:
        sink.begin("g", [PEOPLE])
        deliver(sink, 0)
        server.flight.shutdown()
        server.open(certificates.self_signed(tmp_path))
        deliver(sink, 1, 2)
    assert delivered(server) == 2


# Keys


def test_a_key_that_was_changed_is_read_from_the_file_again_and_nothing_is_lost(server: Server, tmp_path: Path) -> None:
    server.open()
    keys = tmp_path / "keys"
    keys.write_text("old\n")
    with closing(ServerClient(f"grpc://127.0.0.1:{server.port}", "old", token_file=str(keys))) as sink:
        sink.begin("g", [PEOPLE])
        deliver(sink, 0)
        keys.write_text("new\nold\n")
        server.key.change(("new", "old"))
        deliver(sink, 1)
        server.key.change(("new",))
        deliver(sink, 2, 3)
    assert delivered(server) == 3


def test_a_server_that_has_not_read_its_keys_yet_is_waited_for(server: Server, tmp_path: Path) -> None:
    server.open()
    server.key = key = _TurningKey("old", "new")
    server.flight.shutdown()
    server.open()
    keys = tmp_path / "keys"
    keys.write_text("new\n")
    with closing(ServerClient(f"grpc://127.0.0.1:{server.port}", "new", token_file=str(keys))) as sink:
        assert sink.generations() == ()
    assert key.refused == 2


class _TurningKey(Key):
    """A key that is changed when it has refused two calls: in between the server's look at its file and the sink's."""

    def __init__(self, before: str, after: str) -> None:
        super().__init__(before)
        self.refused = 0
        self._after = after

    def check(self, peer: Peer, presented: str | None) -> Role:
        try:
            return super().check(peer, presented)
        except Exception:
            self.refused += 1
            if self.refused == 2:
                self.change((self._after,))
            raise


@pytest.mark.parametrize("content", ["still wrong\n", "# none\n", None])
def test_a_key_that_stays_wrong_is_no_refusal_of_what_was_sent(
    server: Server, tmp_path: Path, content: str | None
) -> None:
    server.open()
    keys = tmp_path / "keys"
    if content:
        keys.write_text(content)
    with (
        closing(
            ServerClient(f"grpc://127.0.0.1:{server.port}", "wrong", token_file=str(keys), patience_seconds=0.2)
        ) as sink,
        pytest.raises(NoAnswerError, match=r"server\.token_file") as caught,
    ):
        sink.generations()
    assert "still wrong" not in str(caught.value)


def test_without_a_file_a_wrong_key_is_an_error_at_once(server: Server) -> None:
    server.open()
    with closing(ServerClient(f"grpc://127.0.0.1:{server.port}", "wrong")) as sink, pytest.raises(SinkError) as caught:
        sink.generations()
    assert not isinstance(caught.value, NoAnswerError)
