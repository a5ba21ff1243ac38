"""`livetables status`: where it finds the server, and what it shows of one that has nothing yet."""

from __future__ import annotations

import io
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from livetables.cli.status import show
from livetables.client.local_system import Addresses, LocalSystem
from tests.support.server import TOKEN, ServerProcess
from tests.support.up import COMMAND, clean_environment


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def running(server: ServerProcess, tmp_path: Path) -> LocalSystem:
    """What `livetables up` would have written in this directory."""
    system = LocalSystem(Addresses("127.0.0.1:9092", server.http, server.flight), TOKEN, {"server": server.pid})
    (tmp_path / ".livetables").mkdir()
    system.write(tmp_path / ".livetables")
    return system


def status(directory: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "status", *arguments],
        cwd=directory,
        env=clean_environment(**settings),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_what_runs_in_the_directory_needs_no_key(running: LocalSystem, tmp_path: Path) -> None:
    done = status(tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["addresses"] == {
        "kafka": "127.0.0.1:9092",
        "http": running.addresses.http,
        "flight": running.addresses.flight,
    }
    assert answer["state"] == "pipeline_down"
    assert answer["orchestrator"] is None


def test_a_server_without_a_pipeline_is_shown_as_a_sentence(server: ServerProcess, tmp_path: Path) -> None:
    done = status(tmp_path, "--url", server.http, LIVETABLES_TOKEN=TOKEN)
    assert done.returncode == 0, done.stderr
    assert "pipeline down: the pipeline has not been heard yet" in done.stdout


def test_settings_find_a_server_too(server: ServerProcess, tmp_path: Path) -> None:
    done = status(tmp_path, "--json", LIVETABLES_TOKEN=TOKEN, LIVETABLES_SERVER_PORT=str(server.port))
    assert json.loads(done.stdout)["addresses"]["http"] == server.http


@pytest.mark.usefixtures("running")
def test_the_key_of_this_directory_goes_to_no_other_server(tmp_path: Path) -> None:
    done = status(tmp_path, "--url", "http://127.0.0.1:1")
    assert done.returncode == 2
    assert "there is no key for the server at http://127.0.0.1:1" in done.stderr


def test_a_system_that_was_killed_is_shown_as_a_server_that_does_not_answer(tmp_path: Path) -> None:
    (tmp_path / ".livetables").mkdir()
    LocalSystem(Addresses(None, "http://127.0.0.1:1", None), TOKEN).write(tmp_path / ".livetables")
    done = status(tmp_path)
    assert done.returncode == 2
    assert "no livetables server answers at http://127.0.0.1:1" in done.stderr
    assert "start one with `livetables up`" in done.stderr


def test_sparks_pages_are_shown_where_there_are_any() -> None:
    answer: dict[str, Any] = {
        "state": "live",
        "message": "up to date",
        "orchestrator": None,
        "clients": 0,
        "subscriptions": 0,
        "addresses": {"kafka": None, "http": "http://127.0.0.1:8765", "flight": None},
        "history": [],
        "spark_ui": "http://127.0.0.1:4040",
    }
    for spark_ui, is_shown in (("http://127.0.0.1:4040", True), (None, False)):
        screen = io.StringIO()
        show(Console(file=screen), {**answer, "spark_ui": spark_ui})
        assert ("spark       http://127.0.0.1:4040" in screen.getvalue()) is is_shown


def test_the_join_of_every_view_is_shown() -> None:
    screen = io.StringIO()
    answer: dict[str, Any] = {
        "state": "live",
        "message": "up to date",
        "orchestrator": {"state": "live", "joinType": "left", "user_accountJoin": "asof"},
        "clients": 0,
        "subscriptions": 0,
        "addresses": {"kafka": None, "http": "http://127.0.0.1:8765", "flight": None},
        "history": [],
    }
    show(Console(file=screen), answer)
    assert "join        left, user_account asof" in screen.getvalue()
