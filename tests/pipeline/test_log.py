"""What the log has of a control message and of generations, with the control topic on another cluster than tables."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from livetables.local.broker import Broker
from tests.support.kafka import Record, produce
from tests.support.system import System

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

SETTINGS = {"LIVETABLES_GENERATIONS_LINGER_SECONDS": "1"}


@pytest.fixture(scope="module")
def kafka_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kafka")


@pytest.fixture(scope="module")
def system(broker: Broker, kafka_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    settings = {**SETTINGS, "LIVETABLES_CONTROL_KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap_servers}
    with (
        Broker(kafka_directory) as tables_broker,
        System(tmp_path_factory.mktemp("system"), tables_broker, random.Random(1), settings) as system,
    ):
        system.start()
        system.wait_for_tables()
        yield system


def send(system: System, broker: Broker, message: dict[str, str]) -> int:
    """Send a control message to the cluster of the control topic; where the log ended before."""
    end = system.pipeline.log_end()
    value = json.dumps(message).encode()
    produce(broker.bootstrap_servers, [Record(system.control_topic, 0, value, int(time.time() * 1000))])
    return end


def wait_for(system: System, event: str, start: int) -> dict[str, str]:
    """The first line about an event since then."""
    system.wait(lambda: bool(system.pipeline.events(event, start)), f"{event} is logged")
    return system.pipeline.events(event, start)[0]


def logged(system: System, start: int, events: tuple[str, ...]) -> list[str]:
    """Those of the events that are in the log since then, in order."""
    lines = (line for line in system.pipeline.log(start).splitlines() if " event=" in line)
    found = [line.split(" event=")[1].split()[0] for line in lines]
    return [event for event in found if event in events]


def test_a_switch_is_logged_step_by_step(system: System, broker: Broker) -> None:
    (before,) = system.live_generations()
    start = send(system, broker, {"joinType": "NATURAL JOIN"})
    retired = wait_for(system, "retired", start)
    steps = ("control", "resolved", "build", "caught_up", "switched", "lingering", "ready", "retired")
    assert logged(system, start, (*steps, "failed", "rejected")) == list(steps)
    event = {each: system.pipeline.events(each, start)[0] for each in steps}
    (now,) = system.live_generations()
    assert (event["control"]["partition"], event["control"]["offset"]) == ("0", "0")
    assert "NATURAL JOIN" in event["control"]["value"]
    resolved = event["resolved"]
    assert {name: resolved[name] for name in ("usersTopic", "accountsTopic", "joinType", "changed")} == {
        "usersTopic": system.now.users,
        "accountsTopic": system.now.accounts,
        "joinType": "natural",
        "changed": "True",
    }
    assert {event[each]["generation"] for each in ("build", "caught_up", "switched", "ready")} == {now}
    assert event["build"]["joinType"] == "natural"
    assert event["switched"]["before"] == event["lingering"]["generation"] == retired["generation"] == before


def test_a_message_to_no_effect_is_logged_as_unchanged(system: System, broker: Broker) -> None:
    start = send(system, broker, {"joinType": "natural"})
    assert wait_for(system, "resolved", start)["changed"] == "False"
    system.wait(lambda: [row["outcome"] for row in system.control_rows()][-1] == "unchanged", "it is decided")
    assert logged(system, start, ("control", "resolved", "build", "switched")) == ["control", "resolved"]


def test_a_message_that_is_rejected_is_logged_with_the_reason(system: System, broker: Broker) -> None:
    start = send(system, broker, {"joinType": "cross"})
    assert "there is no join 'cross'" in wait_for(system, "rejected", start)["why"]
    assert logged(system, start, ("control", "resolved", "build", "rejected")) == ["control", "rejected"]


def test_a_build_that_fails_is_logged_with_the_reason(system: System, broker: Broker, kafka_directory: Path) -> None:
    (before,) = system.live_generations()
    damaged = system.new_topic("users").name
    segment = kafka_directory / "data" / f"{damaged}-0" / "00000000000000000000.log"
    with segment.open("r+b") as file:  # one bit of a record, as a bad disk has it: the checksum of its batch is wrong
        file.seek(-1, os.SEEK_END)
        (last,) = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    start = send(system, broker, {"usersTopic": damaged})
    system.wait(lambda: system.outcomes(1) == ["failed"], "the message has failed")
    of_generation, of_message = system.pipeline.events("failed", start)
    # One line for the generation, and one for the message.
    steps = ("control", "resolved", "build", "caught_up", "switched", "lingering", "retired", "ready", "rejected")
    assert logged(system, start, (*steps, "failed")) == ["control", "resolved", "build", "failed", "failed"]
    (build,) = system.pipeline.events("build", start)
    assert (of_generation["generation"], build["usersTopic"]) == (build["generation"], damaged)
    assert "corrupt" in of_generation["why"]
    assert of_message["why"] == of_generation["why"]
    assert system.live_generations() == system.stored_generations() == {before}
    assert build["generation"] not in system.checkpoints()
    status = system.status()
    assert (status["usersTopic"], status["generation"], status["state"]) == (system.now.users, before, "live")
