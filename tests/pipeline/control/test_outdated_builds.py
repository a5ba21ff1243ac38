"""Builds that can never be right: others are tried, ever later, and in the end the message has failed.

Nothing that a test can do to a real system makes each of its builds such a one, so builds and clock are made here.
"""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from livetables.config.load import load_config
from livetables.pipeline.control import orchestrator as module
from livetables.pipeline.control.orchestrator import REBUILD_SECONDS, REBUILD_SECONDS_MAX, Orchestrator
from livetables.pipeline.generations.generation import RunningGeneration
from livetables.pipeline.generations.health import TRIES, Health
from livetables.pipeline.generations.supervision import RunningGenerations
from livetables.pipeline.generations.wanted import Wanted

BEFORE = Wanted.by(load_config(None, {}).spec)
WANTED = Wanted({**BEFORE.topics, "users": "user_2"}, BEFORE.joins)
WHY = "the server does not take its frames"


class Decided:
    """One message that waits for what it asks for."""

    undecided = ()

    def __init__(self) -> None:
        self.wanted = WANTED
        self.are_waiting = True
        self.outcome: tuple[str, str] | None = None

    def failed(self, outcome: str, reason: str) -> None:
        self.outcome, self.wanted, self.are_waiting = (outcome, reason), BEFORE, False


class Stage(Orchestrator):
    """The loop with nothing around it: a build that is begun can never be right."""

    def __init__(self) -> None:
        live = cast(Any, SimpleNamespace(name="g1", wanted=BEFORE, health=Health(), is_held=False))
        self._running = RunningGenerations(live=live)
        self._left_over = None
        self.decided = Decided()
        self._decisions = cast(Any, self.decided)
        self._reporter = cast(Any, SimpleNamespace(is_due_now=lambda: None))
        self._supervision = cast(Any, SimpleNamespace(start=lambda _: None))
        self._context = cast(Any, None)
        self._spec = load_config(None, {}).spec
        self._built_last = self._postponed = None
        self._builds_failed = self._last_number = 0
        self._build_due = 0.0
        self.ended: list[str] = []

    def _looked_at(self, _: Wanted) -> Any:
        return {}

    def _fingerprint(self, *_: Any) -> str:
        return "00000000"

    def _end(self, generation: RunningGeneration, event: Any, why: str | None) -> None:
        assert why == WHY
        self.ended.append(event)
        assert generation is self._running.build


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def never_right(_: Any, name: str, wanted: Wanted, __: Any) -> Any:
        return SimpleNamespace(
            name=name,
            wanted=wanted,
            health=Health(outdated=WHY),
            progress=SimpleNamespace(records_to_read=0),
        )

    monkeypatch.setattr(module, "RunningGeneration", never_right)
    return now


def rounds(stage: Stage, clock: list[float], seconds: float) -> list[float]:
    """Let the loop go round eight times a second; when builds were begun."""
    begun, number = [], 0
    for _ in range(int(seconds * 8)):
        stage._advance()
        if stage._last_number != number:
            number = stage._last_number
            begun.append(clock[0])
        clock[0] += 0.125
    return begun


def test_a_message_whose_builds_can_never_be_right_has_failed_after_some(clock: list[float]) -> None:
    stage = Stage()
    begun = rounds(stage, clock, 30)
    assert len(begun) == TRIES
    assert all(after - before >= REBUILD_SECONDS for before, after in pairwise(begun))
    assert stage.ended == ["dismissed"] * (TRIES - 1) + ["build_failed"]
    assert stage.decided.outcome == ("failed", WHY)


def test_what_has_to_be_built_nevertheless_is_tried_ever_later(clock: list[float]) -> None:
    """No message waits, and what is shown can never be right again: nobody could be told that it has failed."""
    stage = Stage()
    stage._running.live = None
    stage.decided.are_waiting = False
    begun = rounds(stage, clock, 600)
    waits = [after - before for before, after in pairwise(begun)]
    assert waits == sorted(waits)
    assert REBUILD_SECONDS <= waits[0] < 2 * REBUILD_SECONDS
    assert REBUILD_SECONDS_MAX <= waits[-1] < REBUILD_SECONDS_MAX + 1
    assert set(stage.ended) == {"dismissed"}


def test_another_message_is_built_at_once(clock: list[float]) -> None:
    stage = Stage()
    for _ in range(2):
        stage._advance()
    clock[0] += 0.1
    stage.decided.wanted = Wanted({**BEFORE.topics, "users": "user_3"}, BEFORE.joins)
    stage._advance()
    assert stage._last_number == 2
