"""`livetables tables`, `sql` and `tail`: what they show of a real server, in a terminal and in a pipe."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from livetables.cli.latency import latency_lines, latency_object
from livetables.client import Clock, Latency
from livetables.client.latency import Percentiles
from livetables.pipeline.server_client import ServerClient
from tests.support import frames
from tests.support.kafka import wait_until
from tests.support.server import TOKEN, ServerProcess
from tests.support.tables import APPENDS, EPOCH, KEYED, batch
from tests.support.up import COMMAND, clean_environment

pytestmark = pytest.mark.processes

WAIT_SECONDS = 60.0


def row(number: int, name: str | None = "Ann") -> dict[str, Any]:
    return {"_id": number, "name": name, "age": 30 + number, "balance": number / 2, "active": True, "ts": EPOCH}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def sink(server: ServerProcess) -> Iterator[ServerClient]:
    sink = server.sink()
    yield sink
    sink.close()


@pytest.fixture(autouse=True)
def generation(sink: ServerClient) -> str:
    """A generation of the test's own, which is what the tables are."""
    return published(sink, [row(number) for number in range(20)])


def published(sink: ServerClient, rows: list[dict[str, Any]]) -> str:
    name = f"g-{uuid4().hex}"
    sink.begin(name, [APPENDS, KEYED])
    sink.put(batch(name, 0, {APPENDS: (rows, []), KEYED: ([row(1)], [])}))
    sink.publish(name)
    return name


def environment(server: ServerProcess) -> dict[str, str]:
    return clean_environment(LIVETABLES_TOKEN=TOKEN, LIVETABLES_SERVER_PORT=server.http.rpartition(":")[2])


def run(server: ServerProcess, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        env=environment(server),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )


@contextmanager
def lines_of(server: ServerProcess, directory: Path, *arguments: str) -> Iterator[Callable[[int], list[str]]]:
    """A verb that goes on, and what it has printed: given how many lines to wait for, those that are there then."""
    output = directory / "output"
    with output.open("w") as file:
        process = subprocess.Popen([*COMMAND, *arguments], env=environment(server), stdout=file)

    def printed(count: int) -> list[str]:
        def are_there() -> bool:
            assert process.poll() is None, "it has ended"
            return output.read_text().count("\n") >= count

        wait_until(are_there, f"{count} lines are printed", WAIT_SECONDS)
        return output.read_text().splitlines()

    try:
        yield printed
    finally:
        process.kill()
        process.wait()


def in_terminal(server: ServerProcess, *arguments: str, until: str | None = None) -> str:
    """What a verb shows in a terminal of 100 columns: all of it, or until some text is there and it is interrupted."""
    process, terminal = pty.fork()
    if process == 0:
        os.execvpe(COMMAND[0], [*COMMAND, *arguments], {**environment(server), "COLUMNS": "100", "TERM": "xterm"})  # noqa: S606
    shown = b""

    def is_there() -> bool:
        nonlocal shown
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                shown += os.read(terminal, 65_536)
            except OSError:  # the terminal was closed: it has ended
                return True
        return until is not None and until in shown.decode(errors="replace")

    try:
        wait_until(is_there, f"{until or 'the end'} is shown", WAIT_SECONDS)
    finally:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGINT)
        os.waitpid(process, 0)
        os.close(terminal)
    return shown.decode(errors="replace")


def test_tables_are_listed_with_rows_and_columns(server: ServerProcess, generation: str) -> None:
    done = run(server, "tables")
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("appends"))
    assert line.split()[:3] == ["appends", "20", generation]
    assert "name, age, balance, active, ts" in done.stdout
    assert "_id" not in done.stdout
    found = {each["name"]: each for each in json.loads(run(server, "tables", "--json").stdout)}
    assert found["keyed"]["columns"]["_id"] == "int64"


def test_sql_in_a_pipe_is_lines_with_tabs(server: ServerProcess) -> None:
    done = run(server, "sql", "SELECT name, age, NULL AS nothing, ts FROM appends WHERE age < 32 ORDER BY age")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "name\tage\tnothing\tts",
        "Ann\t30\t\t2026-01-31T12:00:00.000Z",
        "Ann\t31\t\t2026-01-31T12:00:00.000Z",
    ]


