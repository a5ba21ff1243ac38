"""SQL is planned in a process of its own: what is too much for it ends it, and never the server."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from livetables.model.errors import RequestError
from livetables.server.storage import planner as planner_module
from livetables.server.storage.plan_process import MEMORY_BYTES_MAX
from livetables.server.storage.planner import Planner, setup_of
from livetables.server.storage.store import Store
from tests.support.bombs import planning_bombs
from tests.support.server import ServerProcess
from tests.support.tables import APPENDS, batch, numbered

USERS = replace(APPENDS, name="users", aliases=("user",))
BOMBS = planning_bombs("users")
TOO_LARGE = "the query makes texts or lists that are too large"
END_SECONDS = 30.0


@pytest.fixture(scope="module")
def served() -> Iterator[Store]:
    served = Store(None, memory_megabytes=256)
    served.begin("g1", [USERS])
    served.put(batch("g1", 0, {USERS: (numbered(0, 100), [])}))
    served.publish("g1")
    yield served
    served.close()


def answer(served: Store, text: str) -> list[object]:
    with served.reader.sql(text) as reader:
        return [list(row.values()) for row in reader.read_all().to_pylist()]


def refusal(served: Store, text: str) -> RequestError:
    with pytest.raises(RequestError) as caught:
        answer(served, text)
    return caught.value


def process_of(planner: Planner) -> int:
    assert planner._process
    return planner._process._process.pid


def memory_of(pid: int | str) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def is_gone(pid: int) -> bool:
    """Whether a process ends in time; one that nobody has waited for has ended too."""
    deadline = time.monotonic() + END_SECONDS
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_what_takes_too_much_to_plan_is_an_error_and_the_next_query_is_answered(served: Store, bomb: str) -> None:
    before = memory_of("self")
    error = refusal(served, bomb)
    assert error.code in ("limit", "timeout")
    # One of them is refused for its texts before.
    assert error.problem in ("the query takes too long to plan", "the query takes too much memory to plan", TOO_LARGE)
    assert error.cure
    assert memory_of("self") - before < MEMORY_BYTES_MAX // 4, "it was planned here too"
    assert answer(served, "SELECT count(*) FROM users") == [[100]]


def test_one_process_plans_query_after_query(served: Store) -> None:
    answer(served, "SELECT 1")
    pid = process_of(served._planner)
    for _ in range(3):
        answer(served, "SELECT max(age) FROM users")
        refusal(served, "SELECT nothing FROM users")
        refusal(served, "SELECT repeat('x', 9)")
    assert process_of(served._planner) == pid


def test_what_was_heavy_but_allowed_leaves_no_less_room_for_the_next_query(served: Store) -> None:
    heavy = "SELECT * FROM users WHERE " + " AND ".join(f"age <> {number}" for number in range(350))
    for _ in range(5):
        assert len(answer(served, heavy)) == 0


def test_no_other_thread_takes_the_memory_that_a_query_may_have(served: Store) -> None:
    answer(served, "SELECT 1")
    assert len(list(Path(f"/proc/{process_of(served._planner)}/task").iterdir())) == 1


def test_the_process_has_no_key_no_descriptor_and_limits(served: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIVETABLES_TOKEN", "a secret")
    refusal(served, BOMBS["row in the answer"])
    answer(served, "SELECT 1")  # by a new one
    process = Path(f"/proc/{process_of(served._planner)}")
    names = {entry.partition(b"=")[0] for entry in (process / "environ").read_bytes().split(b"\0") if entry}
    assert names <= {b"PYTHONPATH", b"LC_CTYPE"}
    opened = {each.name: each.readlink() for each in (process / "fd").iterdir()}
    assert all(str(path).startswith(("pipe:", "/dev/null")) for path in opened.values()), opened
    limits = (process / "limits").read_text()
    assert [line.split()[4:6] for line in limits.splitlines() if "core file" in line] == [["0", "0"]]
    assert [line.split()[3] != "unlimited" for line in limits.splitlines() if "address space" in line] == [True]
    assert os.getsid(process_of(served._planner)) != os.getsid(0), "Ctrl-C would end it"


def test_a_swap_brings_other_columns_and_names() -> None:
    served = Store(None)
    try:
        assert refusal(served, "SELECT * FROM users").code == "unknown_table"
        served.begin("g1", [USERS])
        served.publish("g1")
        assert answer(served, "SELECT age FROM user") == []
        other = replace(USERS, schema=pa.schema([("_id", pa.int64()), ("size", pa.int64())]), aliases=())
        served.begin("g2", [other])
        served.publish("g2")
        assert answer(served, "SELECT size FROM users") == []
        assert "age" in refusal(served, "SELECT age FROM users").problem
        assert refusal(served, "SELECT age FROM user").code == "unknown_table"
    finally:
        served.close()


def test_a_swap_while_a_query_is_planned_has_it_planned_again(served: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[str] = []
    check = served._planner.check

    def check_and_swap(text: str, *arguments: object) -> None:
        check(text, *arguments)  # type: ignore[arg-type]
        planned.append(text)
        if len(planned) == 1:
            served.begin("g2", [USERS])
            served.publish("g2")

    monkeypatch.setattr(served._planner, "check", check_and_swap)
    assert answer(served, "SELECT count(*) FROM users") == [[0]]
    assert len(planned) == 2
    served.publish("g1")


def test_no_value_is_ruled_out_by_what_the_process_knows_of_its_tables(served: Store) -> None:
    connection = duckdb.connect()
    for statement in setup_of(served.tables())["statements"]:
        connection.execute(statement)
    for condition in (
        "age > 1000000",
        "age < -1000000",
        "name = 'nobody'",
        "balance > 1e300",
        "balance < -1e300",
        "ts > TIMESTAMPTZ '9000-01-01'",
        "active",
        "NOT active",
        "age IS NULL",
        "name IS NULL",
    ):
        plan = connection.sql(f"SELECT name FROM users WHERE {condition}").explain()
        assert "EMPTY" not in plan, condition


def test_a_process_that_was_killed_is_replaced(served: Store) -> None:
    answer(served, "SELECT 1")
    assert served._planner._process
    os.kill(process_of(served._planner), signal.SIGKILL)
    served._planner._process._process.wait()
    assert answer(served, "SELECT 2") == [[2]]


def test_a_process_that_does_not_answer_is_killed(served: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(served, "SELECT 1")
    monkeypatch.setattr(planner_module, "PATIENCE_SECONDS", 0.3)
    pid = process_of(served._planner)
    os.kill(pid, signal.SIGSTOP)
    assert refusal(served, "SELECT 1").code == "timeout"
    assert is_gone(pid)
    monkeypatch.undo()
    assert answer(served, "SELECT 1") == [[1]]


def test_who_has_to_wait_too_long_for_a_plan_is_told_that_it_is_busy(
    served: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner_module, "PATIENCE_SECONDS", 0.1)
    with served._planner._turn:
        assert refusal(served, "SELECT 2").code == "busy"
    monkeypatch.undo()
    assert answer(served, "SELECT 2") == [[2]]


def test_closing_the_store_ends_the_process_and_who_waits_for_it() -> None:
    served = Store(None)
    answer(served, "SELECT 1")
    pid = process_of(served._planner)
    os.kill(pid, signal.SIGSTOP)
    refused: list[RequestError] = []
    waiting = threading.Thread(target=lambda: refused.append(refusal(served, "SELECT 1")))
    waiting.start()
    while not served._planner._turn.locked():
        time.sleep(0.01)
    served.close()
    waiting.join(END_SECONDS)
    assert [error.code for error in refused] == ["unavailable"]
    assert is_gone(pid)
    assert refusal(served, "SELECT 1").code == "unavailable"


@pytest.mark.processes
@pytest.mark.parametrize("text", ["SELECT 1", BOMBS["in"]], ids=["idle", "planning"])
def test_a_server_that_is_killed_leaves_no_process_behind(tmp_path: Path, text: str) -> None:
    with ServerProcess(tmp_path) as server:
        sink = server.sink()
        sink.begin("g1", [USERS])
        sink.publish("g1")
        asking = threading.Thread(target=_asked, args=[server, text])
        asking.start()
        while not (planners := server.planners()):
            time.sleep(0.01)
        if text == "SELECT 1":
            asking.join()
        server.kill()
        assert all(is_gone(pid) for pid in planners)
        asking.join()


def _asked(server: ServerProcess, text: str) -> None:
    """Ask, and do not mind that the server goes away."""
    with suppress(OSError, HTTPException):
        server.sql(text)
