"""What processes hold, sample by sample, and whether that grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.chaos.swaps import open_files, rss_megabytes, threads
from tests.support.system import System

Sample = dict[str, float]

# How much more than before may be there at the end: a share of it, and so many.
ALLOWED: Mapping[str, tuple[float, float]] = {
    "megabytes": (0.15, 100),
    "threads": (0.1, 20),
    "files": (0.1, 60),
    "p50_ms": (0.3, 50),
    "p99_ms": (0.5, 500),
}


def sample(system: System) -> Sample:
    """Memory, threads and open files of each process."""
    broker = system.broker.pid
    assert broker is not None, "the broker has ended"
    processes = {
        "server": [system.server.pid, *system.server.relays()],
        "driver": [system.pipeline.pid],
        "jvm": [system.pipeline.jvm_pid],
        "broker": [broker],
    }
    taken: Sample = {}
    for name, pids in processes.items():
        taken[f"{name}_megabytes"] = round(sum(map(rss_megabytes, pids)), 1)
        taken[f"{name}_threads"] = sum(map(threads, pids))
        taken[f"{name}_files"] = sum(map(open_files, pids))
    return taken


def grown(samples: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    """What is more at the end than it was: its greatest value before, and its least in the last part.

    The first fifth is warming up. A value that goes up and down does not count, one that has gone up for good does.
    """
    count = len(samples)
    before, after = samples[count // 5 : max(count // 2, count // 5 + 1)], samples[-max(1, count // 5) :]
    found = {}
    for name in sorted(set().union(*samples)):
        share, most = next((each for kind, each in ALLOWED.items() if name.endswith(kind)), (None, None))
        earlier = [each[name] for each in before if name in each]
        later = [each[name] for each in after if name in each]
        if share is None or most is None or not earlier or not later:
            continue
        if min(later) > max(earlier) * (1 + share) + most:
            found[name] = (max(earlier), min(later))
    return found
