"""`livetables serve`: its key, its addresses, and its errors when it cannot start."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.server import LiveClient

pytestmark = pytest.mark.processes

COMMAND = [sys.executable, "-m", "livetables.cli.main", "serve"]


def environment(directory: Path, **settings: str) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("LIVETABLES_")},
        "LIVETABLES_SERVER_STORE": str(directory / "store.duckdb"),
        "LIVETABLES_SERVER_PORT": "0",
        "LIVETABLES_SERVER_FLIGHT_PORT": "0",
        **settings,
    }


@contextmanager
def serving(settings: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(COMMAND, env=settings, stdout=subprocess.PIPE, text=True)
    try:
        yield process
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stdout
        process.stdout.close()


def address(line: str) -> str:
    (port,) = re.findall(r"serving http://127\.0\.0\.1:(\d+)  Flight grpc://127\.0\.0\.1:\d+", line)
    return f"ws://127.0.0.1:{port}/ws"


def test_without_a_key_one_is_made_and_printed_once(tmp_path: Path) -> None:
    with serving(environment(tmp_path)) as process:
        assert process.stdout
        (key,) = re.findall(r"^key: (\S{32}) ", process.stdout.readline())
        with LiveClient(address(process.stdout.readline()), token=key) as client:
            assert client.receive_type("hello")["tables"] == []


def test_the_key_may_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("from-a-file\n")
    settings = environment(tmp_path, LIVETABLES_SERVER_TOKEN_FILE=str(tmp_path / "key"))
    with serving(settings) as process:
        assert process.stdout
        with LiveClient(address(process.stdout.readline()), token="from-a-file") as client:  # noqa: S106
            assert client.receive_type("hello")


def test_a_port_that_is_taken_is_an_error_that_names_the_setting(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for setting in ("PORT", "FLIGHT_PORT"):
            settings = environment(tmp_path, **{f"LIVETABLES_SERVER_{setting}": port})
            ended = subprocess.run(COMMAND, env=settings, capture_output=True, text=True, timeout=30, check=False)
            assert ended.returncode == 2
            assert f"port {port}" in ended.stderr
            assert f"LIVETABLES_SERVER_{setting}" in ended.stderr
            assert "Traceback" not in ended.stderr


def test_a_store_in_use_is_an_error(tmp_path: Path) -> None:
    with serving(environment(tmp_path, **{"LIVETABLES_TOKEN": "a key"})) as process:
        assert process.stdout
        process.stdout.readline()
        ended = subprocess.run(
            COMMAND, env=environment(tmp_path), capture_output=True, text=True, timeout=30, check=False
        )
        assert ended.returncode == 2
        assert "stop the server that uses it" in ended.stderr


def test_the_files_of_the_store_are_private(tmp_path: Path) -> None:
    directory = tmp_path / "new"
    command = ["sh", "-c", f"umask 022; exec {shlex.join(COMMAND)}"]
    process = subprocess.Popen(command, env=environment(directory), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        while not process.stdout.readline().startswith("serving "):
            assert process.poll() is None
        made = [directory, *directory.iterdir()]
        assert [path.name for path in made if path.stat().st_mode & 0o077] == []
        assert directory / "store.duckdb" in made
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()
