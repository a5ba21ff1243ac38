"""How far the server's clock is from this one, so that times of both can be compared."""

from __future__ import annotations

from dataclasses import dataclass

SHOWN_MS = 5.0  # people need not know of less


@dataclass(frozen=True)
class Clock:
    """The server's clock, as seen from here."""

    ahead_ms: float = 0.0  # of this machine's clock; negative: it is behind

    @classmethod
    def measured(cls, asked_ms: float, server_ms: float, answered_ms: float) -> Clock:
        """The clock of a server, from its time between a request and the answer, both by this machine's clock.

        A difference that is no larger than the time that this took allows counts as zero: on one machine it is zero.
        """
        ahead = server_ms - (asked_ms + answered_ms) / 2
        return cls(ahead if abs(ahead) > (answered_ms - asked_ms) / 2 else 0.0)

    def at(self, here_ms: float) -> float:
        """What the server's clock shows when this machine's shows `here_ms`."""
        return here_ms + self.ahead_ms

    @property
    def matters(self) -> bool:
        return abs(self.ahead_ms) > SHOWN_MS

    def __str__(self) -> str:
        direction = "behind" if self.ahead_ms < 0 else "ahead of"
        return f"the server's clock is {abs(self.ahead_ms):,.0f} ms {direction} this machine's; latencies allow for it"
