"""Kills of every process, at any moment, swaps among them."""

from __future__ import annotations

import random
import signal
import time

from livetables.model.joins import JoinType
from tests.chaos.faults.fault import Inject, fault
from tests.chaos.subject import FIRST_RECORDS, Subject
from tests.support.system import Pointing

JOINS: tuple[JoinType, ...] = ("inner", "left", "natural", "asof")


def kill(name: str) -> Inject:
    def inject(subject: Subject, chance: random.Random) -> str:
        time.sleep(chance.random())  # not a wait: where exactly it is killed is what is random
        subject.signal(name, signal.SIGKILL)
        return name

    return inject


def kill_all(subject: Subject, _: random.Random) -> str:
    for name in ("pipeline", "server", "broker"):
        subject.signal(name, signal.SIGKILL)
    return "all processes"


def swap(subject: Subject, chance: random.Random) -> str:
    """Other topics, or another join, while everything else happens."""
    now, system = subject.system.now, subject.system
    if chance.random() < 0.3:
        pointing = Pointing(now.users, now.accounts, chance.choice([join for join in JOINS if join != now.join]))
    else:
        pointing = Pointing(
            system.new_topic("users", FIRST_RECORDS).name,
            system.new_topic("accounts", FIRST_RECORDS).name,
            chance.choice(JOINS),
        )
    outcome = subject.point(pointing)
    subject.notes[f"swaps that were {outcome}"] += 1
    return f"to {pointing.join}, {outcome}"


FAULTS = (
    fault("swap", swap, "tables records", 3),
    fault("kill_relay", kill("relay"), "server", 2),
    fault("kill_server", kill("server"), "server", 3),
    fault("kill_broker", kill("broker"), "broker", 1, is_quick=False),
    fault("kill_pipeline", kill("pipeline"), "pipeline", 0.4, is_quick=False),
    fault("kill_jvm", kill("jvm"), "pipeline", 0.3, is_quick=False),
    fault("kill_all", kill_all, "pipeline server broker", 0.2, is_quick=False),
)
