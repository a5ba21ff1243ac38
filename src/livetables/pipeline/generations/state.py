"""The states of a generation with every event, as a total table; and when an old generation is removed. Pure.

building ─► catching_up ─► live ⇄ lingering ─► retired
    │            │           ↑↓       ↓           ↑
    │            │           └──── kept ──────────┘
    └────────────┴───────────┴───────────────► failed
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, TypeVar, get_args

from livetables.config.values import GenerationsConfig

GenerationState = Literal["building", "catching_up", "live", "lingering", "kept", "retired", "failed"]
Event = Literal[
    "query_started",  # the query of a build runs
    "build_failed",  # its query died again and again, or its records do not match its tables
    "published",  # it has taken over the stable names: it had caught up, its time was up, or it was rolled back to
    "replaced",  # another generation was published
    "query_failed",  # the query of the live generation died again and again, or its topics cannot be read
    "query_recovered",  # the query of the live generation works again
    "dismissed",  # it is not wanted any more, or its time to linger is over
    "kept_for_its_records",  # its time to linger is over, and it has records that Kafka no longer has
    "discarded",  # a control message says that those records are not needed
]

STATES: tuple[GenerationState, ...] = get_args(GenerationState)
EVENTS: tuple[Event, ...] = get_args(Event)
BUILDS: tuple[GenerationState, ...] = ("building", "catching_up")
ENDED: tuple[GenerationState, ...] = ("retired", "failed")

CannotHappen = Literal["cannot happen"]
NEVER: CannotHappen = "cannot happen"  # it would be a mistake in the program, and raises an error

Named = TypeVar("Named")

TRANSITIONS: Mapping[GenerationState, Mapping[Event, GenerationState | CannotHappen]] = {
    "building": {
        "query_started": "catching_up",
        "build_failed": "failed",
        "published": NEVER,
        "replaced": NEVER,
        "query_failed": NEVER,
        "query_recovered": NEVER,
        "dismissed": "retired",
        "kept_for_its_records": NEVER,
        "discarded": NEVER,
    },
    "catching_up": {
        "query_started": NEVER,
        "build_failed": "failed",
        "published": "live",
        "replaced": NEVER,
        "query_failed": NEVER,
        "query_recovered": NEVER,
        "dismissed": "retired",
        "kept_for_its_records": NEVER,
        "discarded": NEVER,
    },
    "live": {
        "query_started": NEVER,
        "build_failed": NEVER,
        "published": NEVER,
        "replaced": "lingering",
        "query_failed": "failed",
        "query_recovered": NEVER,
        "dismissed": NEVER,
        "kept_for_its_records": NEVER,
        "discarded": NEVER,
    },
    "lingering": {
        "query_started": NEVER,
        "build_failed": NEVER,
        "published": "live",
        "replaced": NEVER,
        "query_failed": NEVER,
        "query_recovered": NEVER,
        "dismissed": "retired",
        "kept_for_its_records": "kept",
        "discarded": NEVER,
    },
    "kept": {
        "query_started": NEVER,
        "build_failed": NEVER,
        "published": "live",
        "replaced": NEVER,
        "query_failed": NEVER,
        "query_recovered": NEVER,
        "dismissed": NEVER,
        "kept_for_its_records": NEVER,
        "discarded": "retired",
    },
    # A failed build is removed. A live generation whose query failed keeps its tables: it recovers, or is replaced.
    "failed": {
        "query_started": NEVER,
        "build_failed": NEVER,
        "published": NEVER,
        "replaced": "lingering",
        "query_failed": NEVER,
        "query_recovered": "live",
        "dismissed": NEVER,
        "kept_for_its_records": NEVER,
        "discarded": NEVER,
    },
    "retired": {
        "query_started": NEVER,
        "build_failed": NEVER,
        "published": NEVER,
        "replaced": NEVER,
        "query_failed": NEVER,
        "query_recovered": NEVER,
        "dismissed": NEVER,
        "kept_for_its_records": NEVER,
        "discarded": NEVER,
    },
}


def next_state(state: GenerationState, event: Event) -> GenerationState:
    """Return the state after the event."""
    following = TRANSITIONS[state][event]
    assert following != NEVER, f"{event} cannot happen to a generation that is {state}"
    return following


def to_retire(lingering: Sequence[tuple[Named, float]], now: float, config: GenerationsConfig) -> list[Named]:
    """Return the old generations to remove, given since when each lingers, in seconds of a monotonic clock."""
    most: float = config.max_lingering
    seconds_max: float = config.linger_seconds
    if config.keep_generations:
        most = math.inf if config.keep_generations is True else config.keep_generations
        seconds_max = math.inf if config.retire_after_seconds == "never" else config.retire_after_seconds
    newest_first = sorted(lingering, key=lambda each: each[1], reverse=True)
    return [
        generation
        for place, (generation, since) in enumerate(newest_first)
        if place >= most or now - since >= seconds_max
    ]
