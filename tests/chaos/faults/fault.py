"""A kind of fault: what it does, what it disturbs, and how often it comes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos.subject import Subject

Inject = Callable[[Subject, random.Random], str]


@dataclass(frozen=True)
class Fault:
    """`inject` makes the fault, lets it last, takes it back, and returns in a few words what exactly it was.

    Faults that disturb the same part never come at the same time.
    """

    kind: str
    inject: Inject
    disturbs: frozenset[str]
    weight: float  # how often it comes, beside the others
    is_quick: bool = True  # whether everything works again within seconds


def fault(kind: str, inject: Inject, disturbs: str, weight: float, *, is_quick: bool = True) -> Fault:
    return Fault(kind, inject, frozenset(disturbs.split()), weight, is_quick)
