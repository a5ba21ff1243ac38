"""This pipeline's process, as the server reports it to other pipelines."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from livetables.model.wire import Holder


@cache
def this_process() -> Holder:
    """Return this process; the same value for its whole life."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    return Holder(ascii(socket.gethostname())[1:-1], os.getpid(), _machine(), since)


def is_dead(holder: Holder) -> bool:
    """Whether a process is known to have ended. Of one on another machine or container it never is."""
    if holder.machine != _machine():
        return False
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


@cache
def _machine() -> str:
    """Return what identifies this machine or container, whose processes see the same process ids."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}-{Path('/proc/self/ns/pid').stat().st_ino}"
    return socket.gethostname()
