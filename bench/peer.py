"""The peer, in a virtual environment of its own: the same topics, the same join, on this machine, in this run."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from livetables.model.errors import SetupError
from livetables.model.joins import JoinType
from tests.support.server import free_port

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT.parent / "shared" / "peers" / "deephaven_bench.py"
ENVIRONMENT = ROOT / ".cache" / "peer-venv"
PACKAGES = ("deephaven-server==42.7", "confluent-kafka", "numpy")
RUN_SECONDS_MAX = 900.0
LOG_LINES_SHOWN = 10


@dataclass(frozen=True)
class Peer:
    """A script that measures the peer, and the Python that runs it."""

    script: Path
    python: Path

    def measured(
        self,
        bootstrap: str,
        topics: str,
        join: JoinType,
        *,
        rows: int,
        rate: int,
        keys: int,
        seconds: float,
        cycle_ms: int | None = None,
    ) -> dict[str, Any]:
        """Its figures: the backlog's rate, and the time from Kafka's timestamp to a listener inside its server."""
        command = [str(self.python), str(self.script), "--bootstrap", bootstrap]
        command += ["--users", f"{topics}-user", "--accounts", f"{topics}-account", "--join", join]
        command += ["--rows", str(rows), "--rate", str(rate), "--keys", str(keys), "--seconds", str(seconds)]
        command += ["--port", str(free_port())]
        command += ["--cycle-ms", str(cycle_ms)] if cycle_ms else []
        with tempfile.TemporaryDirectory() as directory:  # it writes logs and caches where it stands
            ran = subprocess.run(
                command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                errors="replace", timeout=RUN_SECONDS_MAX, check=False,
            )  # fmt: skip
        lines = ran.stdout.splitlines()
        for line in reversed(lines):
            if line.startswith('{"peer"'):
                figures: dict[str, Any] = json.loads(line)
                return figures
        output = "\n    ".join(lines[-LOG_LINES_SHOWN:])
        raise SetupError(f"the peer ended with code {ran.returncode}; its last output:\n    {output}", "use --no-peer")


def prepared(script: Path) -> Peer:
    """The peer, its packages installed."""
    python, ready = ENVIRONMENT / "bin" / "python", ENVIRONMENT / "ready"
    if not ready.exists():
        ENVIRONMENT.parent.mkdir(exist_ok=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES]
        for step in ([sys.executable, "-m", "venv", str(ENVIRONMENT)], pip):
            if subprocess.run(step, check=False).returncode:
                raise SetupError(f"cannot set up the peer's environment {ENVIRONMENT}", "fix it, or use --no-peer")
        ready.touch()
    return Peer(script, python)
