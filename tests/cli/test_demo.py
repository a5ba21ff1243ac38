"""`livetables demo` as a person runs it: rows appear, and nothing is left behind."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "livetables.cli.main", "demo", "--seconds", "2", "--rate", "500"]
DEMO_SECONDS = 180


@pytest.mark.spark
@pytest.mark.kafka
def test_the_demo_shows_joined_rows_and_cleans_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    demo = subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        output, errors = demo.communicate(timeout=DEMO_SECONDS)
    finally:
        demo.send_signal(signal.SIGKILL)
    assert demo.returncode == 0, errors
    assert re.search(r"Kafka is up at 127\.0\.0\.1:\d+", output)
    assert re.search(r"userId=u\d+ .* accountType=\w+ .* balance=", output)
    assert output.rstrip().endswith("stopped; nothing is left running")
    assert [path for path in tmp_path.iterdir() if path.name.startswith("livetables")] == []
