"""One system a directory, and what it writes for the others there."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from livetables.client.local_system import Addresses, LocalSystem
from livetables.local.lock import held
from livetables.model.errors import ConfigError, SetupError

RUNNING = LocalSystem(Addresses("a:1", "http://b:2", "grpc://c:3"), "the key", {"server": 7})


def test_what_is_written_can_be_read_by_this_user_only(tmp_path: Path) -> None:
    RUNNING.write(tmp_path)
    assert LocalSystem.read(tmp_path) == RUNNING
    assert stat.S_IMODE((tmp_path / "up.json").stat().st_mode) == 0o600


def test_the_key_is_not_shown(tmp_path: Path) -> None:
    RUNNING.write(tmp_path)
    assert "the key" not in repr(LocalSystem.read(tmp_path))


def test_of_a_key_in_a_file_only_the_path_is_written_and_its_first_key_is_the_current_one(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("the key\n")
    running = replace(RUNNING, token_file=str(keys), ca_file="/etc/ca.pem")
    running.write(tmp_path)
    assert "the key" not in (tmp_path / "up.json").read_text()
    found = LocalSystem.read(tmp_path)
    assert found == replace(running, token=None)
    assert found.key == running.key == "the key"
    keys.write_text("another\nthe key\n")
    assert found.key == "another"
    keys.unlink()
    assert LocalSystem.read(tmp_path) == found, "whoever has the key needs no file"
    with pytest.raises(ConfigError, match='keys" cannot be read'):
        _ = found.key


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"addresses": {}, "token": "", "pids": {}}'])
def test_what_cannot_be_understood_is_as_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "up.json").write_text(content)
    assert LocalSystem.read(tmp_path) is None


def test_a_directory_is_held_once_and_can_be_held_again(tmp_path: Path) -> None:
    with held(tmp_path):
        RUNNING.write(tmp_path)
        with pytest.raises(SetupError, match=f"already, as process {os.getpid()}") as refusal, held(tmp_path):
            pass
        assert "another directory" in refusal.value.cure
        assert LocalSystem.read(tmp_path) == RUNNING
    assert LocalSystem.read(tmp_path) is None
    with held(tmp_path):
        pass
