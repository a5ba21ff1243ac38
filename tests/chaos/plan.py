"""Which faults come, in which order and which at once: a pure function of the seed."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.chaos.faults.fault import Fault

AT_ONCE = (1, 1, 2, 2, 3)  # how many faults come together, with equal chances
STEPS_PER_GROUP = 5  # after which everything must have settled


@dataclass(frozen=True)
class Planned:
    """A fault to inject; its own seed decides its details, whatever came before it."""

    number: int
    kind: str
    seed: int


Step = tuple[Planned, ...]  # at the same time
Group = tuple[Step, ...]  # one after the other, and then a check of everything


def planned(seed: int, count: int, faults: Mapping[str, Fault]) -> list[Group]:
    """So many faults, every kind at least once if there is room for it."""
    chance = random.Random(seed)
    kinds, weights = list(faults), [each.weight for each in faults.values()]
    drawn = chance.sample(kinds, len(kinds)) if count >= len(kinds) else []
    drawn += chance.choices(kinds, weights, k=count - len(drawn))
    chance.shuffle(drawn)
    numbered = [Planned(number, kind, chance.randrange(2**32)) for number, kind in enumerate(drawn, 1)]
    steps: list[Step] = []
    while numbered:
        step = _together(numbered[: chance.choice(AT_ONCE)], faults)
        numbered = numbered[len(step) :]
        steps.append(step)
    return [tuple(steps[start : start + STEPS_PER_GROUP]) for start in range(0, len(steps), STEPS_PER_GROUP)]


def _together(wanted: Sequence[Planned], faults: Mapping[str, Fault]) -> Step:
    """The first ones that disturb different parts."""
    disturbed: set[str] = set()
    step: list[Planned] = []
    for each in wanted:
        disturbs = faults[each.kind].disturbs
        if disturbs & disturbed:
            break
        disturbed |= disturbs
        step.append(each)
    return tuple(step)
