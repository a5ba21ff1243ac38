"""Links that are slow, cut, silent, or lose answers."""

from __future__ import annotations

import random
import time

from tests.chaos.faults.fault import Inject, fault
from tests.chaos.links import Mode, random_way
from tests.chaos.subject import LinkName, Subject

LINKS: tuple[LinkName, ...] = ("frames", "flight", "pages", "readers", "kafka")
SECONDS_MIN, SECONDS_MAX = 0.3, 2.5


def link(mode: Mode) -> Inject:
    def inject(subject: Subject, chance: random.Random) -> str:
        name, seconds, way = chance.choice(LINKS), chance.uniform(SECONDS_MIN, SECONDS_MAX), random_way(chance)
        with subject.links[name].broken(mode, way):
            time.sleep(seconds)
        return f"{name} for {seconds:.1f} s{f', what goes {way}' if mode == 'half_open' else ''}"

    return inject


def lost_answers(subject: Subject, chance: random.Random) -> str:
    """The server has committed a frame, and its writer never hears of it."""
    frames, seconds = subject.links["frames"], chance.uniform(SECONDS_MIN, SECONDS_MAX)
    before = frames.answers_lost
    with frames.broken("lost_answers"):
        time.sleep(seconds)
    lost = frames.answers_lost - before
    subject.notes["answers of frames that were lost"] += lost
    return f"{lost} in {seconds:.1f} s"


FAULTS = (
    fault("link_slow", link("slow"), "links", 7),
    fault("link_reset", link("reset"), "links", 8),
    fault("link_black_hole", link("black_hole"), "links", 6),
    fault("link_half_open", link("half_open"), "links", 6),
    fault("lost_answers", lost_answers, "links", 7),
)
