"""What else can go wrong, one thing after the other: what is lost, what is gone, and who changes their mind."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace

from tests.chaos.kills import SETTINGS, check_settled
from tests.chaos.messages import check_order, message_for, other_pointing, send_pointing
from tests.support.kafka import create_topic, unique_topic
from tests.support.system import LiveTopic, System

Mishap = Callable[[System, random.Random], None]

LINGERING = {
    "LIVETABLES_GENERATIONS_LINGER_SECONDS": "3600",  # long enough to come back to an old generation, on any machine
    "LIVETABLES_GENERATIONS_MAX_LINGERING": "1",
    "LIVETABLES_GENERATIONS_SWITCH_AFTER_SECONDS": "600",
}


def rollbacks(system: System, chance: random.Random) -> None:
    """There and back again, in the middle of a build, and to what a message has just asked for."""
    here, there = system.now, other_pointing(system, chance)
    first = generation(system)
    send_pointing(system, there)
    settle(system)
    second = generation(system)
    for pointing, expected in ((here, first), (there, second)):
        roll_back(system)
        system.now = pointing
        settle(system)
        assert generation(system) == expected, f"a rollback went to {generation(system)}"
    start = system.pipeline.log_end()
    send_pointing(system, other_pointing(system, chance))
    system.wait(lambda: bool(system.pipeline.events("build", start)), "a build is under way")
    roll_back(system)
    system.now = here
    settle(system)
    assert (generation(system), system.outcomes(2)) == (first, ["superseded", "applied"])
    system.send_control(message_for(there), {"rollback": True})
    system.now = there
    settle(system)
    assert generation(system) == second


def a_rollback_before_a_restart(system: System, chance: random.Random) -> None:
    here, before = system.now, generation(system)
    send_pointing(system, other_pointing(system, chance))
    system.wait_decided()
    roll_back(system)
    system.now = here
    settle(system)
    restart(system)
    assert generation(system) == before


def a_rejected_topic_that_appears_later(system: System, _: random.Random) -> None:
    """What was rejected stays so, whatever there is after a restart."""
    before, topic = generation(system), unique_topic("later")
    system.send_control({"usersTopic": topic})
    system.wait_decided()
    create_topic(system.bootstrap, topic)
    restart(system)
    assert (generation(system), system.outcomes(1)) == (before, ["rejected"])


def empty_topics(system: System, _: random.Random) -> None:
    """A topic without a record is a table without a row, and no reason to wait."""
    before = system.now
    half = replace(before, accounts=system.new_topic("accounts", count=0).name)
    for pointing in (half, replace(half, users=system.new_topic("users", count=0).name)):
        send_pointing(system, pointing)
        settle(system)
        assert system.outcomes(1) == ["applied"]
    restart(system)
    send_pointing(system, before)
    settle(system)


def a_message_while_the_live_topic_is_gone(system: System, _: random.Random) -> None:
    topic = system.topics[system.now.users]
    away = next(name for name in system.of_side("users") if name != topic.name)
    topic.delete()
    system.wait(lambda: system.status()["state"] != "live", "the status says that the topic is gone", system.status)
    send_pointing(system, replace(system.now, users=away))
    settle(system)
    assert system.outcomes(1) == ["applied"]
    recreate(system, topic)
    send_pointing(system, replace(system.now, users=topic.name))
    settle(system)


def a_start_while_the_live_topic_is_gone(system: System, _: random.Random) -> None:
    topic = system.topics[system.now.users]
    system.pipeline.kill()
    topic.delete()
    system.pipeline.start()
    system.wait(
        lambda: system.status()["state"] == "failed" and topic.name in system.status()["message"],
        "the status says that the topic is gone",
        system.status,
    )
    assert not system.differences(), "the tables did not stay"
    recreate(system, topic)
    settle(system)


def a_topic_replaced_while_all_was_down(system: System, _: random.Random) -> None:
    topic = system.topics[system.now.accounts]
    system.pipeline.kill()
    system.server.kill()
    topic.delete()
    recreate(system, topic)
    system.server.start()
    system.pipeline.start()
    settle(system)


def lost_checkpoints(system: System, _: random.Random) -> None:
    """What was read is not known any more: all is read again, beside what is served."""
    system.pipeline.kill()
    shutil.rmtree(system.directory / "checkpoints")
    system.pipeline.start()
    system.send_records(5)
    settle(system)


def a_lost_store(system: System, _: random.Random) -> None:
    """As with a store in memory: the server comes back with nothing, and gets everything again."""
    lose_store(system)
    system.send_records(5)
    settle(system)


def a_lost_store_on_quiet_topics(system: System, _: random.Random) -> None:
    lose_store(system)
    settle(system)


def a_stop_during_a_build(system: System, chance: random.Random) -> None:
    start = system.pipeline.log_end()
    send_pointing(system, other_pointing(system, chance))
    system.wait(lambda: bool(system.pipeline.events("build", start)), "a build is under way")
    assert system.pipeline.stop() == 0
    system.pipeline.start()
    settle(system)
    assert system.outcomes(1) == ["applied"]


MISHAPS: tuple[Mishap, ...] = (
    rollbacks,
    a_rollback_before_a_restart,
    a_rejected_topic_that_appears_later,
    empty_topics,
    a_message_while_the_live_topic_is_gone,
    a_start_while_the_live_topic_is_gone,
    a_topic_replaced_while_all_was_down,
    lost_checkpoints,
    a_lost_store,
    a_lost_store_on_quiet_topics,
    a_stop_during_a_build,
)


def run_mishaps(system: System, chance: random.Random, notify: Callable[[str], None] = print) -> None:
    for mishap in MISHAPS:
        notify(mishap.__name__.replace("_", " "))
        mishap(system, chance)
    system.pipeline.kill()
    system.pipeline.start(**SETTINGS)
    settle(system)
    check_settled(system)


def settle(system: System) -> None:
    """Return when every message has its outcome, and the tables are the oracle's."""
    system.wait_decided()
    system.wait_for_tables()
    system.wait(lambda: system.status()["state"] == "live", "all is well", system.status)
    check_order(system)


def restart(system: System) -> None:
    """Kill the pipeline, and return when it is back, and has read something."""
    system.pipeline.kill()
    system.pipeline.start()
    system.send_records(5)
    settle(system)


def recreate(system: System, topic: LiveTopic) -> None:
    topic.create_again()
    system.send_records(40, [topic.name])


def roll_back(system: System) -> None:
    system.send_control({"rollback": True})


def generation(system: System) -> str:
    return str(system.status()["generation"])


def lose_store(system: System) -> None:
    system.server.kill()
    for file in system.directory.glob("store.duckdb*"):
        file.unlink()
    system.server.start()
