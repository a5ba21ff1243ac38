"""A piece of `python -m tests.chaos`, with a fixed seed: everything at once, and nothing lost, doubled or wrong."""

from __future__ import annotations

import random

import pytest

from tests.chaos.faults import FAULTS, QUICK
from tests.chaos.plan import planned
from tests.chaos.report import Report
from tests.chaos.run import run_faults
from tests.chaos.subject import running

SEED = 18
COUNT = 20


@pytest.mark.spark
@pytest.mark.kafka
def test_whatever_befalls_it_every_table_is_the_oracles_and_every_client_has_it() -> None:
    quick = {kind: FAULTS[kind] for kind in QUICK}
    report = Report(SEED)
    with running(random.Random(SEED)) as subject:
        run_faults(subject, planned(SEED, COUNT, quick), report)
    assert report.is_clean, "\n".join(report.lines())
    assert len(report.injected) == COUNT
    assert report.frames, "no client has seen anything"


def test_a_plan_is_a_function_of_its_seed() -> None:
    assert planned(7, 200, FAULTS) == planned(7, 200, FAULTS)
    assert planned(7, 200, FAULTS) != planned(8, 200, FAULTS)


def test_a_plan_has_every_fault_and_none_together_that_disturb_the_same_part() -> None:
    steps = [step for group in planned(7, 1000, FAULTS) for step in group]
    faults = [each for step in steps for each in step]
    assert [each.number for each in faults] == list(range(1, 1001))
    assert {each.kind for each in faults} == FAULTS.keys()
    for step in steps:
        disturbed = [part for each in step for part in FAULTS[each.kind].disturbs]
        assert len(disturbed) == len(set(disturbed)), step
