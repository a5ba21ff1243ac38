"""What has to work on Windows, as far as it can be seen elsewhere: no `fcntl`, no `resource`, no `uvloop`, no signal
handlers in the event loop. Windows' own `msvcrt` is played by a module that locks as it does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import livetables
from livetables.client.http import HttpClient
from livetables.local.ports import free_ports
from tests.support.server import TOKEN

pytestmark = pytest.mark.processes

STOP_SECONDS = 60
LIKE_WINDOWS = """
import asyncio, os, sys, types

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in ("fcntl", "resource", "uvloop"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

def locking(descriptor, mode, count):
    assert os.lseek(descriptor, 0, os.SEEK_CUR) > 0, "the first byte must stay readable"
    place = os.fstat(descriptor)
    if (place.st_dev, place.st_ino) in held:
        raise OSError(13, "Permission denied")
    held.add((place.st_dev, place.st_ino))

def no_handlers(loop, number, callback, *arguments):
    raise NotImplementedError

held = set()
sys.meta_path.insert(0, Missing())
for name in ("fcntl", "resource", "uvloop"):
    sys.modules.pop(name, None)
sys.modules["msvcrt"] = types.SimpleNamespace(locking=locking, LK_NBLCK=2)
asyncio.SelectorEventLoop.add_signal_handler = no_handlers
"""
# asyncio itself needs them on this system, so only our own use of them is taken away.
NO_UNIX_SOCKETS = """
from livetables.cli.main import main
from livetables.server.api import front
front.HAS_UNIX_SOCKETS = False
"""


def python(*lines: str) -> subprocess.CompletedProcess[str]:
    """Run lines where those modules are missing."""
    program = "\n".join([LIKE_WINDOWS, *lines])
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=STOP_SECONDS)


def started(verb: str, directory: Path, settings: Mapping[str, str]) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LIVETABLES_")}
    return subprocess.Popen(
        [sys.executable, "-c", f"{LIKE_WINDOWS}\n{NO_UNIX_SOCKETS}\nsys.exit(main(['{verb}']))"],
        cwd=directory,
        env={**environment, "LIVETABLES_TOKEN": TOKEN, **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def line_beginning(lines: Iterator[str], beginning: str) -> str:
    """The first line that begins so; what was printed before is in the error if none does."""
    printed = []
    for line in lines:
        printed.append(line)
        if line.startswith(beginning):
            return line
    raise AssertionError("".join(printed))


@pytest.mark.parametrize(
    "module",
    [
        "livetables",
        "livetables.client",
        "livetables.cli.main",
        "livetables.cli.serve",
        "livetables.cli.pipeline",
        "livetables.cli.control",
        "livetables.cli.doctor",
        "livetables.cli.init",
        "livetables.cli.sql",
        "livetables.cli.status",
        "livetables.cli.tail",
    ],
)
def test_a_module_is_imported_without_what_windows_lacks(module: str) -> None:
    done = python(f"import {module}", "assert not {'fcntl', 'resource', 'uvloop'} & set(sys.modules)")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_file_is_locked_once_without_fcntl(tmp_path: Path) -> None:
    done = python(
        "from livetables.locks import locked",
        f"one, other = open({str(tmp_path / 'lock')!r}, 'a+'), open({str(tmp_path / 'lock')!r}, 'a+')",
        "one.write('me'); one.flush()",
        "print(locked(one), locked(other), other.seek(0), other.read())",
    )
    assert done.stdout.split() == ["True", "False", "0", "me"], done.stderr


def test_the_server_serves_and_ends_at_a_signal(tmp_path: Path) -> None:
    settings = {"LIVETABLES_SERVER_PORT": "0", "LIVETABLES_SERVER_FLIGHT_PORT": "0"}
    with started("serve", tmp_path, settings) as server:
        try:
            assert server.stdout
            address = line_beginning(server.stdout, "serving ").split()[1]
            assert HttpClient(address, TOKEN, STOP_SECONDS).get("/healthz")
            with livetables.connect(address, TOKEN) as connection:
                assert connection.sql("SELECT 42 AS answer").to_pylist() == [{"answer": 42}]
            server.send_signal(signal.SIGINT)
            assert server.wait(STOP_SECONDS) == 0
            assert "stopped" in server.stdout.read()
        finally:
            server.kill()


@pytest.mark.chaos
@pytest.mark.spark
def test_the_pipeline_starts_spark_and_looks_for_kafka(tmp_path: Path) -> None:
    kafka, flight = free_ports(2)
    settings = {
        "LIVETABLES_KAFKA_BOOTSTRAP_SERVERS": f"127.0.0.1:{kafka}",
        "LIVETABLES_PIPELINE_SERVER": f"grpc://127.0.0.1:{flight}",
        "LIVETABLES_PIPELINE_MASTER": "local[1]",
    }
    with started("pipeline", tmp_path, settings) as pipeline:
        try:
            assert pipeline.stdout
            line_beginning(pipeline.stdout, "starting Spark on local[1]")
            line_beginning(pipeline.stdout, "waiting: ")
            pipeline.send_signal(signal.SIGINT)
            assert pipeline.wait(STOP_SECONDS) == 0
        finally:
            pipeline.kill()
