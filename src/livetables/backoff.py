"""How long to wait before something is tried again."""

from __future__ import annotations

import random
from collections.abc import Iterator

FIRST_SECONDS = 0.1


def delays(seconds_max: float) -> Iterator[float]:
    """How long to wait after each try: longer each time, and never quite the same."""
    delay = FIRST_SECONDS
    while True:
        yield delay * random.uniform(0.5, 1.0)  # noqa: S311
        delay = min(delay * 2, seconds_max)
