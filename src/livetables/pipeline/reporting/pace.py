"""How a generation keeps up with its topics, and when it will have caught up, in a sentence. Pure."""

from __future__ import annotations

from collections import deque

BEHIND_RECORDS = 10_000  # from so many on it is worth a sentence
WINDOW_SECONDS = 60.0  # over which rates are measured: a batch of a large backlog may take as long
KNOWN_SECONDS = 5.0  # that they take at least


class Pace:
    """The pace of one generation, from its lag and the ends of its topics, about once a second."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, int]] = deque()  # when, records sent, records read

    def note(self, now: float, lag: int, sent: int) -> None:
        """Take note of how many records its topics have had, and how many of them are still to be read."""
        self._seen.append((now, sent, sent - lag))
        while now - self._seen[0][0] > WINDOW_SECONDS:
            self._seen.popleft()

    def sentence(self) -> str:
        """Describe it for people."""
        _, sent, read = self._seen[-1]
        lag = sent - read
        if lag < BEHIND_RECORDS:
            return "up to date"
        behind = f"{lag:,} records behind"
        rates = self._rates()
        if rates is None:
            return behind
        sent_per_second, read_per_second = rates
        rate = f"reads {read_per_second:,.0f} records a second, {sent_per_second:,.0f} arrive"
        if read_per_second > sent_per_second:
            return f"{behind}: {rate}; caught up in about {duration(lag / (read_per_second - sent_per_second))}"
        if not read_per_second:
            return f"{behind}: {rate}"
        return (
            f"overloaded, {behind}: {rate}; "
            f"caught up about {duration(lag / read_per_second)} after the last record, if no more arrive"
        )

    def _rates(self) -> tuple[float, float] | None:
        """Return how many records are sent and read a second, when that is known."""
        (start, sent_first, read_first), (end, sent_last, read_last) = self._seen[0], self._seen[-1]
        if end - start < KNOWN_SECONDS:
            return None
        return (
            max(0, sent_last - sent_first) / (end - start),
            max(0, read_last - read_first) / (end - start),
        )


def duration(seconds: float) -> str:
    """Write a time that is only about so long."""
    if seconds < 100:
        return f"{max(1, seconds):.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h"
