"""What dies is started again, ever later; what refuses to run ends everything. The children here are fakes."""

from __future__ import annotations

import errno
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from livetables.client.local_system import Addresses, LocalSystem
from livetables.local.supervisor import Ending, Supervisor, next_delay_seconds
from livetables.model.errors import LivetablesError, SetupError


class FakeChild:
    """No process: it lives from `start` until the test says how it ended."""

    def __init__(self, name: str, journal: list[str] | None = None) -> None:
        self.name = name
        self.log = Path(f"{name}.log")
        self.lives = 0
        self.ending: Ending | None = None
        self.refuses_to_start: LivetablesError | OSError | None = None
        self._journal = [] if journal is None else journal

    @property
    def pid(self) -> int | None:
        return self.lives if self.lives and not self.ending else None

    def start(self) -> None:
        if self.refuses_to_start:
            raise self.refuses_to_start
        self.lives += 1
        self.ending = None
        self._journal.append(f"start {self.name}")

    def ended(self) -> Ending | None:
        return self.ending

    def stop(self) -> None:
        self._journal.append(f"stop {self.name}")


class Watched:
    """A supervisor with a clock that the test moves, or that ticks by itself with each look at it."""

    def __init__(self, tick: float = 0.0) -> None:
        self.now = 0.0
        self._tick = tick
        self.notices: list[str] = []
        self.pids: list[dict[str, int]] = []
        self.supervisor = Supervisor(threading.Event(), self.notices.append, self.pids.append, self._clock)

    def _clock(self) -> float:
        self.now += self._tick
        return self.now

    def start(self, child: FakeChild) -> FakeChild:
        self.supervisor.start(child)
        self.supervisor.wait(child, lambda: True)
        return child

    def seconds_until_alive(self, child: FakeChild) -> float:
        """How long it takes until the child is started again, in steps of a tenth of a second."""
        lives, before = child.lives, self.now
        while child.lives == lives:
            self.supervisor.look()
            self.now = round(self.now + 0.1, 1)
        return round(self.now - 0.1 - before, 1)


REFUSAL = Ending("ended: no key", SetupError("no key", "set one"))


def test_each_wait_is_twice_the_one_before_up_to_half_a_minute() -> None:
    watched = Watched()
    child = watched.start(FakeChild("server"))
    waits = []
    for _ in range(7):
        child.ending = Ending("was killed by SIGKILL")
        waits.append(watched.seconds_until_alive(child))
    assert waits == [1, 2, 4, 8, 16, 30, 30]


def test_a_minute_of_health_makes_the_next_wait_short_again() -> None:
    assert next_delay_seconds(16, lived_seconds=59) == 30
    assert next_delay_seconds(16, lived_seconds=60) == 1


def test_what_happened_is_reported_in_one_line_with_the_cause_and_the_log() -> None:
    watched = Watched()
    child = watched.start(FakeChild("server"))
    child.ending = Ending("was killed by SIGKILL")
    watched.supervisor.look()
    assert watched.notices == ["the server was killed by SIGKILL; starting it again in 1 s (its log: server.log)"]


def test_the_process_ids_are_reported_whenever_they_change() -> None:
    watched = Watched()
    watched.start(FakeChild("broker"))
    child = watched.start(FakeChild("server"))
    child.ending = Ending("was killed by SIGKILL")
    watched.seconds_until_alive(child)
    assert watched.pids == [{"broker": 1}, {"broker": 1, "server": 1}, {"broker": 1}, {"broker": 1, "server": 2}]


def test_a_child_that_refuses_to_run_before_it_was_ready_ends_everything_with_its_own_error() -> None:
    watched = Watched()
    child = FakeChild("pipeline")

    def never_ready() -> bool:
        child.ending = REFUSAL
        return False

    watched.supervisor.start(child)
    with pytest.raises(SetupError, match="no key") as failure:
        watched.supervisor.wait(child, never_ready)
    assert failure.value.cure == "set one"


