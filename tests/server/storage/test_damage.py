"""Stores whose files are damaged: they are kept aside, and the server goes on with a new one."""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from livetables.model.errors import DamagedError, RequestError, SetupError
from livetables.server.storage.damage import opened
from livetables.server.storage.store import Store
from livetables.server.viewports.viewport import Selection
from tests.server.storage.test_store_failure import ROWS, SHAPE, batch
from tests.support.server import ServerProcess

pytestmark = pytest.mark.processes

MAGIC_BYTES = 20  # in which DuckDB says that a file is its own, and of which version
HEADER_BYTES = 3 * 4096  # of a file, which DuckDB reads first
MEMORY_MEGABYTES = 1024  # as a store has by default


def write(path: Path) -> None:
    """A store with a table, all of it in its file."""
    store = Store(path)
    store.begin("g1", [SHAPE])
    store.put(batch("g1", 0))
    store.publish("g1")
    store.close()


def write_log(path: Path) -> None:
    """The same, with changes that are in the log only, as a kill leaves them."""
    write(path)
    # Not forked: the threads that other tests have left in this process may hold locks.
    child = multiprocessing.get_context("spawn").Process(target=put_and_die, args=(path,))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert path.with_name("store.duckdb.wal").stat().st_size > 0


def put_and_die(path: Path) -> None:
    store = Store(path)  # held until the exit: one that is collected would write its log to the file
    store.put(batch("g1", 1))
    os._exit(0)


def truncated(file: Path) -> None:
    with file.open("r+b") as opened_file:
        opened_file.truncate(file.stat().st_size // 2)


def garbage(file: Path) -> None:
    """Everything but what says that it is a database."""
    file.write_bytes(file.read_bytes()[:MAGIC_BYTES] + random.Random(7).randbytes(100_000))


def noise(file: Path) -> None:
    """Everything after the headers."""
    with file.open("r+b") as opened_file:
        opened_file.seek(HEADER_BYTES)
        opened_file.write(random.Random(7).randbytes(file.stat().st_size - HEADER_BYTES))


def scratched(file: Path) -> None:
    """A hole in its middle. Not of equal words in place of equal words: DuckDB's checksum is the same for both."""
    with file.open("r+b") as opened_file:
        opened_file.seek(file.stat().st_size // 2)
        opened_file.write(random.Random(7).randbytes(64))


def empty(file: Path) -> None:
    file.write_bytes(b"")


@pytest.mark.parametrize("damage", [truncated, garbage, empty])
def test_a_damaged_file_is_kept_aside_and_a_new_store_takes_its_place(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    path = tmp_path / "store.duckdb"
    write(path)
    damage(path)
    content = path.read_bytes()
    store = opened(path, MEMORY_MEGABYTES)
    assert dict(store.generations()) == {}
    write_to_new = batch("g1", 0)
    store.begin("g1", [SHAPE])
    assert store.put(write_to_new)
    store.close()
    (aside,) = tmp_path.glob("store.duckdb.damaged-*")
    assert aside.read_bytes() == content


@pytest.mark.parametrize(
    ("name", "damage"),
    [("store.duckdb.wal", scratched), ("store.duckdb", truncated), ("store.duckdb", noise)],
)
def test_a_damaged_log_or_file_is_kept_aside_with_the_other(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    path = tmp_path / "store.duckdb"
    write_log(path)
    damage(tmp_path / name)
    store = opened(path, MEMORY_MEGABYTES)
    assert dict(store.generations()) == {}
    store.close()
    aside = sorted(each.name.removeprefix("store.duckdb.damaged-") for each in tmp_path.glob("*.damaged-*"))
    assert [name[-4:] for name in aside] == [aside[0][-4:], ".wal"]
    assert aside[1] == f"{aside[0]}.wal"


def test_rows_that_turn_out_to_be_damaged_are_distinguished_from_a_store_that_failed(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    write(path)
    scratched(path)
    store = Store(path)
    with pytest.raises(duckdb.Error, match="Corrupt"), store.reader.scan("users_ui", Selection()) as reader:
        reader.read_all()
    with pytest.raises(DamagedError, match="is damaged: Corrupt"):
        store.check()
    store.close()


def test_nobody_damages_a_store_with_words(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    write(path)
    store = Store(path)
    for text in ("SELECT CAST('Corrupt database file' AS BIGINT)", "SELECT 'Corrupt database file' || x"):
        with pytest.raises(RequestError), store.reader.sql(text) as reader:
            reader.read_all()
    store.check()
    store.close()


def test_a_store_that_somebody_else_has_open_is_not_damaged(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    write(path)
    store = Store(path)
    with pytest.raises(SetupError, match=r"cannot open the store"):
        opened(path, MEMORY_MEGABYTES)
    store.close()
    assert not list(tmp_path.glob("*.damaged-*"))


def test_a_server_that_meets_damage_ends_and_comes_back_with_a_new_store(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    write(path)
    scratched(path)
    with ServerProcess(tmp_path) as server:
        with pytest.raises(Exception, match=r"Corrupt|internal|cannot be read"):
            server.table("users_ui")
        assert server.ended() == 2
        assert "event=store_damaged" in server.log()
        assert len(list(tmp_path.glob("store.duckdb.damaged-*"))) == 1
        server.start()
        sink = server.sink()
        assert sink.generations() == ()
        sink.begin("g1", [SHAPE])
        sink.put(batch("g1", 0))
        sink.publish("g1")
        assert server.table("users_ui").num_rows == ROWS
        sink.close()
