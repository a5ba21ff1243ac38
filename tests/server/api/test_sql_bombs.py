"""SQL that would take hours and gigabytes before it reads a row, at a real server, which serves on meanwhile."""

from __future__ import annotations

import json
import re
import threading
import urllib.error
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.bombs import planning_bombs
from tests.support.server import ServerProcess
from tests.support.tables import APPENDS, batch, numbered

pytestmark = pytest.mark.processes

USERS = replace(APPENDS, name="users")
BOMBS = planning_bombs("users")
GROWTH_MEGABYTES_MAX = 300


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server")) as server:
        sink = server.sink()
        sink.begin("g1", [USERS])
        sink.put(batch("g1", 0, {USERS: (numbered(0, 1_000), [])}))
        sink.publish("g1")
        yield server


def memory_megabytes(pid: int) -> float:
    return int(re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[0]) / 1024


def outcome(server: ServerProcess, text: str) -> tuple[int, str]:
    """The status of an answer, and the code of its error."""
    try:
        server.sql(text)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())["code"]
    return 200, ""


def test_bombs_are_refused_while_the_server_serves_on(server: ServerProcess) -> None:
    assert server.sql("SELECT count(*) FROM users") == [[1_000]]
    before, peak, rounds = memory_megabytes(server.pid), 0.0, 0
    ended = threading.Event()

    def serve_on() -> None:
        nonlocal peak, rounds
        while not ended.wait(0.05):
            assert json.loads(server.get("/healthz"))["status"] == "ok"
            assert len(server.rows("users", "sort=age:desc&limit=5")) == 5
            assert server.sql("SELECT max(_id) FROM users") == [[999]]
            peak = max(peak, memory_megabytes(server.pid))
            rounds += 1

    # Two at a time: as many queries as run at once.
    with ThreadPoolExecutor(2) as hostile, ThreadPoolExecutor(1) as honest:
        serving = honest.submit(serve_on)
        try:
            outcomes = dict(zip(BOMBS, hostile.map(lambda bomb: outcome(server, bomb), BOMBS.values()), strict=True))
        finally:
            ended.set()
        serving.result(60)
    assert set(outcomes.values()) <= {(413, "limit"), (504, "timeout")}, outcomes
    assert peak - before < GROWTH_MEGABYTES_MAX
    assert rounds > 1
    # Nothing of it is left: both places for queries are free, and one process plans for them.
    with ThreadPoolExecutor(2) as honest:
        assert list(honest.map(server.sql, ["SELECT 1", "SELECT 2"])) == [[[1]], [[2]]]
    assert len(server.planners()) == 1
