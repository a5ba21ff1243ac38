"""What is done next with a generation, for every health that it can have."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import get_args

import pytest

from livetables.pipeline.generations.health import (
    DELAY_SECONDS_MAX,
    TRIES,
    Death,
    Health,
    QueryState,
    Step,
    next_step,
)
from livetables.pipeline.generations.state import BUILDS, STATES, GenerationState

NOW = 1000.0
RUNNING = Health().tried().running()
DIED = RUNNING.died(Death("out of memory"), NOW)
FAILED = Health(tries=TRIES, starts=TRIES, trouble="it dies", retry_at=NOW + 1)
DAMAGED = replace(FAILED, is_checkpoint_doubted=True)


@pytest.mark.parametrize(
    ("state", "health", "step"),
    [
        ("building", Health(), "start"),
        ("live", Health(), "start"),
        ("catching_up", RUNNING, "wait"),
        ("live", RUNNING, "wait"),
        ("live", replace(RUNNING, query="died"), "record_death"),
        ("live", replace(RUNNING, query="died", outdated="its topic was created again"), "record_death"),
        ("catching_up", DIED, "wait"),
        ("catching_up", replace(DIED, retry_at=NOW), "restart"),
        ("catching_up", replace(DIED, retry_at=NOW, blocked="no such topic"), "wait"),
        ("catching_up", replace(DIED, retry_at=NOW, outdated="its topic was created again"), "replace"),
        ("catching_up", FAILED, "give_up"),
        ("catching_up", DAMAGED, "give_up"),
        ("catching_up", replace(FAILED, retry_at=NOW), "restart"),
        ("lingering", FAILED, "give_up"),
        ("lingering", replace(RUNNING, outdated="the server has lost its tables"), "replace"),
        ("live", FAILED, "report_failure"),
        ("failed", FAILED, "wait"),
        ("failed", replace(FAILED, retry_at=NOW), "restart"),
        ("live", DAMAGED, "set_checkpoint_aside"),
        ("failed", DAMAGED, "set_checkpoint_aside"),
        ("live", replace(DAMAGED, outdated="its checkpoint is damaged"), "report_failure"),
        ("failed", replace(DAMAGED, outdated="its checkpoint is damaged"), "replace"),
        ("live", replace(DIED, blocked="no such topic"), "report_failure"),
        ("live", replace(RUNNING, blocked="no such topic"), "wait"),
        ("failed", replace(RUNNING, query="steady"), "forget_failures"),
        ("live", replace(RUNNING, query="steady").working(), "wait"),
        ("catching_up", replace(RUNNING, next_mode="real_time"), "change_mode"),
        ("live", replace(RUNNING, has_wrong_batches=True), "change_mode"),
        ("live", replace(DIED, next_mode="real_time"), "wait"),
    ],
)
def test_the_next_step(state: GenerationState, health: Health, step: Step) -> None:
    assert next_step(state, health, NOW) == step


def every_health() -> list[Health]:
    queries: tuple[QueryState, ...] = get_args(QueryState)
    return [
        Health(
            query=query,
            next_mode="real_time" if changes else "micro_batch",
            tries=tries,
            starts=tries,
            retry_at=retry_at,
            is_checkpoint_doubted=doubted,
            blocked=blocked,
            outdated=outdated,
        )
        for query, changes, tries, retry_at, doubted, blocked, outdated in product(
            queries, (False, True), (0, 1, TRIES), (NOW, NOW + 1), (False, True), (None, "b"), (None, "o")
        )
    ]


@pytest.mark.parametrize("state", STATES)
def test_in_every_health_there_is_one_step_that_suits_it(state: GenerationState) -> None:
    for health in every_health():
        step = next_step(state, health, NOW)
        assert step in get_args(Step)
        if step in ("start", "restart"):
            assert not health.has_query
            assert not health.blocked
            assert not health.outdated
            assert health.retry_at <= NOW
        if step in ("record_death", "forget_failures", "change_mode"):
            assert health.has_query
        if step == "give_up":
            assert health.has_failed
            assert state not in ("live", "failed"), "what is shown is never given up"
        if step == "set_checkpoint_aside":
            assert health.is_checkpoint_doubted
            assert state in ("live", "failed"), "a build is removed with its checkpoint"
        if step == "replace":
            assert health.outdated
        if step == "report_failure":
            assert state == "live"


@pytest.mark.parametrize("state", [*BUILDS, "live", "lingering"])
def test_a_query_that_dies_again_and_again_is_tried_a_few_times(state: GenerationState) -> None:
    health, now, steps = Health(), NOW, list[Step]()
    while (step := next_step(state, health, now)) not in ("give_up", "report_failure"):
        steps.append(step)
        match step:
            case "start" | "restart":
                health = replace(health.tried().running(), query="died")
            case "record_death":
                health = health.died(Death("it dies"), now)
            case _:
                assert step == "wait"
                now = health.retry_at
    assert [step for step in steps if step != "wait"] == [
        "start",
        "record_death",
        *["restart", "record_death"] * (TRIES - 1),
    ]


def test_each_restart_is_later_than_the_one_before_up_to_a_limit() -> None:
    health, delays = Health(), []
    for _ in range(10):
        health = health.tried().running().died(Death("it dies"), NOW)
        delays.append(health.retry_at - NOW)
    assert delays == sorted(delays)
    assert delays[0] < delays[1] < delays[-1] == DELAY_SECONDS_MAX


def test_a_query_that_works_is_as_good_as_new() -> None:
    assert DIED.tried().running().working().problem is None
    assert not replace(FAILED.tried().running().working(), query="none").has_failed


def test_the_first_reason_why_it_can_never_be_right_again_stays() -> None:
    first = Health().outdated_by("its topic was created again")
    assert first.outdated_by("the server has lost its tables").outdated == "its topic was created again"
    assert first.outdated_by(None) == first
    assert RUNNING.died(Death("gone", outdated="Kafka has lost records"), NOW).outdated == "Kafka has lost records"


def test_topics_that_cannot_be_read_delay_a_start_and_those_that_can_do_not() -> None:
    blocked = DIED.blocked_by("no such topic", retry_at=NOW + 2)
    assert blocked.problem == "no such topic"
    assert not blocked.is_start_due(NOW + 1.9)
    assert blocked.is_start_due(NOW + 2), "and then they are checked again"
    assert next_step("catching_up", blocked, NOW + 2) == "wait"
    assert next_step("catching_up", blocked.blocked_by(None, retry_at=NOW + 4), NOW + 2) == "restart"
