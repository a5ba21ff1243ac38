"""Clocks that are set, ahead or back, and set right again soon after: those of one process, not of the others."""

from __future__ import annotations

import json
import random
import time
from datetime import UTC, datetime

from tests.chaos.clocks import Clock
from tests.chaos.faults.fault import fault
from tests.chaos.subject import Subject

STEPS = (90, 3600, 86_400, 400 * 86_400)
SECONDS_MIN, SECONDS_MAX = 0.0, 1.5
SEEN_SECONDS = 30  # by which the clocks of two processes may seem to differ on a busy machine


def server_clock(subject: Subject, chance: random.Random) -> str:
    """The server's and its relays'. A server that answers has to show that it was set."""
    step, seconds = stepped(chance)
    with subject.clocks["server"].ahead(step):
        if answered := subject.asked(lambda: json.loads(subject.system.server.get("/api/status"))):
            ahead = (datetime.fromisoformat(answered["time"]) - datetime.now(UTC)).total_seconds()
            assert abs(ahead - step) < SEEN_SECONDS, f"the server's clock is {ahead:.0f} s ahead, and not {step}"
        time.sleep(seconds)
    return f"{step:+,} s for {seconds:.1f} s"


def driver_clock(subject: Subject, chance: random.Random) -> str:
    """The pipeline's driver's: control messages, generations and their times."""
    return set_for_a_while(subject.clocks["driver"], chance)


def jvm_clock(subject: Subject, chance: random.Random) -> str:
    """The pipeline's JVM's: Spark, Kafka's clients, the operator and the writer."""
    return set_for_a_while(subject.clocks["jvm"], chance)


def set_for_a_while(clock: Clock, chance: random.Random) -> str:
    step, seconds = stepped(chance)
    with clock.ahead(step):
        time.sleep(seconds)
    return f"{step:+,} s for {seconds:.1f} s"


def stepped(chance: random.Random) -> tuple[int, float]:
    return chance.choice(STEPS) * chance.choice((-1, 1)), chance.uniform(SECONDS_MIN, SECONDS_MAX)


FAULTS = (
    fault("clock_server", server_clock, "server", 4),
    fault("clock_driver", driver_clock, "pipeline", 4),
    fault("clock_jvm", jvm_clock, "pipeline", 4),
)
