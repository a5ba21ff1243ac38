"""Processes that stand still for a while, and go on as if nothing had happened: SIGSTOP and SIGCONT."""

from __future__ import annotations

import random

from tests.chaos.faults.fault import Inject, fault
from tests.chaos.subject import Subject, stopped

SECONDS_MIN, SECONDS_MAX = 0.2, 2.0


def stop(name: str) -> Inject:
    def inject(subject: Subject, chance: random.Random) -> str:
        seconds = chance.uniform(SECONDS_MIN, SECONDS_MAX)
        stopped(subject, name, seconds)
        return f"{name} for {seconds:.1f} s"

    return inject


FAULTS = (
    fault("stop_server", stop("server"), "server", 7),
    fault("stop_jvm", stop("jvm"), "pipeline", 6),
    fault("stop_driver", stop("driver"), "pipeline", 3),
    fault("stop_broker", stop("broker"), "broker", 5),
)
