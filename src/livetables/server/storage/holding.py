"""Which pipeline holds the server: one at a time. Another that starts is refused while the first one is heard.

Fencing by numbers (`fencing.py`) is what keeps tables right. This is what keeps two pipelines that are both
started again whenever they end from taking the server from each other for ever: the second one waits, and takes over
when the first has gone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from livetables.model.wire import Holder

SILENT_SECONDS = 10.0  # a pipeline that was not heard for so long has gone; it calls every second


class Holding:
    """Who holds the server, if that is known, and when it was last heard. Any thread may use it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._holder: Holder | None = None
        self._heard: float | None = None

    @property
    def holder(self) -> Holder | None:
        return self._holder

    def heard(self, holder: Holder | None) -> None:
        """The pipeline that holds the server has called. After a restart of the server, that says who it is."""
        with self._lock:
            self._heard = self._clock()
            self._holder = holder or self._holder

    def taken_by(self, holder: Holder | None) -> None:
        with self._lock:
            self._holder = holder
            self._heard = self._clock() if holder else None

    def is_free_for(self, newcomer: Holder | None, replaces: str | None) -> bool:
        """Whether a pipeline may take over: the previous one has gone, is itself, or is known to it to be dead."""
        with self._lock:
            if newcomer is None or self._holder is None or self._heard is None:
                return True
            is_silent = self._clock() - self._heard > SILENT_SECONDS
            return is_silent or self._holder.process in (newcomer.process, replaces)
