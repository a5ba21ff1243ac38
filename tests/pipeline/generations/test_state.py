"""Every state of a generation against every event."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest

from livetables.config.values import GenerationsConfig
from livetables.pipeline.generations.state import (
    ENDED,
    EVENTS,
    NEVER,
    STATES,
    TRANSITIONS,
    Event,
    GenerationState,
    next_state,
    to_retire,
)


def test_every_state_is_in_the_table_with_every_event() -> None:
    assert set(TRANSITIONS) == set(STATES) == set(get_args(GenerationState))
    for state, following in TRANSITIONS.items():
        assert set(following) == set(EVENTS) == set(get_args(Event)), state


@pytest.mark.parametrize(("state", "event"), list(product(STATES, EVENTS)))
def test_an_event_leads_to_a_state_or_is_impossible(state: GenerationState, event: Event) -> None:
    if TRANSITIONS[state][event] != NEVER:
        assert next_state(state, event) in STATES
    else:
        with pytest.raises(AssertionError, match=f"{event} cannot happen to a generation that is {state}"):
            next_state(state, event)


def happening_to(state: GenerationState) -> list[Event]:
    return [event for event, after in TRANSITIONS[state].items() if after != NEVER]


def test_every_event_happens_to_some_state() -> None:
    happening = {event for following in TRANSITIONS.values() for event, after in following.items() if after != NEVER}
    assert happening == set(EVENTS)


def test_the_usual_life_ends_retired() -> None:
    state: GenerationState = "building"
    seen = [state]
    events: tuple[Event, ...] = ("query_started", "published", "replaced", "published", "replaced", "dismissed")
    for event in events:
        state = next_state(state, event)
        seen.append(state)
    assert seen == ["building", "catching_up", "live", "lingering", "live", "lingering", "retired"]


def test_every_state_that_is_not_ended_can_end() -> None:
    for state in STATES:
        reached = {state}
        while (
            more := {next_state(each, event) for each in reached for event in happening_to(each)} | reached
        ) != reached:
            reached = more
        assert reached & set(ENDED)


def test_nothing_comes_after_retired() -> None:
    assert happening_to("retired") == []


NOW = 1000.0  # seconds of a monotonic clock


def retired(config: GenerationsConfig, *ages: float) -> list[int]:
    """Which of the generations that have lingered for so many seconds go."""
    return sorted(to_retire([(place, NOW - age) for place, age in enumerate(ages)], NOW, config))


def test_an_old_generation_goes_after_its_time() -> None:
    assert retired(GenerationsConfig(), 1, 7.9) == []
    assert retired(GenerationsConfig(), 1, 8) == [1]
    assert retired(GenerationsConfig(linger_seconds=0), 0) == [0]


def test_more_than_may_linger_go_at_once_the_oldest_first() -> None:
    assert retired(GenerationsConfig(max_lingering=2), 3, 1, 2) == [0]
    assert retired(GenerationsConfig(max_lingering=0), 0) == [0]


def test_all_generations_can_be_kept() -> None:
    many = range(50)
    assert retired(GenerationsConfig(keep_generations=True), *many) == []
    assert retired(GenerationsConfig(keep_generations=True), 1, 900) == [1]
    assert retired(GenerationsConfig(keep_generations=True, retire_after_seconds="never"), 10**9, *many) == []
    assert retired(GenerationsConfig(keep_generations=1, retire_after_seconds="never"), 10**9, 1) == [0]


def test_generations_that_are_kept_stay_for_longer() -> None:
    kept = GenerationsConfig(keep_generations=3)
    assert retired(kept, 1, 100, 899) == []
    assert retired(kept, 1, 100, 900) == [2]
    assert retired(kept, 1, 2, 3, 4) == [3]
