"""`python -m tests.chaos`: random control messages, mishaps, kills and swaps at full length, against real processes."""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from livetables.local.broker import Broker
from tests.chaos.kills import CELLS, SETTINGS, SWAPPING, check_settled, kill_while_switching
from tests.chaos.messages import run_messages
from tests.chaos.mishaps import LINGERING, run_mishaps
from tests.chaos.swaps import growth, run_swaps
from tests.support.system import Feeder, System
from tests.support.watcher import Watcher

SCENARIOS = ("messages", "mishaps", "kills", "swaps")


def main() -> int:
    arguments = read_arguments()
    print(f"seed {arguments.seed}", flush=True)
    chance = random.Random(arguments.seed)
    measured: dict[str, object] = {"seed": arguments.seed}
    if "messages" in arguments.only:
        with running("messages", chance, arguments.directory) as system:
            measured["messages"] = messages(system, arguments.messages, chance)
    if "mishaps" in arguments.only:
        with running("mishaps", chance, arguments.directory, LINGERING) as system:
            run_mishaps(system, chance, notify)
    if "kills" in arguments.only:
        with running("kills", chance, arguments.directory) as system:
            measured["kills"] = kills(system, arguments.rounds, chance)
    grown: dict[str, tuple[float, float]] = {}
    if "swaps" in arguments.only:
        with running("swaps", chance, arguments.directory, SWAPPING) as system:
            usages = run_swaps(system, arguments.swaps, chance, notify)
        grown = growth(usages)
        measured["swaps"] = {"usages": [usage.told() for usage in usages], "grown": grown}
        for name, (before, after) in grown.items():
            notify(f"{name} grew from {before:.1f} to {after:.1f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(measured, indent=2) + "\n")
    return 1 if grown else 0


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--only", choices=SCENARIOS, nargs="+", default=SCENARIOS)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--messages", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=1, help="how often each process is killed at each moment")
    parser.add_argument("--swaps", type=int, default=30)
    parser.add_argument("--directory", type=Path, help="where logs and tables are kept; a temporary one if not given")
    parser.add_argument("--json", type=Path, help="write what was measured to this file")
    return parser.parse_args()


@contextmanager
def running(
    name: str, chance: random.Random, kept: Path | None, settings: Mapping[str, str] = SETTINGS
) -> Iterator[System]:
    """A system on three topics a side, with its first tables served."""
    with tempfile.TemporaryDirectory(prefix=f"livetables-chaos-{name}-") as temporary:
        directory = kept / name if kept else Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        notify(f"{name}: logs in {directory}")
        with Broker() as broker, System(directory, broker, chance, settings) as system:
            for _ in range(2):
                system.new_topic("users")
                system.new_topic("accounts")
            system.start()
            system.wait_for_tables()
            yield system


def messages(system: System, count: int, chance: random.Random) -> dict[str, object]:
    """Random control messages while somebody watches."""
    with Watcher(system.server) as watcher, Feeder(system, chance.randrange(2**32)) as feeder:
        watcher.wait_for_rows()
        gap = run_messages(system, watcher, feeder, count, chance, notify)
    check_settled(system)
    outcomes = system.outcomes()
    counts = {outcome: outcomes.count(outcome) for outcome in sorted(filter(None, set(outcomes)))}
    notify(f"messages: {counts}, {len(system.generations())} generations, longest time without a frame {gap:.2f} s")
    return {"outcomes": counts, "generations": len(system.generations()), "gap_seconds": gap}


def kills(system: System, rounds: int, chance: random.Random) -> list[dict[str, object]]:
    """Every process, and all together, killed at every moment of a swap."""
    converged: list[dict[str, object]] = []
    for target, moment in chance.sample(CELLS * rounds, len(CELLS) * rounds):
        started = time.monotonic()
        kill_while_switching(system, target, moment, chance, notify)
        seconds = time.monotonic() - started
        notify(f"  settled after {seconds:.1f} s")
        converged.append({"target": target, "moment": moment, "seconds": round(seconds, 1)})
    return converged


def notify(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
