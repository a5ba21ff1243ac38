"""Rows of 100 kB at a real server: a window of them has a limit of bytes, and all of them come a few at a time."""

from __future__ import annotations

import csv
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

import livetables
from livetables.client.connection import Connection
from livetables.model.change import Batch, TableChanges, TableShape
from livetables.model.errors import RequestError
from livetables.server.storage.reader import WINDOW_BYTES_MAX
from livetables.server.storage.store import Store
from livetables.server.viewports.encoding import ARROW, CSV
from livetables.server.viewports.viewport import Sort, ViewOptions
from tests.support.server import TOKEN, ServerProcess

pytestmark = pytest.mark.processes

SHAPE = TableShape("large", pa.schema([("id", pa.int64()), ("text", pa.string())]), ("id",), appends=True)
ROW_BYTES = 100_000
ROWS = 400
HUGE = TableShape("huge", SHAPE.schema, ("id",), appends=True)
CHUNK_BYTES_MAX = 100 * ROW_BYTES


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server")) as server:
        sink = server.sink()
        sink.begin("g1", [SHAPE, HUGE])
        for batch_id in range(4):
            ids = range(batch_id * ROWS // 4, (batch_id + 1) * ROWS // 4)
            rows = pa.table({"id": ids, "text": [f"{number:0>{ROW_BYTES}}" for number in ids]}, SHAPE.schema)
            huge = pa.table({"id": [batch_id], "text": ["x" * (WINDOW_BYTES_MAX + 1)]}, SHAPE.schema)
            given = rows.schema.empty_table().select(["id"])
            changes = (TableChanges("large", rows, given), TableChanges("huge", huge, given))
            sink.put(Batch("g1", batch_id, changes))
        sink.publish("g1")
        yield server


@pytest.fixture(scope="module")
def connection(server: ServerProcess) -> Iterator[Connection]:
    with livetables.connect(server.http, TOKEN) as connection:
        yield connection


def answered(server: ServerProcess, accept: str = "application/json", table: str = "large", **question: Any) -> bytes:
    url = f"{server.http}/api/tables/{table}/rows?{urllib.parse.urlencode(question)}"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}", "Accept": accept})  # noqa: S310
    with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
        body: bytes = response.read()
        return body


@pytest.mark.parametrize("accept", ["application/json", CSV, ARROW])
@pytest.mark.parametrize(
    "question",
    [{}, {"sort": "id:desc"}, {"q": "0"}, {"offset": 50}],
    ids=["plain", "sorted", "filtered", "further"],
)
def test_a_window_with_too_many_bytes_is_an_error_that_says_how_many_rows_may_be_asked_for(
    server: ServerProcess, accept: str, question: dict[str, Any]
) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        answered(server, accept, limit=ROWS - 100, **question)
    with refused.value as error:
        problem = json.loads(error.read())
    assert (refused.value.code, problem["code"]) == (413, "limit")
    assert "300 rows have more than 16 MiB" in problem["problem"]
    few = int(problem["cure"].split("at most ")[1].split()[0])
    assert 100 < few < 200
    assert len(answered(server, accept, limit=few, **question)) > few * ROW_BYTES


def test_a_window_of_columns_without_long_texts_may_have_all_rows(server: ServerProcess) -> None:
    assert len(json.loads(answered(server, columns="id", limit=10_001))["rows"]) == ROWS


def test_one_row_is_answered_whatever_its_size(server: ServerProcess, connection: Connection) -> None:
    (row,) = json.loads(answered(server, table="huge", limit=1))["rows"]
    assert len(row["text"]) == WINDOW_BYTES_MAX + 1
    assert connection.table("huge").head(1).num_rows == 1
    assert connection.table("huge").tail(1)["id"].to_pylist() == [3]
    with pytest.raises(urllib.error.HTTPError):
        answered(server, table="huge", limit=2)


def test_a_window_over_flight_has_the_same_limit(connection: Connection) -> None:
    table = connection.table("large")
    with pytest.raises(RequestError, match="ask for at most") as refused:
        table.head(ROWS)
    assert refused.value.code == "limit"
    assert table.head(100).num_rows == 100
    assert table.count() == ROWS


def test_all_rows_come_a_few_at_a_time(server: ServerProcess, connection: Connection) -> None:
    options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {TOKEN}".encode())])
    for ticket in ({"table": "large"}, {"changes": "large"}, {"sql": "SELECT * FROM large"}):
        with flight.FlightClient(server.flight) as client:
            chunks = [chunk.data for chunk in client.do_get(flight.Ticket(json.dumps(ticket)), options)]
        assert sum(chunk.num_rows for chunk in chunks) == ROWS
        assert sum(chunk.nbytes for chunk in chunks) > ROWS * ROW_BYTES
        if "sql" not in ticket:
            assert max(chunk.nbytes for chunk in chunks) < CHUNK_BYTES_MAX
    arrow = pa.ipc.open_stream(answered(server, ARROW))
    assert max(batch.nbytes for batch in arrow) < CHUNK_BYTES_MAX
    csv.field_size_limit(2 * ROW_BYTES)
    assert [row[0] for row in csv.reader(answered(server, CSV).decode().splitlines())][1:] == [*map(str, range(ROWS))]
    assert connection.table("large").to_arrow().num_rows == ROWS


def test_a_window_takes_memory_for_what_it_shows_and_not_for_all_that_was_asked_for(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.duckdb", memory_megabytes=512)
    try:
        store.begin("g1", [SHAPE])
        for batch_id in range(60):
            ids = range(batch_id * 100, (batch_id + 1) * 100)
            rows = pa.table({"id": ids, "text": [f"{number:0>{ROW_BYTES}}" for number in ids]}, SHAPE.schema)
            store.put(Batch("g1", batch_id, (TableChanges("large", rows, pa.table({})),)))
            store.database.checkpoint()  # until then it is all in memory
        store.publish("g1")
        for options in (ViewOptions(size=6_000), ViewOptions(size=6_000, sort=[Sort(column="id", descending=True)])):
            kept = store.reader.kept("large", options, 60)
            assert 100 < kept.rows.num_rows < 200
            assert kept.total == 6_000
            with pytest.raises(RequestError, match="MiB of text"):
                store.reader.window("large", options)
    finally:
        store.close()
