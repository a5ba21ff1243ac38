"""Clocks that can be set, each of one process and its children: libfaketime, which is loaded into it.

Only the clock that people read is another one. The monotonic one goes on, as it does when a real clock is set.
"""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LIBRARIES = "*/faketime/libfaketimeMT.so.1"
CACHED_SECONDS = 1  # that a process keeps what it has read of its clock
KNOWN_SECONDS = CACHED_SECONDS + 1.1  # after which every process has read it again: it counts whole seconds


class Clock:
    """The clock of processes that are started with its `settings` in their environment."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._set(0)

    @property
    def settings(self) -> dict[str, str]:
        """The environment of such a process. One of Python that sleeps also needs `SLEEP` of `driver_code`."""
        library = next(Path("/usr/lib").glob(LIBRARIES), None)
        assert library, "clocks are set with libfaketime: install the package libfaketime"
        return {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": str(CACHED_SECONDS),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",  # with it, nothing in a JVM waits as long as it should
            "FAKETIME_DISABLE_SHM": "1",  # which a process that is killed would leave behind
            "NO_FAKE_STAT": "1",
        }

    def java_home(self, directory: Path) -> dict[str, str]:
        """Settings for a process whose JVM has this clock, whichever clock the process itself has."""
        java = shutil.which("java")
        assert java
        script = directory / "bin" / "java"
        script.parent.mkdir(parents=True)
        exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in self.settings.items())
        script.write_text(f'#!/bin/sh\n{exports}exec {shlex.quote(java)} "$@"\n')
        script.chmod(0o700)
        return {"JAVA_HOME": str(directory)}

    @contextmanager
    def ahead(self, seconds: int) -> Iterator[None]:
        """Let it be so far ahead for a while, or behind; at the end it is set back. Each time all processes know."""
        self._set(seconds)
        try:
            time.sleep(KNOWN_SECONDS)
            yield
        finally:
            self._set(0)
            time.sleep(KNOWN_SECONDS)

    def _set(self, seconds: int) -> None:
        written = self._file.with_suffix(".new")
        written.write_text(f"{seconds:+d}\n")
        written.replace(self._file)
