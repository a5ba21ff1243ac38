"""`python -m tests.chaos`: faults, control messages, mishaps, kills and swaps at full length, against real processes.

`--only` takes scenarios, or kinds of faults. `soak` and `overload` run only if they are named.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from livetables.local.broker import Broker
from tests.chaos.faults import FAULTS
from tests.chaos.faults.fault import Fault
from tests.chaos.kills import CELLS, SETTINGS, SWAPPING, check_settled, kill_while_switching
from tests.chaos.messages import run_messages
from tests.chaos.mishaps import LINGERING, run_mishaps
from tests.chaos.overload import run_overload
from tests.chaos.plan import planned
from tests.chaos.report import Report
from tests.chaos.run import run_faults
from tests.chaos.soak import run_soak
from tests.chaos.subject import running as running_subject
from tests.chaos.swaps import growth, run_swaps
from tests.support.system import Feeder, System
from tests.support.watcher import Watcher

SCENARIOS = ("faults", "messages", "mishaps", "kills", "swaps")
LONG = ("soak", "overload")


def main() -> int:
    arguments = read_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # with all processes, and what is mounted
    print(f"seed {arguments.seed}", flush=True)
    chance = random.Random(arguments.seed)
    measured: dict[str, object] = {"seed": arguments.seed}
    is_clean = True
    kinds = {kind: each for kind, each in FAULTS.items() if kind in arguments.only or "faults" in arguments.only}
    if kinds:
        report = faults(arguments.seed, arguments.faults, kinds, arguments.directory)
        measured["faults"] = report.as_dict()
        is_clean = report.is_clean
    if "soak" in arguments.only:
        soaked = run_soak(
            arguments.seed,
            minutes=arguments.minutes,
            rate=arguments.rate,
            swap_every_seconds=arguments.swap_every,
            clients=arguments.clients,
            plot=arguments.plot,
            notify=notify,
        )
        measured["soak"] = soaked
        is_clean = is_clean and not soaked["grown"]
    if "overload" in arguments.only:
        measured["overload"] = run_overload(arguments.seed, minutes=arguments.minutes, notify=notify)
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
        measured["swaps"] = {"usages": [usage.as_dict() for usage in usages], "grown": grown}
        for name, (before, after) in grown.items():
            notify(f"{name} grew from {before:.1f} to {after:.1f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(measured, indent=2) + "\n")
    return 1 if grown or not is_clean else 0


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--only", choices=[*SCENARIOS, *LONG, *FAULTS], nargs="+", default=SCENARIOS, metavar="NAME")
    parser.add_argument("--faults", type=int, default=1000, help="how many; about two and a half seconds each")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--messages", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=1, help="how often each process is killed at each moment")
    parser.add_argument("--swaps", type=int, default=30, help="how many after three minutes of others")
    parser.add_argument("--minutes", type=float, default=60, help="of soak and overload")
    parser.add_argument("--rate", type=int, default=2000, help="of soak: records a second")
    parser.add_argument("--swap-every", type=float, default=300, help="of soak: seconds")
    parser.add_argument("--clients", type=int, default=200, help="of soak")
    parser.add_argument("--plot", type=Path, help="of soak: draw what was measured into this SVG file")
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


def faults(seed: int, count: int, kinds: Mapping[str, Fault], kept: Path | None) -> Report:
    """Faults of these kinds, in a row and at once, into one system that is never stopped."""
    report = Report(seed)
    with running_subject(random.Random(seed), kept / "faults" if kept else None) as subject:
        run_faults(subject, planned(seed, count, kinds), report, notify)
    for line in report.lines():
        notify(line)
    return report


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
