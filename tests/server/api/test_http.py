"""The HTTP endpoints, operation by operation, over a store with a few awkward rows."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode

import pyarrow as pa
import pytest
from fastapi import FastAPI
from starlette.requests import ClientDisconnect
from starlette.types import Message

from livetables.model.change import Batch, TableChanges, TableShape
from livetables.model.errors import RequestError
from livetables.model.spec import CONTROL_TABLES
from livetables.model.wire import Receipt, SourceReport
from livetables.server.access.key import Key
from livetables.server.api import http_sql
from livetables.server.api.control_requests import ControlQueue
from livetables.server.api.gate import MAX_BODY_BYTES
from livetables.server.api.http import create_app
from livetables.server.api.messages import MAX_SQL_ROWS
from livetables.server.api.services import Pulse, Services
from livetables.server.health.metrics import Metrics
from livetables.server.live.hub import Hub
from livetables.server.storage.store import Store
from livetables.server.viewports.encoding import ARROW, CSV
from livetables.server.viewports.viewport import Selection

Headers = dict[str, str | bytes]

TOKEN = "correct horse"  # noqa: S105
KEY: Headers = {"Authorization": f"Bearer {TOKEN}"}
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
USERS = TableShape(
    "users_ui",
    pa.schema(
        {
            "id": pa.string(),
            "name": pa.string(),
            "age": pa.int64(),
            "score": pa.float64(),
            "active": pa.bool_(),
            "seen": pa.timestamp("us", "UTC"),
        }
    ),
    ("id",),
    aliases=("user",),
)
CONTROL = [replace(USERS, name=name, aliases=()) for name in CONTROL_TABLES]
ROWS: list[dict[str, Any]] = [
    {"id": "a", "name": "Žofie 🐎", "age": 2**53 + 1, "score": float("nan"), "active": True, "seen": NOON},
    {"id": "b", "name": 'say "hi", Bob\nor not', "age": 30, "score": float("-inf"), "active": False, "seen": None},
    {"id": "c", "name": None, "age": None, "score": None, "active": None, "seen": NOON + timedelta(microseconds=1)},
    {"id": "d", "name": "", "age": -5, "score": 0.1, "active": True, "seen": NOON - timedelta(days=1)},
]
FLIGHT_PORT = 8766
ROWS_URL = "/api/tables/users_ui/rows"


@dataclass(frozen=True)
class Answer:
    """What came back from the app."""

    status_code: int
    headers: dict[str, str]
    chunks: list[bytes]

    @property
    def content(self) -> bytes:
        return b"".join(self.chunks)

    @property
    def text(self) -> str:
        return self.content.decode()

    def json(self) -> Any:
        return json.loads(self.content)


@dataclass(frozen=True)
class Client:
    """Asks the app as a web server would, without a network."""

    app: FastAPI
    headers: dict[str, str | bytes] = field(default_factory=dict)
    root_path: str = ""
    spec_version: str = "2.3"
    has_enough: Callable[[bytes], bool] = lambda _: False

    def get(self, path: str, params: dict[str, Any] | None = None, headers: Headers | None = None) -> Answer:
        return self.request("GET", path, params, headers)

    def post(self, path: str, body: object, headers: Headers | None = None) -> Answer:
        return self.request("POST", path, None, {"Content-Type": "application/json", **(headers or {})}, body)

    def request(
        self,
        method: str,
        path: str,
        params: dict[str, Any] | None = None,
        headers: Headers | None = None,
        body: object = b"",
    ) -> Answer:
        return asyncio.run(self.ask(method, path, params, headers, body))

    async def ask(
        self, method: str, path: str, params: dict[str, Any] | None, headers: Headers | None, body: object
    ) -> Answer:
        """A body is bytes, pieces of a chunked one, or a value to be sent as JSON."""
        pieces = body if isinstance(body, list) and body and isinstance(body[0], bytes) else [_bytes(body)]
        length = {} if len(pieces) > 1 else {"content-length": str(len(pieces[0]))}
        sending = {"host": "test", **length, **self.headers, **(headers or {})}
        waiting = [{"body": piece, "more_body": True} for piece in pieces[:-1]] + [{"body": pieces[-1]}]
        started: list[Message] = []
        chunks: list[bytes] = []
        gone = asyncio.Event()

        async def receive() -> Message:
            if waiting:
                return {"type": "http.request", **waiting.pop(0)}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                started.append(message)
                return
            chunks.append(message["body"])
            if self.has_enough(message["body"]):
                gone.set()
                if self.spec_version == "2.4":
                    raise OSError("the client is gone")

        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": self.spec_version},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(path),
            "raw_path": quote(path).encode(),
            "query_string": urlencode(params or {}, doseq=True).encode(),
            "root_path": self.root_path,
            "headers": [(name.lower().encode(), _bytes(value)) for name, value in sending.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        try:
            await self.app(scope, receive, send)
        except ClientDisconnect:
            assert gone.is_set()
        (start,) = started
        return Answer(start["status"], {name.decode(): value.decode() for name, value in start["headers"]}, chunks)


def _bytes(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


def batch(generation: str, batch_id: int, upserts: pa.Table) -> Batch:
    return Batch(generation, batch_id, (TableChanges("users_ui", upserts, USERS.key_schema.empty_table()),))


def users(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), USERS.schema)


def fill(store: Store) -> None:
    store.begin("g1", [USERS])
    store.put(batch("g1", 0, users(*ROWS)))
    store.publish("g1")


def services_of(store: Store) -> Services:
    metrics = Metrics()
    return Services(store, Key(TOKEN), Pulse(store), ControlQueue(), metrics, Hub(store, metrics), FLIGHT_PORT)


@pytest.fixture
def store() -> Iterator[Store]:
    with closing(Store(None)) as opened:
        yield opened


@pytest.fixture
def services(store: Store) -> Services:
    fill(store)
    return services_of(store)


@pytest.fixture
def client(services: Services) -> Client:
    return Client(create_app(services), KEY)


def problem_of(response: Answer) -> dict[str, str]:
    """The problem in a response, which always has the same three fields."""
    assert response.headers["content-type"] == "application/json"
    problem: dict[str, str] = response.json()
    assert sorted(problem) == ["code", "cure", "problem"]
    assert all(problem.values())
    return problem


# Health


def test_healthz_needs_no_key(services: Services) -> None:
    response = Client(create_app(services)).get("/healthz")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


def test_readyz_names_the_newest_generation_without_a_key(services: Services) -> None:
    response = Client(create_app(services)).get("/readyz")
    assert (response.status_code, response.json()) == (200, {"ready": True, "generation": "g1"})


def test_readyz_names_the_fix_before_there_is_a_generation(store: Store) -> None:
    store.begin("g1", [USERS])
    response = Client(create_app(services_of(store))).get("/readyz")
    assert response.status_code == 503
    problem = problem_of(response)
    assert problem["code"] == "unavailable"
    assert "the pipeline has not been heard yet" in problem["problem"]
    assert "start the pipeline" in problem["cure"]


def test_what_the_pipeline_reports_of_itself_is_not_data_to_be_ready_with(store: Store) -> None:
    services = services_of(store)
    client = Client(create_app(services), KEY)
    store.begin("status-1", CONTROL)
    store.publish("status-1")
    services.pulse.heard()
    response = client.get("/readyz")
    assert response.status_code == 503
    assert "the first generation is being built" in problem_of(response)["problem"]
    assert client.get("/api/status").json()["state"] == "starting"

    fill(store)
    store.drop("status-1")
    store.begin("status-2", CONTROL)
    store.publish("status-2")
    assert client.get("/readyz").json() == {"ready": True, "generation": "g1"}
    answer = client.get("/api/status").json()
    assert answer["state"] == "live"
    assert [each["name"] for each in answer["generations"]] == ["g1", "status-2"]


def test_metrics_are_prometheus_text(client: Client) -> None:
    response = client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    assert "livetables_clients 0.0" in response.text


# The key


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/metrics"),
        ("GET", "/api/tables"),
        ("GET", ROWS_URL),
        ("GET", "/api/status"),
        ("POST", "/api/control"),
        ("POST", "/api/sql"),
        ("GET", "/api"),
        ("GET", "/api/nothing"),
        ("DELETE", "/api/tables"),
    ],
)
@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer wrong", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", "Bearer \xff\xfe"],
)
def test_nothing_opens_without_the_key(services: Services, method: str, path: str, authorization: str | None) -> None:
    headers: Headers = {} if authorization is None else {"Authorization": authorization.encode("latin-1")}
    response = Client(create_app(services)).request(method, path, headers=headers, body=b"not JSON")
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert problem_of(response)["code"] == "unauthorized"


def test_the_key_in_the_url_opens_nothing(services: Services) -> None:
    for name in ("token", "key", "access_token", "Authorization"):
        response = Client(create_app(services)).get("/api/tables", params={name: TOKEN})
        assert response.status_code == 401


def test_a_path_under_a_proxys_root_is_locked_too(services: Services) -> None:
    assert Client(create_app(services), root_path="/below").get("/below/api/tables").status_code == 401


def test_a_key_beyond_ascii_fits(services: Services) -> None:
    app = create_app(replace(services, key=Key("klíč")))
    response = Client(app).get("/api/tables", headers={"Authorization": "Bearer klíč".encode()})
    assert response.status_code == 200


def test_wrong_keys_are_counted_by_endpoint(client: Client) -> None:
    for _ in range(3):
        client.get("/api/tables", headers={"Authorization": "Bearer wrong"})
    assert 'livetables_logins_failed_total{door="http"} 3.0' in client.get("/metrics").text


# Tables and rows


def test_tables_have_their_columns_and_what_they_are_an_alias_of(client: Client) -> None:
    alias, table = client.get("/api/tables").json()["tables"]
    assert table == {
        "name": "users_ui",
        "columns": [
            {"name": "id", "type": "string"},
            {"name": "name", "type": "string"},
            {"name": "age", "type": "int64"},
            {"name": "score", "type": "double"},
            {"name": "active", "type": "bool"},
            {"name": "seen", "type": "timestamp"},
        ],
        "generation": "g1",
        "rows": 4,
        "newest": "2026-01-31T12:00:00.000001Z",
        "alias_of": None,
    }
    assert alias == {**table, "name": "user", "alias_of": "users_ui"}


def test_rows_in_json_are_exact(client: Client) -> None:
    response = client.get(ROWS_URL)
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    answer = response.json()
    assert (answer["total"], answer["generation"]) == (4, "g1")
    assert answer["rows"] == [
        {"id": "a", "name": "Žofie 🐎", "age": "9007199254740993", "score": "NaN", "active": True,
         "seen": "2026-01-31T12:00:00.000Z"},
        {"id": "b", "name": 'say "hi", Bob\nor not', "age": 30, "score": "-Infinity", "active": False, "seen": None},
        {"id": "c", "name": None, "age": None, "score": None, "active": None, "seen": "2026-01-31T12:00:00.000001Z"},
        {"id": "d", "name": "", "age": -5, "score": 0.1, "active": True, "seen": "2026-01-30T12:00:00.000Z"},
    ]  # fmt: skip


def ids(client: Client, **parameters: Any) -> list[str]:
    response = client.get(ROWS_URL, params=parameters)
    assert response.status_code == 200, response.text
    return [row["id"] for row in response.json()["rows"]]


def test_rows_come_in_the_order_asked_for(client: Client) -> None:
    assert ids(client, sort="age") == ["d", "b", "a", "c"]
    assert ids(client, sort="age:asc") == ["d", "b", "a", "c"]
    assert ids(client, sort="age:desc") == ["a", "b", "d", "c"]
    assert ids(client, sort="active:desc,age") == ["d", "a", "b", "c"]
    assert ids(client, sort=["active:desc", "age"]) == ["d", "a", "b", "c"]
    assert ids(client, sort="") == ["a", "b", "c", "d"]


def test_rows_come_from_the_window_asked_for(client: Client) -> None:
    assert ids(client, offset=1, limit=2) == ["b", "c"]
    assert ids(client, offset=4) == []
    assert ids(client, limit=0) == []
    assert client.get(ROWS_URL, params={"limit": 1}).json()["total"] == 4


def test_rows_come_with_the_columns_asked_for(client: Client) -> None:
    expected = [{"age": 30, "id": "b"}]
    for columns in ("age,id", ["age", "id"]):
        answer = client.get(ROWS_URL, params={"columns": columns, "offset": 1, "limit": 1}).json()
        assert answer["rows"] == expected
        assert list(answer["rows"][0]) == ["age", "id"]


def test_rows_pass_the_filters(client: Client) -> None:
    assert ids(client, q="žof") == ["a"]
    assert ids(client, filter=json.dumps([{"column": "age", "op": ">", "value": 0}])) == ["a", "b"]
    assert ids(client, filter=json.dumps([{"column": "age", "op": "equals", "value": str(2**53 + 1)}])) == ["a"]
    assert ids(client, filter=json.dumps([{"column": "name", "op": "is_null"}]), q="c") == ["c"]
    filtered = client.get(ROWS_URL, params={"q": "nobody is called that"}).json()
    assert (filtered["rows"], filtered["total"]) == ([], 0)


@pytest.mark.parametrize(
    ("path", "parameters", "status", "code"),
    [
        ("/api/tables/user_ui/rows", {}, 404, "unknown_table"),
        ("/api/tables/livetables.tables/rows", {}, 404, "unknown_table"),
        ("/api/tables/\N{SNOWMAN}/rows", {}, 404, "unknown_table"),
        (ROWS_URL, {"sort": "nmae"}, 400, "unknown_column"),
        (ROWS_URL, {"sort": "name:down"}, 400, "bad_frame"),
        (ROWS_URL, {"sort": ["id"] * 9}, 413, "limit"),
        (ROWS_URL, {"columns": "id,nmae"}, 400, "unknown_column"),
        (ROWS_URL, {"columns": ""}, 400, "unknown_column"),
        (ROWS_URL, {"columns": "id,id"}, 400, "unknown_column"),
        (ROWS_URL, {"filter": "age>30"}, 400, "bad_filter"),
        (ROWS_URL, {"filter": '{"column": "age"}'}, 400, "bad_filter"),
        (ROWS_URL, {"filter": '[{"column": "age", "op": "~", "value": 1}]'}, 400, "bad_filter"),
        (ROWS_URL, {"filter": '[{"column": "age", "op": "equals", "value": "x"}]'}, 400, "bad_filter"),
        (ROWS_URL, {"filter": '[{"column": "name", "op": "equals", "value": "\\ud800"}]'}, 400, "bad_filter"),
        (ROWS_URL, {"filter": '[{"column": "nmae", "op": "is_null"}]'}, 400, "unknown_column"),
        (ROWS_URL, {"filter": json.dumps([{"column": "id", "op": "is_null"}] * 33)}, 413, "limit"),
        (ROWS_URL, {"limit": 10_002}, 422, "invalid"),
        (ROWS_URL, {"limit": -1}, 422, "invalid"),
        (ROWS_URL, {"limit": "many"}, 422, "invalid"),
        (ROWS_URL, {"offset": -1}, 422, "invalid"),
        (ROWS_URL, {"offset": 2**64}, 422, "invalid"),
        (ROWS_URL, {"q": "x" * 1_001}, 422, "invalid"),
        (ROWS_URL, {"limt": 5}, 422, "invalid"),
    ],
)
@pytest.mark.parametrize("accept", ["application/json", CSV])
def test_a_wrong_question_gets_a_problem_with_a_cure(
    client: Client, path: str, parameters: dict[str, Any], status: int, code: str, accept: str
) -> None:
    response = client.get(path, params=parameters, headers={"Accept": accept})
    assert (response.status_code, problem_of(response)["code"]) == (status, code)


def test_a_mistyped_name_gets_the_right_one_as_its_cure(client: Client) -> None:
    assert problem_of(client.get("/api/tables/users_uj/rows"))["cure"] == 'did you mean "users_ui"?'


def test_a_wrong_parameter_is_named_and_its_value_is_not_repeated(client: Client) -> None:
    response = client.get(ROWS_URL, params={"limit": "<script>"})
    assert "limit" in problem_of(response)["problem"]
    assert "script" not in response.text


# CSV and Arrow


def test_a_csv_window_has_its_total_and_generation_in_headers(client: Client) -> None:
    response = client.get(ROWS_URL, params={"limit": 2, "columns": "id,age"}, headers={"Accept": CSV})
    assert response.headers["content-type"] == "text/csv; charset=utf-8"
    assert (response.headers["x-total-count"], response.headers["x-generation"]) == ("4", "g1")
    assert response.content == b'"id","age"\r\n"a",9007199254740993\r\n"b",30\r\n'


def test_csv_without_a_limit_is_the_whole_selection(client: Client) -> None:
    response = client.get(ROWS_URL, params={"sort": "id:desc"}, headers={"Accept": CSV})
    header, *rows = csv.reader(io.StringIO(response.text, newline=""))
    assert header == USERS.schema.names
    assert rows == [
        ["d", "", "-5", "0.1", "true", "2026-01-30T12:00:00.000Z"],
        ["c", "", "", "", "", "2026-01-31T12:00:00.000001Z"],
        ["b", 'say "hi", Bob\nor not', "30", "-inf", "false", ""],
        ["a", "Žofie 🐎", "9007199254740993", "nan", "true", "2026-01-31T12:00:00.000Z"],
    ]


def test_an_export_honours_offset_and_filters(client: Client) -> None:
    parameters = {"offset": 1, "columns": "id", "filter": '[{"column": "age", "op": "<", "value": 100}]'}
    response = client.get(ROWS_URL, params=parameters, headers={"Accept": CSV})
    assert response.text == '"id"\r\n"d"\r\n'


@pytest.mark.parametrize("parameters", [{}, {"limit": 10}])
def test_arrow_has_all_values_as_they_are(client: Client, parameters: dict[str, int]) -> None:
    response = client.get(ROWS_URL, params=parameters, headers={"Accept": ARROW})
    assert response.headers["content-type"] == ARROW
    answer = pa.ipc.open_stream(response.content).read_all()
    assert answer.schema == USERS.schema
    assert repr(answer["score"].to_pylist()) == repr([row["score"] for row in ROWS])  # as text: NaN equals nothing
    assert answer.drop_columns("score") == users(*ROWS).drop_columns("score")


@pytest.mark.parametrize("accept", ["text/html", "application/json;q=0", "image/*"])
def test_what_cannot_be_accepted_is_an_error(client: Client, accept: str) -> None:
    for response in (
        client.get(ROWS_URL, headers={"Accept": accept}),
        client.post("/api/sql", {"sql": "SELECT 1"}, headers={"Accept": accept}),
    ):
        assert response.status_code == 406
        assert "application/json" in problem_of(response)["cure"]


def big_services(store: Store, count: int) -> Services:
    numbers = pa.array(range(count), pa.int64())
    table = users(*ROWS[:1]).slice(0, 0)
    columns = {field.name: pa.nulls(count, field.type) for field in table.schema}
    columns |= {"id": numbers.cast(pa.string()), "age": numbers}
    store.begin("g1", [USERS])
    store.put(batch("g1", 0, pa.table(columns, USERS.schema)))
    store.publish("g1")
    return services_of(store)


def test_three_hundred_thousand_rows_are_streamed_in_chunks(store: Store) -> None:
    count = 300_000
    client = Client(create_app(big_services(store, count)), {**KEY, "Accept": CSV})
    answer = client.get(ROWS_URL, {"sort": "age:desc", "columns": "age"})
    assert max(len(chunk) for chunk in answer.chunks) < 1_000_000
    assert answer.text.split("\r\n") == ['"age"', *map(str, range(count - 1, -1, -1)), ""]


class WatchedStore(Store):
    """A store that counts the scans that are open."""

    def __init__(self) -> None:
        super().__init__(None)
        self.open_scans = 0
        scan = self.reader.scan

        @contextmanager
        def counted(name: str, selection: Selection) -> Iterator[pa.RecordBatchReader]:
            self.open_scans += 1
            try:
                with scan(name, selection) as reader:
                    yield reader
            finally:
                self.open_scans -= 1

        self.reader.scan = counted  # type: ignore[method-assign]


@pytest.mark.parametrize("spec_version", ["2.3", "2.4"])
def test_a_scan_ends_when_its_client_goes_away(spec_version: str) -> None:
    with closing(WatchedStore()) as store:
        app = create_app(big_services(store, 200_000))
        seen: list[int] = []

        def has_enough(_: bytes) -> bool:
            seen.append(store.open_scans)
            return len(seen) == 2

        Client(app, {**KEY, "Accept": CSV}, spec_version=spec_version, has_enough=has_enough).get(ROWS_URL)
        assert seen[-1] == 1
        assert store.open_scans == 0
        assert Client(app, KEY).get(ROWS_URL).status_code == 200


def test_a_refused_export_leaves_no_scan_open() -> None:
    with closing(WatchedStore()) as store:
        fill(store)
        client = Client(create_app(services_of(store)), KEY)
        assert client.get(ROWS_URL, params={"sort": "nmae"}, headers={"Accept": CSV}).status_code == 400
        assert store.open_scans == 0


# Status


def test_status_has_everything_at_once(services: Services, client: Client) -> None:
    services.pulse.reported("g1", [SourceReport("users_ui", "users", 12)])
    services.store.begin("g2", [USERS])
    before = datetime.now(UTC)
    answer = client.get("/api/status").json()
    assert (answer["state"], answer["sources"]) == (
        "live",
        [{"table": "users_ui", "topic": "users", "lag_records": 12, "newest": "2026-01-31T12:00:00.000001Z"}],
    )
    live, building = answer["generations"]
    assert (live["name"], live["last_batch_id"], live["rows"]) == ("g1", 0, {"users_ui": 4})
    assert live["published"] > live["begun"]
    assert (building["name"], building["published"], building["rows"]) == ("g2", None, {"users_ui": 0})
    assert (answer["clients"], answer["subscriptions"], answer["viewports"]) == (0, 0, 0)
    assert answer["started"].endswith("Z")
    assert before <= datetime.fromisoformat(answer["time"]) <= datetime.now(UTC)
    assert answer["flight_port"] == FLIGHT_PORT


def test_status_shows_why_a_generation_does_not_move(services: Services, client: Client) -> None:
    services.pulse.reported("g1", [], "its query fails again and again")
    answer = client.get("/api/status").json()
    assert (answer["state"], answer["message"]) == ("failed", "its query fails again and again")


def test_status_counts_fields_that_are_no_columns(services: Services, client: Client) -> None:
    fields = {"users_ui": {"nickname": 3, "z": 1}}
    services.store.begin("g2", [USERS])
    services.store.put(Batch("g2", 0, (), fields))
    services.store.put(Batch("g2", 1, (), {"users_ui": {f"junk {number}": 1 for number in range(2_000)}}))
    counted = {
        (each["table"], each["field"]): each["records"] for each in client.get("/api/status").json()["unknown_fields"]
    }
    assert counted["users_ui", "nickname"] == 3
    assert len(counted) == 1_001
    assert sum(counted.values()) == 2_004


def test_status_answers_without_a_pipeline_and_without_tables(store: Store) -> None:
    answer = Client(create_app(services_of(store)), KEY).get("/api/status").json()
    assert (answer["state"], answer["pipeline_seen"], answer["generations"]) == ("pipeline_down", None, [])


# Control


@contextmanager
def pipeline(queue: ControlQueue, outcome: Receipt | RequestError) -> Iterator[list[dict[str, Any]]]:
    """A pipeline that settles every request the same way, and keeps what it was asked."""
    taken: list[dict[str, Any]] = []
    is_over = threading.Event()

    def run() -> None:
        while not is_over.is_set():
            for request in queue.take(0.05):
                taken.append(dict(request.fields))
                queue.settle(request.request_id, outcome)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield taken
    finally:
        is_over.set()
        thread.join()


@pytest.mark.parametrize(
    "message",
    [
        {"usersTopic": "users_2", "accountsTopic": "", "joinType": "left"},
        {"joinType": "asof"},
        {"orders_2Topic": "o"},
        {"orders_by_cityJoin": "inner"},
        {"rollback": True},
        {"discard": "g7-1f3a9c2e"},
    ],
)
def test_a_control_message_is_published_as_it_is(services: Services, client: Client, message: dict[str, Any]) -> None:
    with pipeline(services.control, Receipt("control", 0, 41)) as taken:
        response = client.post("/api/control", message)
    assert (response.status_code, response.json()) == (202, {"topic": "control", "partition": 0, "offset": 41})
    assert taken == [message]


@pytest.mark.parametrize(
    "message",
    [
        {},
        [],
        "left",
        None,
        {"usersTopic": 1},
        {"usersTopic": None},
        {"usersTopic": True},
        {"usersTopic": "x" * 1_001},
        {"usersTopic": "\ud800"},
        {"users-Topic": "x"},
        {"Topic": "x"},
        {"Join": "left"},
        {"orders_by_cityJoin": 1},
        {"jointype": "left"},
        {"rollback": False},
        {"rollback": "yes"},
        {"rollback": True, "joinType": "left"},
        {"discard": "g7-1f3a9c2e", "joinType": "left"},
        {"discard": True},
    ],
)
def test_a_control_message_of_another_shape_is_refused(services: Services, client: Client, message: object) -> None:
    response = client.post("/api/control", json.dumps(message))
    assert (response.status_code, problem_of(response)["code"]) == (422, "invalid")
    assert services.control.take(0) == []


def test_a_control_field_that_is_unknown_is_answered_with_the_known_ones(client: Client) -> None:
    problem = problem_of(client.post("/api/control", {"jointype": "left"}))["problem"]
    assert '"jointype" is not a field of control messages' in problem
    assert "use <table>Topic, <view>Join, joinType, rollback or discard" in problem


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (RequestError("unavailable", "the broker is away", "start it"), 503),
        (RequestError("busy", "too many", "later"), 429),
        (RequestError("timeout", "too slow", "again"), 504),
        (RequestError("bad_frame", "no", "yes"), 400),
    ],
)
def test_the_pipelines_answer_to_a_control_message_is_passed_on(
    services: Services, client: Client, outcome: RequestError, status: int
) -> None:
    with pipeline(services.control, outcome):
        response = client.post("/api/control", {"joinType": "left"})
    assert response.status_code == status
    assert problem_of(response) == {"code": outcome.code, "problem": outcome.problem, "cure": outcome.cure}


def test_a_control_message_that_waits_does_not_hold_others_up(services: Services) -> None:
    client = Client(create_app(services), {**KEY, "Content-Type": "application/json"})

    async def both() -> tuple[Answer, Answer]:
        waiting = asyncio.create_task(client.ask("POST", "/api/control", None, None, {"joinType": "left"}))
        (request,) = await asyncio.to_thread(services.control.take, 10)
        other = await client.ask("GET", "/api/tables", None, None, b"")
        services.control.settle(request.request_id, Receipt("control", 0, 1))
        return other, await waiting

    other, waited = asyncio.run(both())
    assert (other.status_code, waited.status_code) == (200, 202)


# SQL


def test_sql_answers_in_json_by_the_rule_for_values(client: Client) -> None:
    question = {"sql": "SELECT id, age, score, seen, count(*) OVER () AS n FROM user ORDER BY id LIMIT 1"}
    response = client.post("/api/sql", question)
    assert response.json() == {
        "columns": [
            {"name": "id", "type": "string"},
            {"name": "age", "type": "int64"},
            {"name": "score", "type": "double"},
            {"name": "seen", "type": "timestamp"},
            {"name": "n", "type": "int64"},
        ],
        "rows": [["a", "9007199254740993", "NaN", "2026-01-31T12:00:00.000Z", 4]],
        "truncated": False,
    }


def test_sql_answers_what_tables_have_no_type_for(client: Client) -> None:
    response = client.post("/api/sql", {"sql": "SELECT sum(2), DATE '2026-01-31', [1, NULL], 0.1, 0.1 AS twice"})
    assert response.json()["rows"] == [[2, "2026-01-31", [1, None], 0.1, 0.1]]


@pytest.mark.parametrize(("count", "truncated"), [(MAX_SQL_ROWS, False), (MAX_SQL_ROWS + 1, True), (500_000, True)])
def test_sql_answers_have_a_limit_and_say_so(client: Client, count: int, truncated: bool) -> None:
    question = {"sql": f"SELECT 1 FROM {', '.join(f'user u{n}' for n in range(10))} LIMIT {count}"}
    answer = client.post("/api/sql", question).json()
    assert (len(answer["rows"]), answer["truncated"]) == (MAX_SQL_ROWS, truncated)
    response = client.post("/api/sql", question, headers={"Accept": ARROW})
    assert response.headers["x-truncated"] == str(truncated).lower()
    assert pa.ipc.open_stream(response.content).read_all().num_rows == MAX_SQL_ROWS


@pytest.mark.parametrize(
    ("question", "status", "code"),
    [
        ("SELEC 1", 400, "bad_sql"),
        ("", 400, "bad_sql"),
        ("SELECT 1; SELECT 2", 400, "bad_sql"),
        ("DROP VIEW users_ui", 400, "bad_sql"),
        ("SELECT * FROM read_text('/etc/passwd')", 400, "bad_sql"),
        ("SELECT CAST(name AS INT) FROM users_ui", 400, "bad_sql"),
        ("SELECT ['infinity'::TIMESTAMP]", 400, "bad_sql"),
        ("x" * 10_001, 422, "invalid"),
        ("SELECT '\ud800'", 422, "invalid"),
    ],
)  # fmt: skip
def test_sql_that_cannot_be_answered(client: Client, question: str, status: int, code: str) -> None:
    response = client.post("/api/sql", {"sql": question})
    assert (response.status_code, problem_of(response)["code"]) == (status, code)


def test_an_sql_answer_has_a_limit_of_bytes(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_sql, "MAX_SQL_BYTES", 10)
    response = client.post("/api/sql", {"sql": "SELECT * FROM users_ui"})
    assert (response.status_code, problem_of(response)["code"]) == (413, "limit")


def test_an_sql_answer_cut_short_leaves_the_tables_readable(client: Client) -> None:
    crowd = ", ".join(f"user u{n}" for n in range(10))
    for _ in range(3):
        assert client.post("/api/sql", {"sql": f"SELECT 1 FROM {crowd}"}).json()["truncated"]
        assert client.get(ROWS_URL).status_code == 200


@pytest.mark.parametrize("body", ["{", "[]", '"SELECT 1"', "{}", '{"sql": 1}', '{"sql": "SELECT 1", "more": 1}', ""])
def test_sql_in_another_shape_is_refused(client: Client, body: str) -> None:
    response = client.post("/api/sql", body)
    assert (response.status_code, problem_of(response)["code"]) == (422, "invalid")


# Every request, every response


def test_a_body_has_a_limit(client: Client) -> None:
    response = client.post("/api/sql", b" " * (MAX_BODY_BYTES + 1))
    assert (response.status_code, problem_of(response)["code"]) == (413, "limit")


def test_a_body_that_comes_in_chunks_has_the_same_limit(client: Client) -> None:
    response = client.post("/api/sql", [b" " * 1024] * 65)
    assert (response.status_code, problem_of(response)["code"]) == (413, "limit")
    response = client.post("/api/sql", [b'{"sql":', b'"SELECT 1"}'])
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/api/nothing", 404, "not_found"),
        ("GET", "/nothing", 404, "not_found"),
        ("GET", "/docs", 404, "not_found"),
        ("GET", "/api/tables/", 404, "not_found"),
        ("POST", "/healthz", 405, "method_not_allowed"),
        ("GET", "/api/sql", 405, "method_not_allowed"),
    ],
)
def test_paths_and_methods_that_are_not_there(client: Client, method: str, path: str, status: int, code: str) -> None:
    response = client.request(method, path)
    assert (response.status_code, problem_of(response)["code"]) == (status, code)
    assert ("allow" in response.headers) == (status == 405)


def test_a_mistake_of_the_server_is_logged_and_not_shown(
    services: Services, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("an internal detail")

    monkeypatch.setattr(services.store.reader, "window", fail)
    with caplog.at_level(logging.ERROR):
        response = Client(create_app(services), KEY).get(ROWS_URL)
    assert (response.status_code, problem_of(response)["code"]) == (500, "internal")
    assert "detail" not in response.text
    assert "an internal detail" in caplog.text
    assert response.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/", "/healthz", "/api/tables", "/api/nothing", "/openapi.json"])
def test_responses_are_hardened(client: Client, path: str) -> None:
    headers = client.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert "frame-ancestors 'self'" in headers["content-security-policy"]
    assert (headers.get("cache-control") == "no-store") == path.startswith("/api")


def test_only_configured_origins_may_read_across(services: Services) -> None:
    app = create_app(replace(services, origins=("http://localhost:4200",)))
    client = Client(app, KEY)
    allowed = client.get("/api/tables", headers={"Origin": "http://localhost:4200"})
    other = client.get("/api/tables", headers={"Origin": "http://evil.example"})
    assert allowed.headers["access-control-allow-origin"] == "http://localhost:4200"
    assert "access-control-allow-origin" not in other.headers


def test_a_browser_may_ask_before_it_sends_the_key(services: Services) -> None:
    app = create_app(replace(services, origins=("http://localhost:4200",)))
    headers: Headers = {
        "Origin": "http://localhost:4200",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    assert Client(app).request("OPTIONS", "/api/sql", headers=headers).status_code == 200


# The web app


def test_a_page_shows_what_this_is_where_the_web_app_is_not_installed(client: Client) -> None:
    response = client.get("/")
    assert response.headers["content-type"].startswith("text/html")
    for text in ("livetables", "/healthz", "/openapi.json", "curl", "Authorization: Bearer"):
        assert text in response.text
    assert "src=" not in response.text


def test_the_web_app_is_served_without_a_key_where_it_is(services: Services, tmp_path: Path) -> None:
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "index.html").write_text("the app")
    (tmp_path / "web" / "main.js").write_text("1")
    (tmp_path / "secret").write_text("secret")
    client = Client(create_app(replace(services, web_directory=tmp_path / "web")))
    assert client.get("/").text == "the app"
    assert "javascript" in client.get("/main.js").headers["content-type"]
    page = client.get("/").headers
    assert page["cache-control"] == "no-cache"  # an old page would speak an old protocol
    assert "default-src 'self'" in page["content-security-policy"]
    assert page["content-security-policy"] == client.get("/healthz").headers["content-security-policy"]
    assert "connect-src 'self' ws: wss:" in page["content-security-policy"]
    assert "frame-ancestors 'self'" in page["content-security-policy"]
    assert problem_of(client.get("/missing.js"))["code"] == "not_found"
    assert client.get("/%2e%2e/secret").status_code == 404
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/api/sql", headers=KEY).status_code == 405


def test_a_web_directory_that_is_not_there_does_no_harm(services: Services, tmp_path: Path) -> None:
    client = Client(create_app(replace(services, web_directory=tmp_path / "none")))
    assert "livetables" in client.get("/").text
