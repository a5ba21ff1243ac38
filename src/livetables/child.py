"""Processes that never outlive the one that started them, not even when that one is killed with SIGKILL."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

# Runs in the new process before it turns into the command. Linux then kills it together with its parent; other systems
# have no such thing and go on without. A program of its own instead of a preexec_fn, which may deadlock in a parent
# that has threads. The parent may be dead before prctl is called, hence the look at who the parent is now.
DIE_WITH_PARENT = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the parent process is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


def spawn(
    command: Sequence[str],
    log: Path,
    *,
    environment: Mapping[str, str] | None = None,
    stdout: int | None = None,
) -> subprocess.Popen[bytes]:
    """Starts a process that dies with this one, in a process group of its own so that Ctrl-C does not reach it.

    What it says goes to the log; with `stdout` subprocess.PIPE, its standard output is the caller's to read. An OSError
    says that it could not be started.

    Linux signals a child when the *thread* that forked it ends, not only when the whole process does. The thread that
    starts the process therefore also waits for it, and so lives as long as it, whoever calls this and ends before.
    """
    started: list[subprocess.Popen[bytes] | OSError] = []
    ready = threading.Event()

    def own_process() -> None:
        try:
            with log.open("ab") as written:
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", DIE_WITH_PARENT, str(os.getpid()), *command],
                    stdin=subprocess.DEVNULL,
                    stdout=written if stdout is None else stdout,
                    stderr=written,
                    env=environment,
                    process_group=0,
                )
        except OSError as error:
            started.append(error)
            return
        else:
            started.append(process)
        finally:
            ready.set()
        process.wait()

    threading.Thread(target=own_process, name=f"livetables-{log.stem}", daemon=True).start()
    ready.wait()
    if isinstance(started[0], OSError):
        raise started[0]
    return started[0]
