"""How long to wait before something is tried again."""

from __future__ import annotations

import random
from collections.abc import Iterator

FIRST_SECONDS = 0.1


def delays(seconds_max: float) -> Iterator[float]:
    """How long to wait after each try: longer each time, and never quite the same."""
    tries = 0
    while True:
        tries += 1
        yield delay_seconds(tries, FIRST_SECONDS, seconds_max) * random.uniform(0.5, 1.0)  # noqa: S311


def delay_seconds(tries: int, first_seconds: float, seconds_max: float) -> float:
    """How long to wait after so many tries, of which there was at least one: twice as long each time, up to a limit."""
    # 2.0 ** 1024 overflows, and no wait doubles so often.
    return min(first_seconds * 2.0 ** min(tries - 1, 64), seconds_max)
