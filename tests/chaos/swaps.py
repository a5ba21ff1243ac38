"""Many swaps in one process: what each of them leaves behind must go with it."""

from __future__ import annotations

import random
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median

from tests.chaos.kills import check_settled
from tests.chaos.messages import check_watched, other_pointing, send_pointing
from tests.support.system import Feeder, System
from tests.support.watcher import Watcher

CALM_SECONDS = 3.0
# By then everything has been used once, caches are what they will be, and Spark has released the state of the first
# generations. It looks for that once a minute, however many swaps there were: on a fast machine there are many.
WARM_SECONDS = 180.0
LAST_SWAPS = 5


@dataclass(frozen=True)
class Usage:
    """What a swap took, and what the processes hold after it, with one generation alive and none lingering."""

    seconds: float  # from the beginning to the message
    swap_seconds: float  # from there to its outcome
    gap_seconds: float  # the longest time without a frame of a table meanwhile
    calm_gap_seconds: float  # and the longest in a while before it
    pipeline_threads: int
    jvm_threads: int
    jvm_heap_megabytes: float  # after a full collection
    jvm_metaspace_megabytes: float
    jvm_code_megabytes: float  # compiled
    jvm_rss_megabytes: float
    jvm_other_megabytes: float  # of that, none of these: buffers, threads, RocksDB
    jvm_files: int
    pipeline_rss_megabytes: float
    pipeline_files: int
    server_threads: int
    server_rss_megabytes: float
    server_files: int
    checkpoints_megabytes: float
    scratch_megabytes: float  # Spark's working files, on this machine
    store_megabytes: float
    rows: int

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


# How much more than while warming up may be there after the last swaps: about what one more generation would take.
ALLOWANCES: dict[str, float] = {
    "pipeline_threads": 4,
    "jvm_threads": 20,
    "jvm_heap_megabytes": 60,
    "jvm_metaspace_megabytes": 30,
    "jvm_code_megabytes": 60,
    "jvm_other_megabytes": 150,
    "jvm_files": 60,
    "pipeline_rss_megabytes": 40,
    "pipeline_files": 10,
    "server_threads": 4,
    "server_rss_megabytes": 120,
    "server_files": 10,
    "checkpoints_megabytes": 20,
    "scratch_megabytes": 20,
    "store_megabytes": 20,
}


def run_swaps(system: System, count: int, chance: random.Random, notify: Callable[[str], None] = print) -> list[Usage]:
    """Swap until everything is warm and then so many times, under a steady flow of records; measure after each swap."""
    usages: list[Usage] = []
    notify("  ".join(HEADINGS))
    with Watcher(system.server) as watcher, Feeder(system, chance.randrange(2**32)) as feeder:
        watcher.wait_for_rows()
        began = time.monotonic()
        while len(usages) - len(warming_up(usages)) < count:
            calm = time.monotonic()
            time.sleep(CALM_SECONDS)  # not a wait: this while is what the time of the swap is compared with
            started = time.monotonic()
            calm_gap_seconds = watcher.gap_seconds(calm, started)
            send_pointing(system, other_pointing(system, chance))
            system.wait_decided()
            ended = time.monotonic()
            with feeder.paused:
                system.wait_for_tables()
                check_settled(system)
                gap_seconds = watcher.gap_seconds(started, ended)
                usages.append(usage(system, started - began, ended - started, gap_seconds, calm_gap_seconds))
            notify(line(usages[-1]))
        check_watched(watcher, system)
    for name in ("swap_seconds", "gap_seconds", "calm_gap_seconds"):
        values = [each.as_dict()[name] for each in usages]
        notify(f"{name}: {median(values):.2f} at the median, {max(values):.2f} at most")
    return usages


def warming_up(usages: Sequence[Usage]) -> Sequence[Usage]:
    """The swaps that were made until everything was warm."""
    return [each for each in usages if each.seconds < WARM_SECONDS]


def growth(usages: Sequence[Usage]) -> dict[str, tuple[float, float]]:
    """What has grown by more than a generation's worth: its greatest value while warming up, and its least at the end.

    The least of the last swaps, since a value goes up and down; a leak lifts the least of them too.
    """
    first, last = warming_up(usages), usages[-LAST_SWAPS:]
    grown = {}
    for name, allowance in ALLOWANCES.items():
        before, after = max(each.as_dict()[name] for each in first), min(each.as_dict()[name] for each in last)
        if after > before + allowance:
            grown[name] = (before, after)
    return grown


