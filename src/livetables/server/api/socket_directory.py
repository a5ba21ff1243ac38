"""A directory for sockets that only this user can reach. It is removed at the end, or by the next server after a kill.

Paths of sockets are short (108 bytes on Linux), so it is among the temporary files and not beside the store. The
server that uses it holds a lock in it: who can take that lock knows that nobody uses the directory any more.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

try:
    import fcntl
except ModuleNotFoundError:  # Windows, where sockets have no paths and this is not used
    fcntl = None  # type: ignore[assignment]

PREFIX = "livetables-sockets-"
LOCK = "in-use"


class SocketDirectory:
    """There from its construction until `remove`."""

    def __init__(self) -> None:
        _remove_unused(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))  # private to this user
        draft = self.path / f"{LOCK}-draft"
        self._lock = os.open(draft, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        _try_lock(self._lock)
        draft.rename(self.path / LOCK)  # nobody sees it without the lock

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_unused(parent: Path) -> None:
    """Remove the directories of servers that were killed. What cannot be looked into stays: it belongs to others."""
    for directory in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            lock = os.open(directory / LOCK, os.O_RDWR | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0))
            try:
                if directory.lstat().st_uid == os.fstat(lock).st_uid == os.getuid() and _try_lock(lock):
                    shutil.rmtree(directory, ignore_errors=True)
            finally:
                os.close(lock)


def _try_lock(descriptor: int) -> bool:
    """Take the lock of a file, if nobody has it. It ends with the process."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
