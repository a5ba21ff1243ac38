"""Clocks of single processes, as the chaos runs set them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.chaos.clocks import Clock

pytestmark = pytest.mark.processes

HOUR = 3600
DIFFERS_SECONDS = 600  # far more than any machine takes to answer, and far less than an hour
WAIT_MS = 200

PYTHON = f"""
import sys, threading, time
for _ in sys.stdin:
    started = time.monotonic()
    with (waiting := threading.Condition()):
        waiting.wait({WAIT_MS} / 1000)
    print(time.time(), time.monotonic(), time.monotonic() - started, flush=True)
"""
JAVA = f"""
public class Clocks {{
    public static void main(String[] arguments) throws Exception {{
        while (System.in.read() >= 0) {{
            long started = System.nanoTime();
            synchronized (arguments) {{ arguments.wait({WAIT_MS}); }}
            long now = System.nanoTime();
            System.out.println(System.currentTimeMillis() / 1e3 + " " + now / 1e9 + " " + (now - started) / 1e9);
        }}
    }}
}}
"""


@pytest.mark.parametrize("language", ["python", "java"])
def test_only_the_clock_that_people_read_is_set(language: str, tmp_path: Path) -> None:
    clock = Clock(tmp_path / "clock")
    if language == "python":
        command = [sys.executable, "-c", PYTHON]
    else:
        (tmp_path / "Clocks.java").write_text(JAVA)
        command = ["java", "-Xmx128m", str(tmp_path / "Clocks.java")]
    process = subprocess.Popen(
        command, env={**os.environ, **clock.settings}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def ahead_seconds() -> tuple[float, float]:
        """How far both of its clocks are ahead of ours."""
        assert process.stdin
        assert process.stdout
        process.stdin.write("\n")
        process.stdin.flush()
        read, monotonic, waited = map(float, process.stdout.readline().split())
        assert waited > WAIT_MS / 1000 * 0.9, "it waits as long as before"
        return read - time.time(), monotonic - time.monotonic()

    try:
        readings = [ahead_seconds()]
        for step in (HOUR, -HOUR):
            with clock.ahead(step):
                readings.append(ahead_seconds())
        readings.append(ahead_seconds())
    finally:
        process.kill()
        process.communicate()
    assert [round(read / HOUR) for read, _ in readings] == [0, 1, -1, 0]
    assert max(read for _, read in readings) - min(read for _, read in readings) < DIFFERS_SECONDS
