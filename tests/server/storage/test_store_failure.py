"""A store that has failed, as a full disk makes it: it is noticed, and the server ends so that it is started again."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from livetables.model.change import Batch, TableChanges, TableShape
from livetables.model.errors import StoreError
from livetables.pipeline.table_server import NoAnswerError
from livetables.server.api.http import create_app
from livetables.server.storage.store import Store
from tests.server.api.test_http import Client, problem_of, services_of
from tests.support.disk import full_disk
from tests.support.server import ServerProcess

pytestmark = pytest.mark.processes

ROWS = 30_000
SHAPE = TableShape("users_ui", pa.schema([("_id", pa.int64()), ("name", pa.string())]), ("_id",), appends=True)


def batch(generation: str, batch_id: int) -> Batch:
    ids = range(batch_id * ROWS, (batch_id + 1) * ROWS)
    rows = pa.table([ids, [f"{number * 7919:x}" * 3 for number in ids]], schema=SHAPE.schema)
    return Batch(generation, batch_id, (TableChanges(SHAPE.name, rows, pa.table({})),))


@pytest.fixture
def failed(tmp_path: Path) -> Store:
    """A store whose disk was full while its file was written, and is not any more."""
    path = tmp_path / "store.duckdb"
    store = Store(path)
    store.begin("g1", [SHAPE])
    store.put(batch("g1", 0))
    store.publish("g1")
    store.check()
    with full_disk(path.stat().st_size + 4096), pytest.raises(duckdb.FatalException):
        store.database.writer.execute("CHECKPOINT")
    return store


def test_a_store_that_has_failed_says_so(failed: Store) -> None:
    with pytest.raises(StoreError, match=r"store\.duckdb has failed: .*Could not write file") as error:
        failed.check()
    assert "started again" in error.value.cure
    failed.close()


def test_readyz_reads_from_the_store(failed: Store) -> None:
    response = Client(create_app(services_of(failed))).get("/readyz")
    assert response.status_code == 503
    assert "has failed" in problem_of(response)["problem"]
    failed.close()


def test_a_server_whose_store_has_failed_ends_with_an_error_and_comes_back_with_all_rows(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    with ServerProcess(tmp_path) as server:
        sink = server.sink(patience_seconds=0)
        for generation in ("g1", "g2", "g3"):
            sink.begin(generation, [SHAPE])
        sink.publish("g1")
        for number in range(6):
            sink.put(batch("g1", number))
        sink.drop("g2")  # which writes the file, to give space back
        sink.put(batch("g1", 6))  # this one is in the log only, which is far smaller than the file
        with full_disk(path.stat().st_size + 4096, server.pid):
            with pytest.raises(NoAnswerError):
                sink.drop("g3")
            assert server.ended() == 2
        assert "event=store_failed" in server.log()
        assert "has failed" in server.log()
        server.start()
        assert server.get("/readyz")
        sink.put(batch("g1", 7))
        assert server.table("users_ui").num_rows == 8 * ROWS
        sink.close()
