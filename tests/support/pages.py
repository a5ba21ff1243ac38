"""The documentation's code blocks, and a reader who does what they say."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from tests.support.kafka import wait_until

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"# (\S+\.(?:toml|py))\n")
STAYS = re.compile(r"livetables (up|tail)\b|make demo\b")  # commands that run until Ctrl-C
READY_SECONDS = 240.0
COMMAND_SECONDS = 300.0


@dataclass(frozen=True)
class Block:
    """A code block of a page: what language, and where it begins."""

    page: str
    line: int
    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        """The commands of a shell block, without comments; one that goes on in the next line is one."""
        joined = self.text.replace("\\\n", " ")
        lines = (re.sub(r"(^|\s)#.*$", "", line).strip() for line in joined.splitlines())
        return [re.sub(r"\s+", " ", line) for line in lines if line]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Every page that people read."""
    return [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("deploy/*.md"))]


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        yield Block(page.relative_to(ROOT).as_posix(), line, match[1], match[2])


@dataclass
class Reader:
    """Follows a page literally, in a directory: writes its files, runs its commands and its Python."""

    directory: Path
    environment: Mapping[str, str]
    replaced: Mapping[str, str] = field(default_factory=dict)  # what the page says must be put in one's own way
    _staying: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def follow(self, block: Block) -> str:
        """Do what a block says, and return what it printed; fails when a command does."""
        text = block.text
        for theirs, ours in self.replaced.items():
            text = text.replace(theirs, ours)
        if block.language == "toml" and (name := FILE_NAME.match(text)):
            (self.directory / name[1]).write_text(text)
            return ""
        if block.language == "python":
            return self._run(block, [sys.executable, "-c", text])
        if block.language != "sh":
            return ""
        if STAYS.match(block.commands[0]):
            assert len(block.commands) == 1, f"{block}: a command that stays has a terminal of its own"
            self._stay(text)
            return ""
        return self._run(block, ["bash", "-euo", "pipefail", "-c", text])

    def _run(self, block: Block, command: list[str]) -> str:
        done = subprocess.run(
            command,
            cwd=self.directory,
            env=dict(self.environment),
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def _stay(self, text: str) -> None:
        """In a terminal of its own, until the reader leaves; back when it says that it is ready, or shows something."""
        log = self.directory / f"terminal-{len(self._staying) + 1}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {text.strip()}"],
                cwd=self.directory,
                env=dict(self.environment),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._staying.append(process)
        sign = "ready: " if " up" in text else "\n"

        def is_there() -> bool:
            shown = log.read_text()
            assert process.poll() is None or sign in shown, shown
            return sign in shown

        wait_until(is_there, f"{text.strip()} is ready", READY_SECONDS)

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self._staying):
            if process.poll() is None:
                os.kill(process.pid, signal.SIGINT)
        for process in self._staying:
            try:
                process.wait(60)
            finally:
                process.kill()
                process.wait()
