"""The deltas that were shown and that somebody who reads the store may not find in it. Pure; its user holds a lock.

Frames are shown before they are stored. Whoever reads a table from the store takes in what was shown after that: so the
log keeps what is not stored, and what was not when the oldest reading began that still runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping

from livetables.model.wire import NO_BATCH
from livetables.server.viewports.window import Delta

Key = tuple[str, str]  # generation and table
Reading = Mapping[str, int]  # what was stored when it began: the last commit, by generation


class DeltaLog:
    """What was shown of all tables, as long as it may be needed."""

    def __init__(self) -> None:
        self._shown: dict[Key, deque[tuple[int, Delta]]] = {}
        self._stored: dict[str, int] = {}
        self._readings: dict[int, Reading] = {}  # those that run, by identity: two may be equal

    def __len__(self) -> int:
        return sum(len(each) for each in self._shown.values())

    def add(self, key: Key, sequence: int, delta: Delta) -> None:
        self._shown.setdefault(key, deque()).append((sequence, delta))

    def stored(self, generation: str, sequence: int) -> None:
        self._stored[generation] = sequence
        self._cut()

    def begin(self) -> Reading:
        """A reading of the store begins: keep from now on what it may need."""
        reading = dict(self._stored)
        self._readings[id(reading)] = reading
        return reading

    def end(self, reading: Reading) -> None:
        del self._readings[id(reading)]
        self._cut()

    def since(self, key: Key, sequence: int) -> Iterator[Delta]:
        """What was shown of a table after a commit."""
        return (delta for each, delta in self._shown.get(key, ()) if each > sequence)

    def keep_only(self, generations: Collection[str]) -> None:
        """Forget all others."""
        self._shown = {key: shown for key, shown in self._shown.items() if key[0] in generations}
        self._stored = {name: sequence for name, sequence in self._stored.items() if name in generations}

    def _cut(self) -> None:
        for (generation, _), shown in self._shown.items():
            stored = min(each.get(generation, NO_BATCH) for each in (self._stored, *self._readings.values()))
            while shown and shown[0][0] <= stored:
                shown.popleft()
