"""Keeps processes running: starts them in order, starts again what dies, and stops all of them, the last one first."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from livetables.backoff import delay_seconds
from livetables.log import log_event
from livetables.model.errors import LivetablesError

FIRST_DELAY_SECONDS = 1.0
DELAY_SECONDS_MAX = 30.0
HEALTHY_SECONDS = 60.0  # a process that has lived so long has not died of what the previous one died of
LOOK_SECONDS = 0.1

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ending:
    """End of a process: the cause in a sentence, and its own error, if it refused to run."""

    cause: str
    refusal: LivetablesError | None = None


class Child(Protocol):
    """A process to keep running. Only the supervisor's thread calls it."""

    @property
    def name(self) -> str: ...

    @property
    def log(self) -> Path: ...

    @property
    def pid(self) -> int | None:
        """None while there is none."""

    def start(self) -> None:
        """Start it, also again; a LivetablesError or an OSError has the reason why it cannot be."""

    def ended(self) -> Ending | None:
        """How it ended by itself; None while it runs. Nothing that it started is left by then."""

    def stop(self) -> None:
        """End it and everything that it started, gracefully if it lets us."""


def next_delay_seconds(before_seconds: float | None, lived_seconds: float) -> float:
    """How long to wait before a process is started again, given the wait before and how long it has lived since."""
    if before_seconds is None or lived_seconds >= HEALTHY_SECONDS:
        return FIRST_DELAY_SECONDS
    return delay_seconds(2, before_seconds, DELAY_SECONDS_MAX)  # twice the wait before


@dataclass
class _Kept:
    """A child, and what is known of its lives."""

    child: Child
    started: float
    is_proved: bool = False  # it has been ready once
    delay_seconds: float | None = None  # the last one
    due: float | None = None  # when to start it again; None while it runs


class Supervisor:
    """Supervisor of child processes until `stop` is set; it reports in a sentence whatever happens to them."""

    def __init__(
        self,
        stop: threading.Event,
        notify: Callable[[str], None],
        changed: Callable[[dict[str, int]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`changed` is given the process ids, by name, whenever they are others, and again after an OSError."""
        self._stop = stop
        self._notify = notify
        self._changed = changed
        self._clock = clock
        self._kept: list[_Kept] = []
        self._restarts = 0
        self._not_written: str | None = None  # why `changed` could not be called last

    def start(self, *children: Child) -> None:
        """Start more children at the same time, the last one first.

        Each has to wait by itself for those before it, which may take a while to be started.
        """
        added = [_Kept(child, self._clock()) for child in children]
        self._kept += added
        for kept in reversed(added):
            kept.started = self._clock()
            kept.child.start()
            log_event(log, "process_started", process=kept.child.name, pid=kept.child.pid)
            self._write_pids()

    def wait(self, child: Child, is_ready: Callable[[], bool]) -> None:
        """Return when a child is ready, or `stop` is set.

        If it refuses to run, that is an error: whatever is wrong, it would be wrong again. But when another child has
        died meanwhile, that may be all that is wrong.
        """
        while not self._stop.is_set() and not (child.pid is not None and is_ready()):
            self.look()
            self._stop.wait(LOOK_SECONDS)
        for kept in self._kept:
            kept.is_proved = kept.is_proved or kept.child is child

    def watch(self) -> None:
        """Look after the children until `stop` is set."""
        while not self._stop.wait(LOOK_SECONDS):
            self.look()

    def look(self) -> None:
        """Notice which children have ended, and start again those whose time has come."""
        if self._not_written:
            self._write_pids()
        for kept in self._kept:
            if kept.due is None:
                ending = kept.child.ended()
                if ending is not None:
                    self._lost(kept, ending)
            elif self._clock() >= kept.due:
                self._start_again(kept)

    def stop_all(self) -> None:
        """Stop the children, the last one first: each can still use those that it needs."""
        while self._kept:
            kept = self._kept.pop()
            self._notify(f"stopping the {kept.child.name}")
            kept.child.stop()
            log_event(log, "process_stopped", process=kept.child.name)

    def _lost(self, kept: _Kept, ending: Ending) -> None:
        if ending.refusal and not kept.is_proved and not self._restarts:
            raise ending.refusal
        self._restarts += 1
        kept.delay_seconds = next_delay_seconds(kept.delay_seconds, self._clock() - kept.started)
        kept.due = self._clock() + kept.delay_seconds
        log_event(
            log,
            "process_ended",
            logging.WARNING,
            process=kept.child.name,
            cause=ending.cause,
            restart_seconds=f"{kept.delay_seconds:.0f}",
        )
        self._notify(
            f"the {kept.child.name} {ending.cause}; starting it again in {kept.delay_seconds:.0f} s "
            f"(its log: {kept.child.log})"
        )
        self._write_pids()

    def _start_again(self, kept: _Kept) -> None:
        kept.due, kept.started = None, self._clock()
        try:
            kept.child.start()
        except (LivetablesError, OSError) as error:  # an OSError, for example, of a full disk
            problem = error.problem if isinstance(error, LivetablesError) else str(error)
            self._lost(kept, Ending(f"could not be started: {problem.splitlines()[0]}"))
            return
        log_event(log, "process_started", process=kept.child.name, pid=kept.child.pid)
        self._notify(f"the {kept.child.name} is started again")
        self._write_pids()

    def _write_pids(self) -> None:
        pids = {kept.child.name: kept.child.pid for kept in self._kept}
        try:
            self._changed({name: pid for name, pid in pids.items() if pid is not None})
            self._not_written = None
        except OSError as error:  # a full disk must not end what runs
            if str(error) != self._not_written:
                self._not_written = str(error)
                log_event(log, "process_ids_not_written", logging.WARNING, problem=self._not_written)
                self._notify(f"the process ids cannot be written: {error}; trying again until they can")
