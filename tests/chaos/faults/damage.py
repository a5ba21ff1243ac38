"""Files that are damaged while their process is dead: the store, its log, the checkpoint."""

from __future__ import annotations

import random
from pathlib import Path

from tests.chaos.faults.fault import fault
from tests.chaos.subject import Subject
from tests.server.storage.test_damage import MAGIC_BYTES


def damage(file: Path, chance: random.Random, kept: int = 0) -> str:
    """Truncate or scribble over a file, but for its first bytes; what was done."""
    content = bytearray(file.read_bytes())
    if chance.random() < 0.5:
        content = content[: max(kept, chance.randrange(len(content) + 1))]
        done = f"truncated to {len(content):,} bytes"
    else:
        start = min(len(content), kept + chance.randrange(max(1, len(content) - kept)))
        content[start : start + 4096] = chance.randbytes(4096)
        done = f"overwritten at {start:,}"
    file.write_bytes(content)
    (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
    return f"{file.name} {done}"


def damaged_store(subject: Subject, chance: random.Random) -> str:
    with subject.supervisor.paused:
        subject.system.server.kill()
        return damage(subject.directory / "store.duckdb", chance, MAGIC_BYTES)


def damaged_log(subject: Subject, chance: random.Random) -> str:
    """The store's write-ahead log. If there is none, everything is in the file, and there is nothing to damage."""
    with subject.supervisor.paused:
        subject.system.server.kill()
        log = subject.directory / "store.duckdb.wal"
        return damage(log, chance) if log.exists() and log.stat().st_size else "there is no log"


def damaged_checkpoint(subject: Subject, chance: random.Random) -> str:
    generation = str(subject.system.status()["generation"])
    with subject.supervisor.paused:
        subject.system.pipeline.kill()
        part = chance.choice(("offsets", "commits", "state", "metadata"))
        place = subject.directory / "checkpoints" / generation / part
        files = sorted(each for each in [place, *place.rglob("*")] if each.is_file() and not each.name.startswith("."))
        done = [damage(file, chance) for file in files if file.stat().st_size]
        return f"{part}: {', '.join(done)}"[:200]


FAULTS = (
    fault("damaged_store", damaged_store, "server", 0.5, is_quick=False),
    fault("damaged_log", damaged_log, "server", 0.6, is_quick=False),
    fault("damaged_checkpoint", damaged_checkpoint, "pipeline server links", 0.2, is_quick=False),
)
