"""The difference of two clocks, as found by a question and its answer."""

from __future__ import annotations

import pytest

from livetables.client.clock import Clock


def test_the_difference_is_to_the_middle_of_question_and_answer() -> None:
    clock = Clock.measured(1_000.0, 2_000.0, 1_020.0)
    assert clock.ahead_ms == 990
    assert clock.at(5_000.0) == 5_990
    assert clock.matters
    assert str(clock).startswith("the server's clock is 990 ms ahead of this machine's")
    behind = Clock.measured(1_000.0, 10.0, 1_020.0)
    assert behind.ahead_ms == -1_000
    assert str(behind).startswith("the server's clock is 1,000 ms behind this machine's")


@pytest.mark.parametrize("server", [1_000.0, 1_010.0, 1_020.0])
def test_what_the_time_of_asking_explains_is_no_difference(server: float) -> None:
    clock = Clock.measured(1_000.0, server, 1_020.0)
    assert clock == Clock(0.0)
    assert not clock.matters


def test_a_few_ms_are_allowed_for_but_not_shown() -> None:
    clock = Clock.measured(1_000.0, 1_004.0, 1_001.0)
    assert clock.ahead_ms == 3.5
    assert not clock.matters