def test_a_child_that_crashes_before_it_was_ready_is_started_again() -> None:
    watched = Watched(tick=0.5)
    child = FakeChild("pipeline")

    def ready_in_its_second_life() -> bool:
        if child.lives == 1:
            child.ending = Ending("ended with code 1")
        return child.lives == 2

    watched.supervisor.start(child)
    watched.supervisor.wait(child, ready_in_its_second_life)
    assert child.lives == 2


def test_a_child_that_refuses_to_run_later_is_started_again() -> None:
    watched = Watched()
    child = watched.start(FakeChild("pipeline"))
    child.ending = REFUSAL
    assert watched.seconds_until_alive(child) == 1


def test_a_refusal_while_another_child_was_down_is_not_the_end() -> None:
    watched = Watched(tick=0.5)
    server = watched.start(FakeChild("server"))
    pipeline = FakeChild("pipeline")

    def ready_in_its_second_life() -> bool:
        if pipeline.lives == 1 and server.lives == 1:
            server.ending, pipeline.ending = Ending("was killed by SIGKILL"), REFUSAL
        return pipeline.lives == 2

    watched.supervisor.start(pipeline)
    watched.supervisor.wait(pipeline, ready_in_its_second_life)
    assert server.lives == 2


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (SetupError("its port is taken", "free it"), "its port is taken"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
    ],
)
def test_a_child_that_cannot_be_started_again_is_tried_later(error: LivetablesError | OSError, problem: str) -> None:
    watched = Watched()
    child = watched.start(FakeChild("broker"))
    child.ending = Ending("was killed by SIGKILL")
    watched.supervisor.look()
    child.refuses_to_start = error
    watched.now += 1
    watched.supervisor.look()
    assert "could not be started: " in watched.notices[-1]
    assert f"{problem}; starting it again in 2 s" in watched.notices[-1]
    child.refuses_to_start = None
    assert watched.seconds_until_alive(child) == 2


def test_children_are_stopped_the_last_one_first() -> None:
    watched = Watched()
    journal: list[str] = []
    for name in ("broker", "server", "pipeline"):
        watched.start(FakeChild(name, journal))
    watched.supervisor.stop_all()
    assert journal[3:] == ["stop pipeline", "stop server", "stop broker"]


def test_children_that_are_started_together_do_not_wait_for_each_other_and_are_stopped_in_order() -> None:
    watched = Watched()
    journal: list[str] = []
    watched.supervisor.start(*(FakeChild(name, journal) for name in ("broker", "server", "pipeline")))
    watched.supervisor.stop_all()
    assert journal[:3] == ["start pipeline", "start server", "start broker"], "the one that takes longest is the last"
    assert journal[3:] == ["stop pipeline", "stop server", "stop broker"]


def test_a_child_that_refuses_to_run_while_another_is_waited_for_ends_everything() -> None:
    watched = Watched()
    server, pipeline = FakeChild("server"), FakeChild("pipeline")
    watched.supervisor.start(server, pipeline)

    def never_ready() -> bool:
        pipeline.ending = REFUSAL
        return False

    with pytest.raises(SetupError, match="no key"):
        watched.supervisor.wait(server, never_ready)


def test_a_child_that_never_started_is_stopped_too() -> None:
    watched = Watched()
    journal: list[str] = []
    child = FakeChild("broker", journal)
    child.refuses_to_start = SetupError("no Java", "install it")
    with pytest.raises(SetupError, match="no Java"):
        watched.start(child)
    watched.supervisor.stop_all()
    assert journal == ["stop broker"]


def test_what_cannot_be_written_ends_nothing_and_is_written_later(tmp_path: Path) -> None:
    running = LocalSystem(Addresses("a:1", "http://b:2", "grpc://c:3"), "the key")
    notices: list[str] = []
    obstacle = tmp_path / "up.json.draft"
    obstacle.mkdir()  # as a full disk, it keeps the file from being written
    supervisor = Supervisor(threading.Event(), notices.append, lambda pids: replace(running, pids=pids).write(tmp_path))
    supervisor.start(FakeChild("server"))
    supervisor.look()
    assert LocalSystem.read(tmp_path) is None
    assert [line for line in notices if "process ids cannot be written" in line] == notices[:1]
    obstacle.rmdir()
    supervisor.look()
    assert LocalSystem.read(tmp_path) == replace(running, pids={"server": 1})
