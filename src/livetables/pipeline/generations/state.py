"""The states of a generation and what moves it from one to the next, as a total table; and when an old one goes.

building ─► catching_up ─► live ⇄ lingering ─► retired
    │            │           ↑↓       ↓           ↑
    │            │           └──── kept ──────────┘
    └────────────┴───────────┴────────┴──────► failed
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeVar

from livetables.config.values import GenerationsConfig

GenerationState = Literal["building", "catching_up", "live", "lingering", "kept", "retired", "failed"]
Event = Literal[
    "query_started",  # its streaming query runs
    "published",  # it has taken over the stable names: it had caught up, its time was up, or it was rolled back to
    "replaced",  # another generation was published
    "kept",  # its query has ended; it has records that Kafka no longer has, so a control message has to discard it
    "dismissed",  # it is not wanted any more, and nobody waits for it
    "query_died",  # its query ended, and starting it again did not help
]

STATES: tuple[GenerationState, ...] = ("building", "catching_up", "live", "lingering", "kept", "retired", "failed")
ENDED: tuple[GenerationState, ...] = ("retired", "failed")

Named = TypeVar("Named")

# What is not here is not possible: it would be a mistake in the program, and raises an error.
TRANSITIONS: dict[GenerationState, dict[Event, GenerationState]] = {
    "building": {"query_started": "catching_up", "dismissed": "retired", "query_died": "failed"},
    "catching_up": {
        "query_started": "catching_up",  # after a restart
        "published": "live",
        "dismissed": "retired",
        "query_died": "failed",
    },
    "live": {"query_started": "live", "published": "live", "replaced": "lingering", "query_died": "failed"},
    "lingering": {
        "query_started": "lingering",
        "published": "live",
        "kept": "kept",
        "dismissed": "retired",
        "query_died": "failed",
    },
    "kept": {"published": "live", "dismissed": "retired"},
    # A live generation whose query died keeps its tables: it works again one day, or is replaced.
    "failed": {"query_started": "live", "replaced": "lingering", "dismissed": "retired"},
    "retired": {},
}


def next_state(state: GenerationState, event: Event) -> GenerationState:
    """The state after the event."""
    following = TRANSITIONS[state]
    assert event in following, f"a generation that is {state} cannot be {event}"
    return following[event]


def to_retire(lingering: Sequence[tuple[Named, float]], now: float, config: GenerationsConfig) -> list[Named]:
    """Those of the old generations that have to go, given since when each lingers, in seconds of a monotonic clock."""
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
