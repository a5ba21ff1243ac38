"""However a path is written, an operation needs the key and the role that it needs."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace

import pytest
from fastapi.routing import iter_route_contexts

from livetables.model.roles import Right, Role, RoleKey
from livetables.server.access.key import Key
from livetables.server.api import gate
from livetables.server.api.http import create_app
from livetables.server.api.services import Services
from livetables.server.storage.store import Store
from tests.server.access.test_roles import ENVIRONMENT, KEYS
from tests.server.api.test_http import Answer, Client, fill, services_of
from tests.support.server import ServerProcess

pytestmark = pytest.mark.processes

# Each operation with its method, what it is sent, and the right that it needs.
OPERATIONS: Mapping[str, tuple[str, bytes, Right]] = {
    "/api/tables": ("GET", b"", "read"),
    "/api/status": ("GET", b"", "read"),
    "/metrics": ("GET", b"", "read"),
    "/api/tables/people/rows": ("GET", b"", "read"),
    "/api/sql": ("POST", b'{"sql": "SELECT 1"}', "read"),
    "/api/control": ("POST", b'{"joinType": "left"}', "control"),
    "/api/frames": ("POST", b"", "write"),
}
MAY: Mapping[Role | None, frozenset[Right]] = {
    None: frozenset(),
    "viewer": frozenset({"read"}),
    "operator": frozenset({"read", "control"}),
    "pipeline": frozenset({"write"}),
}
CONTROL_CHARACTERS = ("%0a", "%0A", "%0d", "%0d%0a", "%00", "%09", "%1b", "%7f", "%c2%85", "%e2%80%a8")
SPELLINGS: Mapping[str, Callable[[str], str]] = {
    "two slashes": lambda path: "/" + path,
    "two slashes within": lambda path: path.replace("/", "//"),
    "a slash at the end": lambda path: path + "/",
    "a dot": lambda path: "/." + path,
    "a dot within": lambda path: "/./".join(path.rsplit("/", 1)),
    "two dots": lambda path: "/x/.." + path,
    "two dots, encoded": lambda path: "/x/%2e%2e" + path,
    "upper case": str.upper,
    "a capital": lambda path: path[0] + path[1:].capitalize(),
    "encoded letters": lambda path: path[:-1] + f"%{ord(path[-1]):02x}",
    "an encoded slash": lambda path: path[0] + path[1:].replace("/", "%2f"),
    "encoded twice": lambda path: path[:-1] + f"%25{ord(path[-1]):02x}",
    "a control character, encoded twice": lambda path: path + "%250a",
    "a space": lambda path: path + "%20",
    "a backslash": lambda path: path[0] + path[1:].replace("/", "%5c"),
    "a semicolon": lambda path: path + ";x",
    "a fragment": lambda path: path + "%23",
    "a question mark": lambda path: path + "%3f",
    "a wide letter": lambda path: path.replace("a", "%ef%bd%81"),
    "not UTF-8": lambda path: path + "%ff",
    "a whole address": lambda path: "http://x" + path,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server"), ENVIRONMENT) as server:
        yield server


def answered(server: ServerProcess, method: str, path: str, body: bytes, role: Role | None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        headers = {"Authorization": f"Bearer {KEYS[role]}"} if role else {}
        connection.request(method, path, body or None, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize("role", MAY)
@pytest.mark.parametrize("path", OPERATIONS)
def test_a_path_with_a_control_character_is_refused(server: ServerProcess, path: str, role: Role | None) -> None:
    method, body, _ = OPERATIONS[path]
    for each in CONTROL_CHARACTERS:
        for spelled in (path + each, each + path, path[:5] + each + path[5:]):
            written = spelled if spelled[0] == "/" else "/" + spelled
            status, text = answered(server, method, written, body, role)
            assert (status, json.loads(text)["code"]) == (400, "bad_frame"), written


@pytest.mark.parametrize("role", MAY)
@pytest.mark.parametrize("path", OPERATIONS)
def test_no_spelling_of_a_path_gives_more_than_the_role_has(
    server: ServerProcess, path: str, role: Role | None
) -> None:
    method, body, right = OPERATIONS[path]
    if right in MAY[role]:
        return
    assert answered(server, method, path, body, role)[0] == (403 if role else 401)
    for spelling, spelled in SPELLINGS.items():
        status, text = answered(server, method, spelled(path), body, role)
        assert status in (400, 401, 403, 404, 405), (spelling, text)


# Behind the gate


OPEN = {("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/openapi.json"), ("HEAD", "/openapi.json")}


@pytest.fixture
def services() -> Iterator[Services]:
    with closing(Store(None)) as store:
        fill(store)
        yield replace(services_of(store), key=Key(*(RoleKey(token, role) for role, token in KEYS.items())))


def answers(services: Services, role: Role | None = None) -> dict[tuple[str, str], Answer]:
    """The answer of every route of the app."""
    app = create_app(services)
    client = Client(app, {"Authorization": f"Bearer {KEYS[role]}"} if role else {})
    found = {}
    for route in iter_route_contexts(app.routes):
        assert route.path
        for method in route.methods or ():  # a WebSocket has none
            found[method, route.path] = client.request(method, route.path.format(name="users_ui"))
    return found


def test_every_route_needs_the_key_even_if_the_gate_takes_its_path_for_an_open_one(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "is_locked", lambda _: False)
    found = answers(services)
    assert {path for _, path in found} == {"/healthz", "/readyz", "/openapi.json"} | {
        path.replace("people", "{name}") for path in OPERATIONS if path != "/api/frames"
    }
    assert {route for route, answer in found.items() if answer.status_code != 401} == OPEN


@pytest.mark.parametrize("role", KEYS)
def test_every_route_needs_its_right_even_if_the_gate_takes_its_path_for_another_one(
    services: Services, monkeypatch: pytest.MonkeyPatch, role: Role
) -> None:
    (weakest, *_) = MAY[role]
    monkeypatch.setattr(gate, "needed_right", lambda _: weakest)
    let_through = {route for route, answer in answers(services, role).items() if answer.status_code != 403}
    rights = {(method, path.replace("people", "{name}")): right for path, (method, _, right) in OPERATIONS.items()}
    assert let_through == OPEN | {
        route for route, right in rights.items() if right in MAY[role] and route[1] != "/api/frames"
    }
