"""Two pipelines on one server: one holds it, the other waits, and one that was passed over writes nothing more."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyarrow import flight

from livetables.model.change import Batch, TableChanges
from livetables.model.errors import RequestError, SinkError
from livetables.model.wire import RUNS_PER_PIPELINE, FramePart, Holder, Receipt
from livetables.pipeline.server_client import ServerClient
from livetables.pipeline.table_server import FencedError, HeldError
from livetables.server.storage.fencing import ADOPTED_MAX
from livetables.server.storage.holding import SILENT_SECONDS, Holding
from tests.support.second_pipeline import SHAPE
from tests.support.server import TOKEN, ServerProcess

pytestmark = pytest.mark.processes

VIEWER = "a-viewers-key"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that pipeline 2 holds."""
    with (
        ServerProcess(tmp_path_factory.mktemp("held")) as server,
        closing(ServerClient(server.flight, TOKEN, number=2)) as sink,
    ):
        sink.begin("g", [SHAPE])
        yield server


class Pipeline:
    """`tests.support.second_pipeline`, in a process of its own."""

    def __init__(self, server: ServerProcess, generation: str) -> None:
        command = [sys.executable, "-m", "tests.support.second_pipeline", server.flight, TOKEN, generation]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def until(self, event: str) -> dict[str, Any]:
        """The next line of an event; others on the way are passed over."""
        assert self.process.stdout
        for line in self.process.stdout:
            found: dict[str, Any] = json.loads(line)
            if found["event"] == event:
                return found
        raise AssertionError(f"it ended without {event}")

    def close(self) -> None:
        self.process.kill()
        self.process.wait(30)
        assert self.process.stdout
        self.process.stdout.close()


def test_the_second_waits_and_says_who_holds_the_server_until_that_has_gone(server: ServerProcess) -> None:
    with closing(Pipeline(server, "a1")) as first:
        first.until("put")
        with closing(Pipeline(server, "a2")) as second:
            problem = second.until("held")["problem"]
            assert f"process {first.process.pid} on {socket.gethostname()}, since 20" in problem
            first.process.kill()
            first.process.wait(30)
            assert second.until("started")["number"]
            assert second.until("put")["batch"] == 0


def test_an_old_one_that_wakes_up_writes_nothing_and_gets_the_name_of_who_holds_the_server(
    server: ServerProcess,
) -> None:
    with closing(Pipeline(server, "b1")) as old:
        old.until("put")
        old.process.send_signal(signal.SIGSTOP)
        with closing(Pipeline(server, "b2")) as new:
            assert new.until("held")
            number = new.until("started")["number"]
            new.until("put")
            before = server.rows("people", "sort=id")
            old.process.send_signal(signal.SIGCONT)
            ended = old.until("ended")
            assert ended["kind"] == "FencedError"
            assert f"belongs to pipeline {number} now: process {new.process.pid} on" in ended["problem"]
            while new.until("put")["batch"] < len(before):
                pass
            ids = [row["id"] for row in server.rows("people", "sort=id")]
            assert ids == list(range(len(ids)))
            assert len(ids) > len(before)


