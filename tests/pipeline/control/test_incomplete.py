"""When a generation that has not caught up may be shown: only while there is nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from livetables.config.values import GenerationsConfig
from livetables.pipeline.control.orchestrator import Orchestrator
from livetables.pipeline.generations.generation import RunningGeneration
from livetables.pipeline.generations.health import Health
from livetables.pipeline.generations.supervision import RunningGenerations

LONG_AGO = 10_000.0  # seconds, far more than switch_after_seconds


class Stage(Orchestrator):
    """The loop with nothing around it: what it would publish is noted, and nothing is."""

    def __init__(self, live: Any = None, left_over: Any = None) -> None:
        self._running = RunningGenerations(live=live)
        self._left_over = left_over
        self._context = cast(Any, SimpleNamespace(config=SimpleNamespace(generations=GenerationsConfig())))
        self._supervision = cast(Any, SimpleNamespace(count=dict, look=lambda: None))
        self.published: list[str] = []

    def _lost_to(self, successor: RunningGeneration) -> str:  # noqa: ARG002
        return ""

    def _published(self, generation: RunningGeneration) -> bool:
        self.published.append(generation.name)
        return False


def build(read: int) -> Any:
    """A build whose topics had ten records."""
    return SimpleNamespace(
        name="g2",
        state="catching_up",
        mode="micro_batch",
        health=Health(query="running"),
        next_step=lambda: "wait",
        is_working=lambda: True,
        is_following=False,
        has_read_all=read == 10,
        records_read=read,
        progress=SimpleNamespace(records_to_read=10),
        age_seconds=LONG_AGO,
    )


@pytest.mark.parametrize("shown", [{"live": SimpleNamespace(name="g1")}, {"left_over": SimpleNamespace(name="g1")}])
def test_an_incomplete_generation_never_takes_the_place_of_one_that_is_shown(shown: dict[str, Any]) -> None:
    stage = Stage(**shown)
    stage._advance_build(build(read=9))
    assert stage.published == []


def test_while_nothing_is_shown_it_may_be_shown_after_its_time() -> None:
    stage = Stage()
    stage._advance_build(build(read=9))
    assert stage.published == ["g2"]


def test_one_without_a_single_record_is_not_shown() -> None:
    stage = Stage()
    stage._advance_build(build(read=0))
    assert stage.published == []
