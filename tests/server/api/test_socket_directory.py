"""Directories for sockets: private, removed at the end, and after a kill by the next server."""

from __future__ import annotations

import multiprocessing
import os
import signal
import stat
import tempfile
from pathlib import Path

import pytest

from livetables.server.api.socket_directory import LOCK, PREFIX, SocketDirectory


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for temporary files of this test alone."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_it_is_private_and_removed_at_the_end() -> None:
    directory = SocketDirectory()
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
    (directory.path / "grpc").touch()
    directory.remove()
    assert not directory.path.exists()


def test_the_one_of_a_living_server_stays() -> None:
    first = SocketDirectory()
    second = SocketDirectory()
    assert first.path.exists()
    assert second.path.exists()
    first.remove()
    second.remove()


def use_until_killed(temporary: str) -> None:
    tempfile.tempdir = temporary
    (SocketDirectory().path / "grpc").touch()
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_one_of_a_killed_server_is_removed_by_the_next(temporary: Path) -> None:
    server = multiprocessing.get_context("spawn").Process(target=use_until_killed, args=(str(temporary),))
    server.start()
    server.join()
    assert server.exitcode == -signal.SIGKILL
    (left,) = temporary.glob(f"{PREFIX}*")
    assert sorted(path.name for path in left.iterdir()) == ["grpc", LOCK]
    SocketDirectory().remove()
    assert not left.exists()


def test_what_is_not_ours_stays(temporary: Path) -> None:
    other = temporary / "livetables-of-a-user"
    unmarked = temporary / f"{PREFIX}unmarked"
    for directory in (other, unmarked):
        directory.mkdir()
        (directory / "file").touch()
    (other / LOCK).touch()
    linked = temporary / f"{PREFIX}linked"
    linked.mkdir()
    (linked / LOCK).symlink_to(other / LOCK)
    SocketDirectory().remove()
    assert all((path / "file").exists() for path in (other, unmarked))
    assert linked.exists()
