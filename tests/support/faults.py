"""Crashes as test data: a sink on disk that outlives its driver, and kills the driver where a test says so."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from livetables.change import Batch, TableShape
from livetables.errors import SinkError
from livetables.pipeline.sink import MemorySink


@dataclass(frozen=True)
class Crash:
    """Kill the driver when it delivers this batch: before the sink has committed it, or after, before Spark has."""

    when: Literal["before", "after"]
    batch_id: int


class DiskSink:
    """Keeps each batch in a file of its own, written whole or not at all. Stands in for the table server."""

    def __init__(self, directory: Path, crash: Crash | None = None) -> None:
        self._directory = directory
        self._crash = crash

    def begin(self, generation: str, shapes: Sequence[TableShape]) -> None:
        self._write("shapes", (generation, tuple(shapes)))

    def put(self, batch: Batch) -> None:
        self._crash_at("before", batch)
        committed = len(batch_files(self._directory))
        if batch.batch_id > committed:
            raise SinkError(f"batch {batch.batch_id} came where {committed} was due", "look for a lost batch")
        if batch.batch_id == committed:
            self._write(f"batch-{batch.batch_id:08d}", batch)
        self._crash_at("after", batch)

    def publish(self, generation: str) -> None:
        raise NotImplementedError("no test publishes through this sink")

    def drop(self, generation: str) -> None:
        raise NotImplementedError("no test drops through this sink")

    def _crash_at(self, when: Literal["before", "after"], batch: Batch) -> None:
        if self._crash == Crash(when, batch.batch_id):
            os.killpg(os.getpgid(0), signal.SIGKILL)

    def _write(self, name: str, content: object) -> None:
        draft = self._directory / f"{name}.draft"
        with draft.open("wb") as file:
            pickle.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(self._directory / f"{name}.pickle")


def batch_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("batch-*.pickle"))


def replayed(directory: Path) -> MemorySink:
    """The tables that the batches on disk make, applied as the server would."""
    sink = MemorySink()
    sink.begin(*pickle.loads((directory / "shapes.pickle").read_bytes()))
    for file in batch_files(directory):
        sink.put(pickle.loads(file.read_bytes()))
    return sink
