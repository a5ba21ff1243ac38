"""Processes that are killed while topics are exchanged: whatever dies, and when, everything ends as it should."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import product
from typing import Literal, get_args

from tests.chaos.messages import check_order, check_watched, other_pointing, send_pointing
from tests.support.system import System
from tests.support.watcher import Watcher

Target = Literal["pipeline", "server", "broker", "all"]
Moment = Literal["build", "catch_up", "switch", "linger"]

TARGETS: tuple[Target, ...] = get_args(Target)
MOMENTS: tuple[Moment, ...] = get_args(Moment)
CELLS: list[tuple[Target, Moment]] = list(product(TARGETS, MOMENTS))
AROUND_SECONDS = 0.2  # after the moment was seen
LOOK_SECONDS = 0.005
SWAPPING = {
    "LIVETABLES_GENERATIONS_LINGER_SECONDS": "2",
    "LIVETABLES_GENERATIONS_SWITCH_AFTER_SECONDS": "600",  # a slow machine is no reason to switch too early
}
SETTINGS = {
    **SWAPPING,
    "LIVETABLES_PIPELINE_MAX_RECORDS_PER_BATCH": "60",  # so that there is a catch-up to hit: a topic takes several
}


def kill_while_switching(
    system: System, target: Target, moment: Moment, chance: random.Random, notify: Callable[[str], None] = print
) -> None:
    """Ask for something else, kill at the moment, start again, and wait until the tables are what was asked for."""
    after = other_pointing(system, chance)
    notify(f"kill {target} at {moment}: {system.now} to {after}")
    with ExitStack() as watching:
        watcher = None
        if target in ("pipeline", "broker"):  # with the server a client's socket goes, and so it should
            watcher = watching.enter_context(Watcher(system.server))
            watcher.wait_for_rows()
        start = system.pipeline.log_end()
        send_pointing(system, after)
        wait_for_moment(system, moment, start)
        time.sleep(chance.random() * AROUND_SECONDS)  # not a wait: where exactly it is killed is what is random
        kill(system, target)
        if target in ("pipeline", "server"):
            system.send_records(10)  # while something is dead
        time.sleep(chance.random() * 2)  # nor is this: how long it is dead
        start_again(system, target)
        system.send_records(10)
        system.wait_decided()
        system.wait_for_tables()
        check_settled(system)
        assert system.outcomes(1) == ["applied"]
        if watcher:
            check_watched(watcher, system)


def wait_for_moment(system: System, moment: Moment, start: int) -> None:
    """Return as soon as the pipeline is there, by what it says from `start` in its log on."""
    event = {"build": "build", "catch_up": "build", "switch": "caught_up", "linger": "lingering"}[moment]
    deadline = time.monotonic() + 120
    while not system.pipeline.events(event, start):
        assert time.monotonic() < deadline, f"no event={event}\n{system.pipeline.log(start)[-4000:]}"
        time.sleep(LOOK_SECONDS)
    if moment == "catch_up":
        system.wait(
            lambda: "catching_up" in system.generation_states() or bool(system.pipeline.events("switched", start)),
            "a generation catches up",
        )


def kill(system: System, target: Target) -> None:
    """kill -9; of all, as near to at once as can be."""
    if target in ("pipeline", "all"):
        system.pipeline.kill()
    if target in ("server", "all"):
        system.server.kill()
    if target in ("broker", "all"):
        system.broker.kill()


def start_again(system: System, target: Target) -> None:
    if target in ("broker", "all"):
        system.broker.start()
    if target in ("server", "all"):
        system.server.start()
    if target in ("pipeline", "all"):
        system.pipeline.start()


def check_settled(system: System) -> None:
    """In the end one generation lives, and nothing is left of any other that is not kept, wherever it had something."""

    def is_alone() -> bool:
        live = {system.status()["generation"]}
        kept = {row["generation"] for row in system.generations() if row["state"] == "kept"}  # of topics created again
        return (
            set(system.generation_states()) <= {"live", "kept", "retired", "failed"}
            and live == system.live_generations()
            and live | kept == system.stored_generations()
            and live | kept == system.checkpoints()
        )

    def found() -> str:
        stored, kept = system.stored_generations(), system.checkpoints()
        return f"{system.generations()[-4:]}; stored {stored}; checkpoints {kept}"

    system.wait(is_alone, "only the live generation is left", found)
    check_order(system)
