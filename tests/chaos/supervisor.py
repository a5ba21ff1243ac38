"""What `up`, systemd or a container runtime does: a process that has ended is started again."""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import suppress
from types import TracebackType
from typing import Self

from livetables.model.errors import BrokerError
from tests.support.system import System

LOOK_SECONDS = 0.1
AGAIN_SECONDS = 1.0  # after a start that failed


class Supervisor:
    """Starts broker, server and pipeline again. Whoever holds `paused` may leave them dead meanwhile."""

    def __init__(self, system: System) -> None:
        self.paused = threading.RLock()
        self.restarts = Counter[str]()
        self._system = system
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(LOOK_SECONDS):
            with self.paused:
                self._look()

    def _look(self) -> None:
        system = self._system
        if system.broker.pid is None:
            self.restarts["broker"] += 1
            with suppress(BrokerError):  # and again with the next look
                system.broker.kill()
                system.broker.start()
        if not system.server.is_running:
            self.restarts["server"] += 1
            try:
                system.server.start()
            except (AssertionError, OSError):
                time.sleep(AGAIN_SECONDS)
        if not system.pipeline.is_running:
            self.restarts["pipeline"] += 1
            system.pipeline.kill()  # whatever is left of it
            with suppress(OSError):
                system.pipeline.start()
