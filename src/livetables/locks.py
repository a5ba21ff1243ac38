"""Locks on files, which the operating system takes back from a process that ends, however it ends."""

from __future__ import annotations

import contextlib
import os
import time
from typing import IO, Any

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None  # type: ignore[assignment]

AGAIN_SECONDS = 0.1
LOCKED_BYTE = 1 << 30  # beyond what such a file holds: on Windows nobody else could read a byte that is locked


def locked(file: IO[Any]) -> bool:
    """Lock an open file until it is closed; False if another process has locked it."""
    if fcntl is not None:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False
    import msvcrt  # of Windows alone

    place = os.lseek(file.fileno(), 0, os.SEEK_CUR)
    os.lseek(file.fileno(), LOCKED_BYTE, os.SEEK_SET)
    try:
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    except OSError:
        return False
    finally:
        os.lseek(file.fileno(), place, os.SEEK_SET)
    return True


def wait_for_lock(file: IO[Any]) -> None:
    """Lock an open file until it is closed, as soon as no other process has it."""
    while not locked(file):
        time.sleep(AGAIN_SECONDS)