def test_sql_as_json_from_the_input(server: ServerProcess) -> None:
    done = run(server, "sql", "--json", "-", stdin="SELECT count(*) AS n, 'NaN'::DOUBLE AS x FROM appends")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [{"n": 20, "x": "NaN"}]


def test_sql_in_a_terminal_counts_its_rows(server: ServerProcess) -> None:
    shown = in_terminal(server, "sql", "SELECT a.name FROM appends a, appends b")
    assert "(400 rows, 300 of them not shown)" in shown
    assert shown.count("Ann") == 100


def test_columns_that_the_screen_has_no_room_for_are_named(server: ServerProcess) -> None:
    wide = ", ".join(f"'{'字' * 20}' AS column_{number}" for number in range(5))
    shown = in_terminal(server, "sql", f"SELECT {wide} FROM appends LIMIT 1")
    assert shown.count("字" * 15 + " …") == 2  # 32 of 100 columns each, and two between them
    assert "(1 rows, no room for column_2, column_3, column_4)" in shown


def test_wrong_sql_is_an_error_that_names_the_cure(server: ServerProcess) -> None:
    for query, problem in (("SELEC 1", "SELEC"), (" ", "empty"), ("SELECT * FROM nowhere", "nowhere")):
        done = run(server, "sql", query)
        assert done.returncode == 2
        assert problem in done.stderr
        assert "cure: " in done.stderr


def test_tail_begins_with_the_last_rows_and_goes_on_through_a_swap(
    server: ServerProcess, sink: ServerClient, generation: str, tmp_path: Path
) -> None:
    with lines_of(server, tmp_path, "tail", "appends", "-n", "2", "--columns", "name,age") as printed:
        assert printed(3) == ["name\tage", "Ann\t48", "Ann\t49"]
        sink.put(batch(generation, 1, {APPENDS: ([row(20, "Bob\tB.\n"), row(21, None)], [])}))
        assert printed(5)[3:] == ["Bob B. \t50", "\t51"]
        published(sink, [row(number, "Cid") for number in range(4)])
        assert printed(7)[5:] == ["Cid\t32", "Cid\t33"]


def test_tail_as_json_has_deletes_and_generations(
    server: ServerProcess, sink: ServerClient, generation: str, tmp_path: Path
) -> None:
    with lines_of(server, tmp_path, "tail", "keyed", "--json") as printed:
        printed(2)
        sink.put(batch(generation, 1, {KEYED: ([row(2, "Bob")], [{"name": "Ann", "age": 31}])}))
        changes = [json.loads(line) for line in printed(4)]
    assert changes[0] == {"op": "generation", "generation": generation}
    assert changes[1]["row"] == {**row(1), "ts": "2026-01-31T12:00:00.000Z"}
    assert changes[2] == {"op": "delete", "key": {"name": "Ann", "age": 31}}
    assert (changes[3]["op"], changes[3]["row"]["name"]) == ("upsert", "Bob")


def test_tail_in_a_terminal_shows_rows_in_place(server: ServerProcess) -> None:
    shown = in_terminal(server, "tail", "appends", "-n", "3", until="9.5")
    assert "appends  20 rows" in shown
    assert "balance" in shown
    assert "8.0" not in shown


def test_tail_of_what_is_not_there_names_what_is(server: ServerProcess) -> None:
    for arguments, problem in (
        (["apends"], '"appends"'),
        (["appends", "--columns", "nme"], '"name"'),
        (["keyed", "-n", "-1"], "-n"),
        (["keyed", "--latency", "-n", "3"], "leave -n"),
        (["kyed", "--latency"], '"keyed"'),
    ):
        done = run(server, "tail", *arguments)
        assert done.returncode == 2
        assert problem in done.stderr


# Latencies


