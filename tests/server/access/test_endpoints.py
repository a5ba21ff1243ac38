"""All endpoints of real servers: encrypted, with keys that change, for no strange page, and slow for who guesses."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import websockets
from pyarrow import flight
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from livetables.client.http import HttpClient, UnreachableError
from livetables.model.errors import SetupError
from livetables.server.access.logins import WRONG_KEYS_MAX
from livetables.tls import client_context
from tests.support import certificates
from tests.support.certificates import Certificate
from tests.support.kafka import wait_until
from tests.support.server import TOKEN, WITH_RELAYS, LiveClient, ServerProcess
from tests.support.up import COMMAND, clean_environment

pytestmark = pytest.mark.processes


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Any
    body: dict[str, Any]


def asked(
    server: ServerProcess,
    path: str = "/api/tables",
    token: str | None = TOKEN,
    context: ssl.SSLContext | None = None,
    **headers: str,
) -> Answer:
    """What the HTTP endpoint answers, on a connection of its own."""
    request = urllib.request.Request(server.http + path, headers={k.replace("_", "-"): v for k, v in headers.items()})  # noqa: S310
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as response:  # noqa: S310
            return Answer(response.status, response.headers, json.loads(response.read()))
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.headers, json.loads(error.read()))


def listed(client: flight.FlightClient, token: str = TOKEN) -> list[Any]:
    options = flight.FlightCallOptions(timeout=30, headers=[(b"authorization", f"Bearer {token}".encode())])
    return list(client.list_flights(options=options))


def login(server: ServerProcess, token: str) -> tuple[str, int | None]:
    """What the WebSocket answers to a key, and how it closes if it does."""
    with connect(server.websocket) as socket:
        socket.send(json.dumps({"type": "hello", "protocol": 1, "token": token}))
        frame = json.loads(socket.recv(timeout=10))
        if frame["type"] == "hello":
            return "hello", None
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=10)
        assert closed.value.rcvd
        return frame["code"], closed.value.rcvd.code


# TLS


def encrypted_login(server: ServerProcess, context: ssl.SSLContext, origin: websockets.Origin | None = None) -> str:
    """The type of the frame that answers the right key.

    Not with the client that has threads: it reads and writes a TLS socket at the same time, which Python 3.11 does not
    keep apart, and then waits for ever now and then.
    """

    async def log_in() -> str:
        async with websockets.connect(server.websocket, ssl=context, origin=origin) as client:
            await client.send(json.dumps({"type": "hello", "protocol": 1, "token": TOKEN}))
            answer: str = json.loads(await asyncio.wait_for(client.recv(), 10))["type"]
            return answer

    return asyncio.run(log_in())


@dataclass(frozen=True)
class Encrypted:
    server: ServerProcess
    shown: Certificate
    authority: Certificate
    stranger: Certificate


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encrypted]:
    directory = tmp_path_factory.mktemp("encrypted")
    authority = certificates.authority(directory)
    shown = certificates.signed_by(authority, directory, hosts="IP:127.0.0.1")
    stranger = certificates.authority(directory, "stranger")
    with ServerProcess(directory, shown.settings) as server:
        yield Encrypted(server, shown, authority, stranger)


@pytest.mark.parametrize("vouching", ["authority", "shown"])
def test_every_endpoint_is_encrypted_and_trusted_by_its_authority_or_itself(
    encrypted: Encrypted, vouching: str
) -> None:
    ca_file: Path = getattr(encrypted, vouching).certificate
    context = client_context(ca_file)
    assert HttpClient(encrypted.server.http, TOKEN, ca_file=ca_file).get("/healthz") == {"status": "ok"}
    assert asked(encrypted.server, context=context).status == 200
    assert encrypted_login(encrypted.server, context) == "hello"
    with flight.FlightClient(encrypted.server.flight, tls_root_certs=ca_file.read_bytes()) as client:
        assert listed(client) == []


def test_the_page_of_an_encrypted_server_may_connect(encrypted: Encrypted) -> None:
    origin, context = websockets.Origin(encrypted.server.http), client_context(encrypted.authority.certificate)
    assert encrypted_login(encrypted.server, context, origin) == "hello"
    plain = websockets.Origin(encrypted.server.http.replace("https", "http"))
    with pytest.raises(InvalidStatus):
        encrypted_login(encrypted.server, context, plain)


def test_a_websocket_may_be_asked_for_together_with_the_end_of_the_tls_handshake(encrypted: Encrypted) -> None:
    """The server still has something of the handshake to send then, which is no answer that a client does not read."""
    arriving, leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = client_context(encrypted.authority.certificate)
    encryption = context.wrap_bio(arriving, leaving, server_hostname="127.0.0.1")
    upgrade = (
        b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", encrypted.server.port), timeout=10) as connection:

        def exchanged(act: Callable[[], Any]) -> Any:
            """What an act returns, with what it needs from the server."""
            while True:
                try:
                    return act()
                except ssl.SSLWantReadError:
                    connection.sendall(leaving.read())
                    data = connection.recv(64 * 1024)
                    assert data, "the server has closed the connection"
                    arriving.write(data)

        exchanged(encryption.do_handshake)
        encryption.write(upgrade)
        assert exchanged(lambda: encryption.read(1000)).startswith(b"HTTP/1.1 101 ")


def test_who_trusts_another_authority_or_the_system_only_does_not_connect(encrypted: Encrypted) -> None:
    for ca_file in (encrypted.stranger.certificate, None):
        with pytest.raises(SetupError, match=r"is not trusted: unable to get local issuer.*\n  cure: let --ca "):
            HttpClient(encrypted.server.http, TOKEN, ca_file=ca_file).get("/healthz")
        with pytest.raises(ssl.SSLCertVerificationError):
            encrypted_login(encrypted.server, client_context(ca_file))


def test_who_calls_the_server_by_a_name_that_its_certificate_lacks_gets_an_error(encrypted: Encrypted) -> None:
    url = f"https://localhost:{encrypted.server.port}"
    with pytest.raises(SetupError, match="not valid for 'localhost'") as caught:
        HttpClient(url, TOKEN, ca_file=encrypted.authority.certificate).get("/healthz")
    assert "subjectAltName" in caught.value.cure


def test_the_command_line_trusts_the_authority_that_it_is_given(encrypted: Encrypted, tmp_path: Path) -> None:
    def status(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [*COMMAND, "status", "--url", encrypted.server.http, *arguments]
        environment = clean_environment(LIVETABLES_TOKEN=TOKEN)
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    trusted = status("--ca", encrypted.authority.certificate)
    assert trusted.returncode == 0, trusted.stderr
    assert f"page        {encrypted.server.http}\n" in trusted.stdout
    refused = status()
    assert refused.returncode == 2
    assert "let --ca (`ca_file` in Python) be the file of the authority" in refused.stderr


def test_nothing_is_served_in_plain_text(encrypted: Encrypted) -> None:
    with pytest.raises(UnreachableError):
        HttpClient(encrypted.server.http.replace("https", "http"), TOKEN).get("/healthz")
    with flight.FlightClient(encrypted.server.flight.replace("+tls", "")) as client, pytest.raises(flight.FlightError):
        listed(client)


def test_an_expired_certificate_is_warned_of(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, certificates.expired(tmp_path).settings) as server:
        assert "expired.pem: certificate has expired; renew it" in server.log()


# Keys that change


class Changing:
    """A server whose keys are in a file."""

    def __init__(self, directory: Path, settings: Mapping[str, str]) -> None:
        self.file = directory / "keys"
        self.write("old")
        self.server = ServerProcess(directory, {"LIVETABLES_SERVER_TOKEN_FILE": str(self.file), **settings})

    def write(self, *lines: str) -> None:
        draft = self.file.with_suffix(".draft")
        draft.write_text("".join(f"{line}\n" for line in lines))
        draft.replace(self.file)

    def opens(self, token: str) -> bool:
        return asked(self.server, token=token).status == 200


@pytest.fixture(params=[{}, WITH_RELAYS], ids=["alone", "relays"])
def changing(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Changing]:
    changing = Changing(tmp_path, request.param)
    with changing.server:
        yield changing


def test_a_new_key_takes_over_without_a_restart(changing: Changing) -> None:
    server = changing.server
    with (
        LiveClient(server.websocket, "old") as page,
        LiveClient(server.websocket, "old") as other_page,
        flight.FlightClient(server.flight) as program,
    ):
        page.receive_type("hello")
        other_page.receive_type("hello")
        assert listed(program, "old") == []

        changing.write("# since today", "new", "", "  old  ")
        wait_until(lambda: changing.opens("new"), "the new key is accepted")
        assert changing.opens("old")
        assert listed(program, "old") == listed(program, "new") == []
        page.send({"type": "heartbeat"})
        assert page.receive_type("heartbeat")
        assert login(server, "new") == ("hello", None)
        assert login(server, "# since today") == ("unauthorized", 4401)

        with LiveClient(server.websocket, "new") as new_page:
            new_page.receive_type("hello")
            changing.write("new")
            for leaving in (page, other_page):
                leaving.receive_to_the_end()
                assert leaving.socket.close_code == 4401
                assert "the key was changed" in (leaving.socket.close_reason or "")
            new_page.send({"type": "heartbeat"})
            assert new_page.receive_type("heartbeat")
        assert not changing.opens("old")
        with pytest.raises(flight.FlightUnauthenticatedError):
            listed(program, "old")
        assert listed(program, "new") == []
        assert login(server, "old") == ("unauthorized", 4401)


@pytest.mark.parametrize("harm", [lambda file: file.unlink(), lambda file: file.write_text("# none\n\n")])
def test_a_file_without_keys_changes_nothing_and_is_warned_of_once(
    changing: Changing, harm: Callable[[Path], object]
) -> None:
    harm(changing.file)
    wait_until(lambda: "the previous keys stay" in changing.server.log(), "it is warned of")
    assert changing.opens("old")
    changing.write("new")
    wait_until(lambda: changing.opens("new"), "the file is looked at again")
    assert not changing.opens("old")
    assert changing.server.log().count("the previous keys stay") == 1
    assert "new" not in changing.server.log().replace("renew", "")


# Pages of others


@pytest.fixture(scope="module", params=[{}, WITH_RELAYS], ids=["alone", "relays"])
def plain(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    settings = {"LIVETABLES_SERVER_ORIGINS": "https://Tables.Example:443", **request.param}
    with ServerProcess(tmp_path_factory.mktemp("plain"), settings) as server:
        yield server


def test_a_name_that_was_made_to_point_here_is_not_the_servers_own(plain: ServerProcess) -> None:
    rebound = f"evil.example:{plain.port}"
    assert asked(plain, Origin=f"http://{rebound}", Host=rebound).body["code"] == "forbidden"
    with pytest.raises(InvalidStatus) as refused:
        connect(
            f"ws://{rebound}/ws",
            sock=socket.create_connection(("127.0.0.1", plain.port)),
            origin=websockets.Origin(f"http://{rebound}"),
        )
    assert refused.value.response.status_code == 403
    wait_until(lambda: f"a page of 'http://{rebound}' may not connect" in plain.log(), "the log has the cure")


@pytest.mark.parametrize("path", ["/api/tables", "/api/sql", "/api/control", "/metrics"])
@pytest.mark.parametrize("origin", ["null", "http://evil.example", "http://127.0.0.1:1", "https://127.0.0.1"])
def test_a_page_from_elsewhere_may_not_even_ask_with_the_key(plain: ServerProcess, path: str, origin: str) -> None:
    answer = asked(plain, path, Origin=origin)
    assert (answer.status, answer.body["code"]) == (403, "forbidden")
    assert "server.origins" in answer.body["cure"]


def test_a_configured_origin_may_ask_and_connect_whatever_its_case(plain: ServerProcess) -> None:
    answer = asked(plain, Origin="https://tables.example")
    assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (200, "https://tables.example")
    with LiveClient(plain.websocket, origin=websockets.Origin("https://tables.example")) as client:
        assert client.receive_type("hello")


def test_only_a_configured_proxy_sets_how_the_page_was_called(plain: ServerProcess, proxied: ServerProcess) -> None:
    origin, host = "https://proxied.example", "proxied.example"
    assert asked(proxied, Origin=origin, Host=host).status == 403
    assert asked(proxied, Origin=origin, Host=host, X_Forwarded_Proto="https").status == 200
    assert asked(plain, Origin=origin, Host=host, X_Forwarded_Proto="https").status == 403


# Those who guess


@pytest.fixture(params=[{}, WITH_RELAYS], ids=["alone", "relays"])
def proxied(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    """A server that has this machine for a proxy."""
    with ServerProcess(tmp_path, {"LIVETABLES_SERVER_PROXIES": "127.0.0.1, 10.0.0.0/8", **request.param}) as server:
        yield server


def test_who_guesses_has_to_wait_at_every_endpoint_but_the_right_key_is_taken(proxied: ServerProcess) -> None:
    server = proxied
    with LiveClient(server.websocket) as page, flight.FlightClient(server.flight) as program:
        page.receive_type("hello")
        assert listed(program) == []
        for _ in range(WRONG_KEYS_MAX):  # one guess, again and again
            assert asked(server, token="forgotten").status == 401  # noqa: S106
            assert asked(server, token=None).status == 401
        third = (WRONG_KEYS_MAX - 1) // 3
        for number in range(third):
            assert asked(server, token=f"http {number}").status == 401
            assert login(server, f"websocket {number}") == ("unauthorized", 4401)
            with flight.FlightClient(server.flight) as guesser, pytest.raises(flight.FlightUnauthenticatedError):
                listed(guesser, f"flight {number}")
        for number in range(WRONG_KEYS_MAX - 1 - 3 * third):
            assert asked(server, token=f"last {number}").status == 401

        answer = asked(server, token="one more")  # noqa: S106
        assert (answer.status, answer.body["code"]) == (429, "busy")
        assert 1 <= int(answer.headers["Retry-After"]) <= 60
        assert f"try again in {answer.headers['Retry-After']} s" in answer.body["cure"]
        assert login(server, "one more") == ("busy", 4429)
        with flight.FlightClient(server.flight, generic_options=[("grpc.use_local_subchannel_pool", 1)]) as newcomer:
            with pytest.raises(flight.FlightUnavailableError) as refused:
                listed(newcomer, "one more")
            assert json.loads(refused.value.extra_info)["code"] == "busy"
            assert listed(newcomer) == []

        assert asked(server).status == 200
        assert login(server, TOKEN) == ("hello", None)
        assert listed(program) == []
        page.send({"type": "heartbeat"})
        assert page.receive_type("heartbeat")
        # Another client of the proxy, which the proxy names last: what it was sent by the client does not count.
        assert asked(server, token="one more", X_Forwarded_For="127.0.0.1, 192.0.2.3").status == 401  # noqa: S106
        assert asked(server, token="one more", X_Forwarded_For="192.0.2.3, 127.0.0.1").status == 401  # noqa: S106
        counted = server.get("/metrics")
        for endpoint in ("http", "websocket", "flight"):
            assert f'livetables_logins_refused_total{{door="{endpoint}"}} 1.0' in counted
        assert f'livetables_logins_failed_total{{door="websocket"}} {third:.1f}' in counted


def test_who_is_no_configured_proxy_cannot_guess_for_others(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        for number in range(WRONG_KEYS_MAX):
            assert asked(server, token=f"wrong {number}", X_Forwarded_For=f"192.0.2.{number}").status == 401
        assert asked(server, token="one more", X_Forwarded_For="192.0.2.99").status == 429  # noqa: S106
