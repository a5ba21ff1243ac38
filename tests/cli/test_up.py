"""`livetables up`: what it refuses before anything is started, and how it tells what its processes refuse."""

from __future__ import annotations

import io
import re
import socket
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from livetables.cli.up import Steps
from tests.support.up import COMMAND, clean_environment

NO_BROKER = {"LIVETABLES_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"}


def up(directory: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "up", *arguments],
        cwd=directory,
        env=clean_environment(**settings),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "settings", "told"),
    [
        (["--demo"], NO_BROKER, "kafka.bootstrap.servers is configured"),
        (["--demo"], {"LIVETABLES_TABLES_USERS_TOPIC": "people"}, "configured otherwise"),
        (["--demo", "--rate", "0"], {}, "--rate is 0"),
    ],
)
def test_a_demo_that_cannot_be_is_refused_before_anything_is_started(
    tmp_path: Path, arguments: list[str], settings: dict[str, str], told: str
) -> None:
    done = up(tmp_path, *arguments, **settings)
    assert done.returncode == 2
    assert told in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_a_process_refuses_ends_everything_with_its_own_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = up(tmp_path, **NO_BROKER, LIVETABLES_SERVER_PORT=port)
    assert done.returncode == 2
    assert f"livetables: cannot listen on 127.0.0.1 port {port}" in done.stderr
    assert "LIVETABLES_SERVER_PORT" in done.stderr
    assert not (tmp_path / ".livetables" / "up.json").exists()


def test_steps_are_lines_where_there_is_no_terminal() -> None:
    screen = io.StringIO()
    steps = Steps(Console(file=screen))
    steps.say("building: 1 of 9")
    steps.say("building: 2 of 9")
    steps.show("ready")
    assert screen.getvalue() == "building: 1 of 9\nbuilding: 2 of 9\nready\n"


def test_steps_that_differ_in_numbers_only_share_a_line_in_a_terminal() -> None:
    screen = io.StringIO()
    steps = Steps(Console(file=screen, force_terminal=True, width=80))
    for step in ("starting", "building: 1 of 9", "building: 9 of 9"):
        steps.say(step)
    steps.show("ready")
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", screen.getvalue()).splitlines()
    assert [line for line in lines if line in ("starting", "building: 1 of 9", "building: 9 of 9", "ready")] == [
        "starting",
        "building: 9 of 9",
        "ready",
    ]
