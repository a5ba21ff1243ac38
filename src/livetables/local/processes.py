"""The processes that `livetables up` keeps: the broker, and commands of `livetables`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from livetables.child import spawn
from livetables.local.broker import Broker
from livetables.local.supervisor import Ending
from livetables.model.errors import SetupError

EXIT_REFUSED = 2  # what the command line ends with after an error that names its cure
LOG_BYTES_MAX = 8 * 1024 * 1024  # with more, the next start begins a new log
LOG_BYTES_READ = 64 * 1024
CAUSE_CHARACTERS_MAX = 300
REFUSAL = re.compile(r"^livetables: (?P<problem>.*?)\n  cure: (?P<cure>.*?)$", re.DOTALL | re.MULTILINE)


class CommandProcess:
    """A command of `livetables` in a process of its own. Each line that it prints is passed on to `heard`."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        heard: Callable[[str], None],
        *,
        stop_seconds: float,
    ) -> None:
        self.name = name
        self.log = log
        self._command = [sys.executable, "-m", "livetables.cli.main", *arguments]
        self._environment = environment
        self._heard = heard
        self._stop_seconds = stop_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def pid(self) -> int | None:
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    def start(self) -> None:
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            if self.log.exists() and self.log.stat().st_size > LOG_BYTES_MAX:
                self.log.replace(self.log.with_suffix(".log.1"))
            self._log_start = self.log.stat().st_size if self.log.exists() else 0
            process = spawn(self._command, self.log, environment=self._environment, stdout=subprocess.PIPE)
        except OSError as error:
            raise SetupError(
                f"the {self.name}'s process could not be started: {error}",
                f"check that {self.log.parent} is writable and that this machine has memory and processes left",
            ) from error
        self._process = process
        threading.Thread(target=self._listen, args=(process,), name=f"{self.name}-output", daemon=True).start()

    def ended(self) -> Ending | None:
        if self._process is None or (code := self._process.poll()) is None:
            return None
        self._kill_group(self._process)
        self._process = None  # its id may soon be another's
        output = end_of_log(self.log, self._log_start)
        refusals = REFUSAL.findall(output) if code == EXIT_REFUSED else []
        if refusals:
            problem, cure = refusals[-1]
            return Ending(f"ended: {problem.splitlines()[0]}", SetupError(problem, cure))
        return Ending(ending_cause(code, output))

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(self._stop_seconds)
            self._kill_group(self._process)
            self._process.wait()
            self._process = None

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout
        with process.stdout as lines, self.log.open("ab", buffering=0) as log:
            for line in lines:
                with suppress(OSError):  # a full disk: the process must be listened to all the same
                    log.write(line)
                self._heard(line.decode(errors="replace").rstrip())

    def _kill_group(self, process: subprocess.Popen[bytes]) -> None:
        """The process itself, if it has not ended, and a JVM that it may have left."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


class BrokerProcess:
    """The embedded broker."""

    def __init__(self, broker: Broker, log: Path) -> None:
        self.name = "broker"
        self.log = log
        self._broker = broker

    @property
    def pid(self) -> int | None:
        return self._broker.pid

    def start(self) -> None:
        self._broker.start()

    def ended(self) -> Ending | None:
        code = self._broker.exit_code
        return None if code is None else Ending(ending_cause(code, end_of_log(self.log)))

    def stop(self) -> None:
        self._broker.stop()


def ending_cause(code: int, output: str) -> str:
    """The cause of an end in one sentence, from the exit code and its last output."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    last = f"; its last output: {lines[-1][:CAUSE_CHARACTERS_MAX]}" if lines else ""
    return f"ended with code {code}{last}"


def end_of_log(log: Path, start: int = 0) -> str:
    """The last of what is in a log, from `start` on."""
    try:
        with log.open("rb") as file:
            file.seek(max(start, log.stat().st_size - LOG_BYTES_READ))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
