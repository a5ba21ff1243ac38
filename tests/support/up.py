"""`livetables up` as a person runs it: in a directory of its own, with the other verbs beside it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

COMMAND = [sys.executable, "-m", "livetables.cli.main"]
WAIT_SECONDS = 180.0  # a hang, not a slow machine
POLL_SECONDS = 0.1


def clean_environment(**settings: str) -> dict[str, str]:
    """The environment without anybody's own settings of livetables."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith("LIVETABLES_")}, **settings}


def is_alive(pid: int) -> bool:
    """Whether there is such a process, one that nobody has waited for yet (a zombie) not counted."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def descendants(pid: int) -> set[int]:
    """Every process that the process has started, and those that they have."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = {pid}
    while new := {child for child, parent in parents.items() if parent in found} - found:
        found |= new
    return found - {pid}


class Up:
    """A system in a directory. Its steps since the last start are in up.log there."""

    def __init__(
        self,
        directory: Path,
        *arguments: str,
        settings: Mapping[str, str] | None = None,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self.directory = directory
        self.command = command
        self.environment = clean_environment(**(settings or {}))
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    def start(self) -> None:
        with (self.directory / "up.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*self.command, "up", *self._arguments],
                cwd=self.directory,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_ready(self) -> None:
        self.wait(lambda: "ready: " in self.steps(), "it is ready")

    def wait_ended(self) -> int:
        assert self._process
        return self._process.wait(WAIT_SECONDS)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def steps(self) -> str:
        return (self.directory / "up.log").read_text()

    def facts(self) -> dict[str, Any]:
        """What it leaves for other commands."""
        facts: dict[str, Any] = json.loads((self.directory / ".livetables" / "up.json").read_text())
        return facts

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Another verb, in another terminal."""
        return subprocess.run(
            [*self.command, *arguments],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
            check=False,
        )

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            ended = self._process is None or self._process.poll() is not None
            assert not ended, f"`livetables up` has ended before {what}\n{self.steps()}"
            assert time.monotonic() < deadline, f"waited in vain until {what}\n{self.steps()}"
            time.sleep(POLL_SECONDS)

    def __enter__(self) -> Up:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(60)
            finally:
                self._process.kill()
                self._process.wait()
