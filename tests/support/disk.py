"""A disk that is full, for one process: none of its files may become larger than so many bytes."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def full_disk(bytes_max: int, pid: int = 0) -> Iterator[None]:
    """Let writes beyond `bytes_max` of a file fail in a process, in this one by default."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (bytes_max, hard))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):  # it has ended
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))