CALLS: dict[str, Callable[[ServerClient], object]] = {
    "begin": lambda sink: sink.begin("g", [SHAPE]),
    "put": lambda sink: sink.put(
        Batch("g", 0, (TableChanges("people", SHAPE.schema.empty_table(), SHAPE.key_schema.empty_table()),))
    ),
    "publish": lambda sink: sink.publish("g"),
    "drop": lambda sink: sink.drop("g"),
    "report": lambda sink: sink.report("g", []),
    "control_requests": lambda sink: sink.control_requests(0),
    "control_settled": lambda sink: sink.control_settled(1, Receipt("control", 0, 0)),
    "control not published": lambda sink: sink.control_settled(1, RequestError("unavailable", "no", "later")),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("number", [1, None], ids=["an older number", "no number"])
def test_every_call_of_another_pipeline_is_refused(held: ServerProcess, call: str, number: int | None) -> None:
    with (
        closing(ServerClient(held.flight, TOKEN, number=number)) as old,
        pytest.raises(FencedError, match="belongs to pipeline 2 now: process"),
    ):
        CALLS[call](old)


def test_a_process_that_starts_its_pipeline_again_takes_over_from_itself(server: ServerProcess) -> None:
    with closing(server.sink()) as one, closing(server.sink()) as other:
        while True:
            try:
                first = one.start_pipeline()
                break
            except HeldError:
                pass
        assert other.start_pipeline() == first + 1
        with pytest.raises(FencedError):
            one.drop("none")


# Numbers that no pipeline has

WRONG_NUMBERS = [3, ADOPTED_MAX + 1, 2**63 - 1, 2**64, int("9" * 200)]


@pytest.fixture
def lost(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server whose store is new."""
    with ServerProcess(tmp_path, {"LIVETABLES_VIEWER_TOKEN": VIEWER}) as server:
        yield server


READS: dict[str, Callable[[flight.FlightClient, flight.FlightCallOptions], object]] = {
    "do_get": lambda client, options: client.do_get(flight.Ticket(b'{"table": "people"}'), options).read_all(),
    "list_flights": lambda client, options: list(client.list_flights(options=options)),
    "get_flight_info": lambda client, options: client.get_flight_info(
        flight.FlightDescriptor.for_path("people"), options
    ),
    "get_schema": lambda client, options: client.get_schema(flight.FlightDescriptor.for_path("people"), options),
}


def test_who_only_reads_takes_the_server_from_no_pipeline_whatever_number_is_sent(lost: ServerProcess) -> None:
    with closing(lost.sink()) as sink, flight.FlightClient(lost.flight) as client:
        assert sink.start_pipeline() == 1
        sink.begin("g", [SHAPE])
        sink.publish("g")
        key = (b"authorization", f"Bearer {VIEWER}".encode())
        for number in (*WRONG_NUMBERS, 0, "x"):
            headers = [key, (b"livetables-pipeline", f"{number}".encode())]
            for read in READS.values():
                read(client, flight.FlightCallOptions(timeout=30, headers=headers))
        sink.publish("g")
        assert sink.start_pipeline() == 2


def test_a_number_that_was_never_given_out_is_refused(lost: ServerProcess) -> None:
    with closing(lost.sink()) as sink:
        assert sink.start_pipeline() == 1
        sink.begin("g", [SHAPE])
        for number in WRONG_NUMBERS:
            with closing(ServerClient(lost.flight, TOKEN, number=number)) as wrong:
                for call in (*CALLS.values(), ServerClient.generations, ServerClient.start_pipeline):
                    with pytest.raises(SinkError):
                        call(wrong)
            assert frame_refusal(lost, number) == "fenced"
        sink.publish("g")
        assert sink.start_pipeline() == 2


def test_a_new_store_takes_no_number_after_which_there_are_none(lost: ServerProcess) -> None:
    for number in WRONG_NUMBERS[1:]:
        with closing(ServerClient(lost.flight, TOKEN, number=number)) as wrong, pytest.raises(SinkError):
            wrong.begin("g", [SHAPE])
        assert frame_refusal(lost, number) == "fenced"
    with closing(lost.sink()) as sink:
        assert sink.start_pipeline() == 1


def test_a_new_store_takes_the_number_of_the_pipeline_that_runs_and_no_other_one(lost: ServerProcess) -> None:
    with (
        closing(ServerClient(lost.flight, TOKEN, number=ADOPTED_MAX)) as running,
        closing(ServerClient(lost.flight, TOKEN, number=ADOPTED_MAX - 1)) as older,
    ):
        running.begin("g", [SHAPE])
        with pytest.raises(FencedError):
            older.drop("g")
        running.publish("g")
        assert running.start_pipeline() == ADOPTED_MAX + 1
        running.publish("g")


def frame_refusal(server: ServerProcess, number: int) -> str:
    """The code of the error that a frame of a pipeline gets."""
    with pytest.raises(urllib.error.HTTPError) as refused:
        server.send_frame(FramePart("g", number * RUNS_PER_PIPELINE, 0, "a", 0, 0, True, 0, (), {}))
    with refused.value as error:
        code: str = json.loads(error.read())["code"]
        return code


# Who holds a server, without one


ME = Holder("here", 1, "machine", "2026-01-31T12:00:00+00:00")
OTHER = Holder("there", 1, "container", "2026-01-31T12:00:00+00:00")


@pytest.mark.parametrize(
    ("seconds", "newcomer", "replaces", "is_free"),
    [
        (0.0, OTHER, None, False),
        (SILENT_SECONDS, OTHER, None, False),
        (SILENT_SECONDS + 0.1, OTHER, None, True),
        (0.0, ME, None, True),  # itself
        (0.0, OTHER, ME.process, True),  # known to be dead
        (0.0, OTHER, "container/1", False),
        (0.0, None, None, True),  # tools
    ],
)
def test_a_server_is_free_when_its_pipeline_was_not_heard_for_a_while(
    seconds: float, newcomer: Holder | None, replaces: str | None, is_free: bool
) -> None:
    now = 1000.0
    holding = Holding(lambda: now)
    assert holding.is_free_for(newcomer, None)
    holding.taken_by(ME)
    now += seconds
    assert holding.is_free_for(newcomer, replaces) == is_free


def test_a_server_that_was_started_again_learns_who_holds_it_from_the_next_call() -> None:
    holding = Holding(lambda: 0.0)
    holding.heard(ME)
    assert holding.holder == ME
    assert not holding.is_free_for(OTHER, None)
