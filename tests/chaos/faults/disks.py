"""Disks that are full for a while: where the store, the logs and Spark's own files are, and where checkpoints are."""

from __future__ import annotations

import random
import time

from tests.chaos.disks import full
from tests.chaos.faults.fault import fault
from tests.chaos.subject import Subject

SECONDS_MIN, SECONDS_MAX = 0.5, 3.0


def full_store(subject: Subject, chance: random.Random) -> str:
    """That of the store and of all logs."""
    seconds = chance.uniform(SECONDS_MIN, SECONDS_MAX)
    with full(subject.directory, subject.mounts["directory"], [subject.process("server")]):
        time.sleep(seconds)
    return f"store and logs for {seconds:.1f} s"


def full_checkpoints(subject: Subject, chance: random.Random) -> str:
    """Long enough for a commit to fall into it."""
    seconds = chance.uniform(SECONDS_MIN, SECONDS_MAX) + 5
    with full(subject.directory / "checkpoints", subject.mounts["checkpoints"], [subject.process("jvm")]):
        time.sleep(seconds)
    return f"checkpoints for {seconds:.1f} s"


FAULTS = (
    fault("disk_full_store", full_store, "disk server", 2, is_quick=False),
    fault("disk_full_checkpoints", full_checkpoints, "disk pipeline", 0.7, is_quick=False),
)
