"""A process of `livetables up` is listened to, whatever becomes of its log."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from livetables.local.processes import CommandProcess
from livetables.model.errors import SetupError
from tests.support.kafka import wait_until


def test_a_process_is_listened_to_while_the_disk_of_its_log_is_full() -> None:
    heard: list[str] = []
    process = CommandProcess("command", ["--version"], os.environ, Path("/dev/full"), heard.append, stop_seconds=10)
    process.start()
    try:
        wait_until(lambda: bool(heard), "its line is heard")
        assert heard[0].startswith("livetables ")
    finally:
        process.stop()


def test_a_process_whose_log_cannot_be_opened_is_not_started(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file, where the directory of the logs should be")
    log = tmp_path / "logs" / "command.log"
    process = CommandProcess("command", ["--version"], os.environ, log, print, stop_seconds=10)
    with pytest.raises(SetupError, match="could not be started"):
        process.start()
    assert process.pid is None