def usage(system: System, seconds: float, swap_seconds: float, gap_seconds: float, calm_gap_seconds: float) -> Usage:
    pipeline, jvm, server = system.pipeline.pid, system.pipeline.jvm_pid, system.server.pid
    memory = jvm_memory(jvm)
    jvm_rss_megabytes = rss_megabytes(jvm)
    return Usage(
        seconds=seconds,
        swap_seconds=swap_seconds,
        gap_seconds=gap_seconds,
        calm_gap_seconds=calm_gap_seconds,
        pipeline_threads=threads(pipeline),
        jvm_threads=threads(jvm),
        jvm_heap_megabytes=memory.heap_used,
        jvm_metaspace_megabytes=memory.metaspace,
        jvm_code_megabytes=memory.code,
        jvm_rss_megabytes=jvm_rss_megabytes,
        jvm_other_megabytes=jvm_rss_megabytes - memory.heap - memory.metaspace - memory.code,
        jvm_files=open_files(jvm),
        pipeline_rss_megabytes=rss_megabytes(pipeline),
        pipeline_files=open_files(pipeline),
        server_threads=threads(server),
        server_rss_megabytes=rss_megabytes(server),
        server_files=open_files(server),
        checkpoints_megabytes=disk_megabytes(system.directory / "checkpoints"),
        scratch_megabytes=disk_megabytes(system.directory / "livetables-spark"),
        store_megabytes=sum(disk_megabytes(path) for path in system.directory.glob("store.duckdb*")),
        rows=sum(system.count(table) for table in ("users_ui", "accounts_ui", "final_ui")),
    )


HEADINGS = [field.name.replace("_megabytes", "_mb") for field in fields(Usage)]


def line(measured: Usage) -> str:
    values = zip(HEADINGS, measured.as_dict().values(), strict=True)
    return "  ".join(f"{value:{len(heading)}.1f}" for heading, value in values)


@dataclass(frozen=True)
class JvmMemory:
    """In megabytes, after a full collection."""

    heap_used: float
    heap: float  # that it has in memory: what it has touched once, it does not give back
    metaspace: float
    code: float


def jvm_memory(jvm: int) -> JvmMemory:
    jcmd(jvm, "GC.run")
    heap, code = jcmd(jvm, "GC.heap_info"), jcmd(jvm, "Compiler.codecache")
    used = re.findall(r"(?:PSYoungGen|ParOldGen)\s+total \d+K, used (\d+)K", heap)
    metaspace = re.findall(r"Metaspace\s+used \d+K, committed (\d+)K", heap)
    assert (len(used), len(metaspace)) == (2, 1), "the heap is not that of the parallel collector"
    heap_resident = resident_megabytes(jvm, re.findall(r"(?:PSYoungGen|ParOldGen) .*\[(\w+), \w+, (\w+)\)", heap))
    code_resident = resident_megabytes(jvm, re.findall(r"bounds \[(\w+), \w+, (\w+)\]", code))
    return JvmMemory(sum(map(int, used)) / 1024, heap_resident, int(metaspace[0]) / 1024, code_resident)


def resident_megabytes(pid: int, ranges: Sequence[tuple[str, str]]) -> float:
    """How much of some ranges of addresses is in memory."""
    bounds = [(int(start, 16), int(end, 16)) for start, end in ranges]
    assert bounds, "the JVM prints its addresses in another format"
    megabytes, is_inside = 0.0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if mapped := re.match(r"([0-9a-f]+)-[0-9a-f]+ ", line):
            is_inside = any(start <= int(mapped[1], 16) < end for start, end in bounds)
        elif is_inside and line.startswith("Rss:"):
            megabytes += int(line.split()[1]) / 1024
    return megabytes


def jcmd(jvm: int, command: str) -> str:
    done = subprocess.run(["jcmd", str(jvm), command], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def threads(pid: int) -> int:
    return int(re.findall(r"Threads:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0])


def rss_megabytes(pid: int) -> float:
    return int(re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[0]) / 1024


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def disk_megabytes(path: Path) -> float:
    """What is on disk under a path. A file that goes meanwhile takes nothing."""
    done = subprocess.run(["du", "-sk", str(path)], capture_output=True, text=True, check=False)
    return int(done.stdout.split()[0]) / 1024 if done.stdout else 0.0
