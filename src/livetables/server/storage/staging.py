"""The parts of frames that are not whole yet, in memory while they are few, else in files."""

from __future__ import annotations

import mmap
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from livetables.model.wire import FramePart
from livetables.server.storage.frames import FrameError

MEMORY_BYTES_MAX = 64 * 1024 * 1024  # of all parts together; the others go to files


@dataclass
class _Staged:
    """The parts of one frame, in order."""

    run: int
    attempt: str
    frame: int
    parts: list[pa.Buffer] = field(default_factory=list)
    memory_bytes: int = 0

    def is_of(self, part: FramePart) -> bool:
        return (self.run, self.attempt, self.frame) == (part.run, part.attempt, part.frame)


class Staging:
    """Keeps at most one unfinished frame of each (generation, writer). Any thread may use it.

    A file has no name, so that none is left behind by a server that was killed. Its space comes back when nobody
    reads it any more.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory  # the system's own if there is none
        self._lock = threading.Lock()
        self._staged: dict[tuple[str, int], _Staged] = {}
        self._memory_bytes = 0

    @property
    def memory_bytes(self) -> int:
        return self._memory_bytes

    @property
    def frames(self) -> int:
        return len(self._staged)

    def add(self, part: FramePart, body: pa.Buffer) -> None:
        """Keep a part until its frame is whole. One that comes again changes nothing."""
        with self._lock:
            if self._is_there(part):
                return
            self._frame_of(part)
            in_memory = self._memory_bytes + body.size <= MEMORY_BYTES_MAX
        kept = body if in_memory else self._in_file(body)  # without the lock: it takes a while
        with self._lock:
            staged = self._frame_of(part)
            staged.parts.append(kept)
            if in_memory:
                staged.memory_bytes += body.size
                self._memory_bytes += body.size
            self._staged[part.generation, part.writer] = staged

    def before(self, last: FramePart) -> list[pa.Buffer]:
        """All parts of a frame before its last one."""
        with self._lock:
            return list(self._frame_of(last).parts)

    def forget(self, generation: str, writer: int | None = None) -> None:
        """Throw away what is staged of a writer, or of a whole generation."""
        with self._lock:
            for key in [key for key in self._staged if key[0] == generation and writer in (None, key[1])]:
                self._memory_bytes -= self._staged.pop(key).memory_bytes

    def close(self) -> None:
        with self._lock:
            self._staged.clear()
            self._memory_bytes = 0

    def _is_there(self, part: FramePart) -> bool:
        staged = self._staged.get((part.generation, part.writer))
        return staged is not None and staged.is_of(part) and part.part == len(staged.parts) - 1

    def _frame_of(self, part: FramePart) -> _Staged:
        """The frame that a part is the next one of. The first part of a frame ends the previous one."""
        key = (part.generation, part.writer)
        if part.part == 0:
            if key in self._staged:
                self._memory_bytes -= self._staged.pop(key).memory_bytes
            return _Staged(part.run, part.attempt, part.frame)
        staged = self._staged.get(key)
        if staged is None or not staged.is_of(part) or part.part != len(staged.parts):
            raise FrameError(
                "missing_parts",
                f"part {part.part} of frame {part.frame} of writer {part.writer} came without those before it",
                "send the frame again from its first part on",
            )
        return staged

    def _in_file(self, body: pa.Buffer) -> pa.Buffer:
        with tempfile.TemporaryFile(dir=self._directory) as file:
            file.write(body)
            file.flush()
            return pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