@pytest.fixture
def sending(server: ServerProcess, sink: ServerClient) -> Callable[[], None]:
    """Sends a record that left Spark 400 ms after its Kafka timestamp, to a generation that frames can be sent to."""
    generation = f"g-{uuid4().hex}"
    sink.begin(generation, frames.SHAPES)
    sink.publish(generation)
    number = count()

    def send() -> None:
        record = frames.Record("users", 0, next(number), None, 1)
        kafka = int(time.time() * 1000) - 2_000
        emitted, marks = frames.Operator().process(record), frames.marks_of([record])
        times = {"kafka_ms": kafka, "sent_ms": kafka + 400}
        server.send_frame(frames.part(emitted, marks, generation=generation, frame=record.offset, **times))

    return send


def test_tail_latency_in_a_pipe_is_a_line_now_and_then(
    server: ServerProcess, sending: Callable[[], None], tmp_path: Path
) -> None:
    with lines_of(server, tmp_path, "tail", "--latency", "users_ui") as printed:
        assert printed(1)[0] == "Kafka to here: no records came in the last minute"
        sending()
        wait_until(lambda: "p50" in printed(1)[-1], "the latency is printed", WAIT_SECONDS)
        line = printed(1)[-1]
    assert re.fullmatch(
        r"Kafka to here: p50 [\d,]+ ms, p99 [\d,]+ ms; Kafka to out of Spark: p50 400 ms, p99 400 ms; "
        r"Spark to applied: .*; applied to sent: .*; sent to here: p50 [\d,]+ ms, p99 [\d,]+ ms",
        line,
    )


def test_tail_latency_as_json_is_an_object_a_line(
    server: ServerProcess, sending: Callable[[], None], tmp_path: Path
) -> None:
    with lines_of(server, tmp_path, "tail", "--latency", "--json", "users_ui") as printed:
        empty = json.loads(printed(1)[0])
        sending()
        wait_until(lambda: bool(json.loads(printed(1)[-1])["changes"]), "the latency is printed", WAIT_SECONDS)
        latency = json.loads(printed(1)[-1])
    assert empty == {
        "table": "users_ui",
        "changes": 0,
        "p50": None,
        "p99": None,
        "phases": None,
        "clock_ahead_ms": 0.0,
    }
    assert (latency["changes"], latency["phases"]["kafka_to_spark"]) == (1, {"p50": 400, "p99": 400})
    assert list(latency["phases"]) == ["kafka_to_spark", "spark_to_applied", "applied_to_sent", "sent_to_received"]
    assert latency["p50"] == pytest.approx(sum(phase["p50"] for phase in latency["phases"].values()), abs=0.1)


def test_tail_latency_in_a_terminal_shows_it_in_place(server: ServerProcess, sending: Callable[[], None]) -> None:
    stopped = threading.Event()

    def send_all() -> None:  # it is not known when the follower's place is taken
        while not stopped.wait(0.2):
            sending()

    feeding = threading.Thread(target=send_all)
    feeding.start()
    try:
        shown = in_terminal(server, "tail", "--latency", "users_ui", until="sent to here: p50")
    finally:
        stopped.set()
        feeding.join()
    assert "Kafka to out of Spark: p50 400 ms, p99 400 ms" in shown
    assert "users_ui  " in shown


def test_a_difference_of_clocks_is_shown_where_it_matters() -> None:
    latency = Latency(2, Percentiles(28.4, 1_060.0), {"kafka_to_spark": Percentiles(14.0, 30.0)})
    assert latency_lines(latency, Clock(2.0)) == [
        "Kafka to here: p50 28 ms, p99 1,060 ms",
        "Kafka to out of Spark: p50 14 ms, p99 30 ms",
    ]
    assert "the server's clock is 250 ms behind" in latency_lines(latency, Clock(-250.0))[-1]
    assert latency_object("t", latency, Clock(-250.0))["clock_ahead_ms"] == -250


def test_a_reader_that_has_enough_ends_it_quietly(server: ServerProcess) -> None:
    query = "SELECT a.* FROM appends a, appends b, appends c, appends d LIMIT 50000"
    command = f"{' '.join(COMMAND)} sql '{query}' | head -1"
    done = subprocess.run(
        ["bash", "-c", command],
        env=environment(server),
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert (done.stdout.count("\n"), done.stderr) == (1, "")
