"""Who is notified when tables change: listeners after each commit, viewers before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from livetables.server.storage.pending import Viewers


@dataclass(frozen=True)
class Changed:
    """The stable names whose rows a commit has changed."""

    names: frozenset[str]
    rebound: bool = False
    shown: bool = False  # whether viewers have been sent it already, see `livetables.server.storage.pending`


class Listeners:
    """All listeners, and the viewers if there are any. They are called on the thread that writes."""

    def __init__(self) -> None:
        self.viewers: Viewers | None = None
        self._listeners: list[Callable[[Changed], None]] = []

    def add(self, listener: Callable[[Changed], None]) -> None:
        self._listeners.append(listener)

    def notify(self, changed: Changed) -> None:
        if changed.names:
            for listener in self._listeners:
                listener(changed)
