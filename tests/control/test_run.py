"""What a pipeline tells Spark about the directory it works in. `make chaos` runs one where the path is long."""

from __future__ import annotations

import socket
import uuid
from pathlib import Path

import pytest

from livetables.control.run import _local_settings

SOCKETS = "spark.python.unix.domain.socket.enabled"


def test_spark_uses_unix_sockets_where_their_path_is_short_enough() -> None:
    longest = Path("/").joinpath("d" * 59)
    assert SOCKETS not in _local_settings(longest)
    with socket.socket(socket.AF_UNIX) as listener, pytest.raises(FileNotFoundError):  # and not "path too long"
        listener.bind(str(longest / f".{uuid.uuid4()}.sock"))


@pytest.mark.parametrize("name", ["d" * 60, "ü" * 30], ids=["letters", "bytes"])
def test_spark_does_without_unix_sockets_where_their_path_is_too_long(name: str) -> None:
    assert _local_settings(Path("/").joinpath(name))[SOCKETS] == "false"
