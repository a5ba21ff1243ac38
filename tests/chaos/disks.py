"""Disks that can be full: a file system of limited size if this user may mount one, and else a limit on files."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.disk import full_disk

FILLER = "filler"
PIECE_BYTES = 256 * 1024


@contextmanager
def mounted(directory: Path, megabytes: int) -> Iterator[bool]:
    """Mount an empty file system on a directory for a while; whether that was possible."""
    directory.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=700", "livetables-chaos", str(directory)]
    is_mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", str(directory)], capture_output=True, check=False)


@contextmanager
def full(directory: Path, is_mounted: bool, processes: Sequence[int]) -> Iterator[None]:
    """Let the disk of a directory be full for a while; where it is not mounted, for these processes alone."""
    with ExitStack() as limits:
        if not is_mounted:
            for pid in processes:
                limits.enter_context(full_disk(0, pid))
            yield
            return
        filler = directory / FILLER
        try:
            with filler.open("wb", buffering=0) as file:
                try:
                    while file.write(bytes(PIECE_BYTES)):
                        pass
                except OSError:  # it is full
                    pass
            yield
        finally:
            filler.unlink(missing_ok=True)
