"""One `livetables up` at a time in a directory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from livetables.client.local_system import DIRECTORY
from livetables.locks import locked
from livetables.model.errors import SetupError


@contextlib.contextmanager
def held(directory: Path = DIRECTORY) -> Iterator[None]:
    """Hold the directory for one `livetables up`; what was written there is removed at the end.

    The lock is the operating system's, so a process that is killed lets go of it.
    """
    with (made(directory) / "up.lock").open("a+") as lock:
        if not locked(lock):
            lock.seek(0)
            holder = lock.read().strip()
            raise SetupError(
                f"`livetables up` runs in {directory.resolve().parent} already, as process {holder}",
                f"use that one (`livetables status`), stop it (`kill {holder}`), or start another in another directory",
            )
        with contextlib.suppress(OSError):  # a full disk: who holds it is only for the message above
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
        try:
            yield
        finally:
            (directory / "up.json").unlink(missing_ok=True)


def made(directory: Path) -> Path:
    """Return a directory in which this user may write, made if it is missing."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = str(error)
    else:
        if os.access(directory, os.W_OK | os.X_OK):
            return directory
        problem = "this user may not write there"
    raise SetupError(
        f"{directory.absolute()} cannot be used: {problem}",
        "let this user write there, or run it in another directory",
    )
