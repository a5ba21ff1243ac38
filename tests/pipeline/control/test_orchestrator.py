"""Topics and joins exchanged under somebody's eyes: a real broker, `livetables serve` and `livetables pipeline`.

All tests share one system and leave it whole; each begins with whatever tables the one before has left. `make chaos`
does the same for longer, and in all combinations.
"""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from livetables.local.broker import Broker
from livetables.pipeline.flow.modes import PARTITIONS_MAX
from tests.chaos.kills import CELLS, SETTINGS, check_settled, kill_while_switching
from tests.chaos.messages import (
    bad_message,
    check_order,
    check_watched,
    message_for,
    other_pointing,
    point,
    random_message,
    run_messages,
    send_pointing,
)
from tests.chaos.mishaps import LINGERING
from tests.support.oracle import FIELDS
from tests.support.system import Feeder, System, marked_values, suspended
from tests.support.watcher import TABLES, Watcher

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

BOOT_MESSAGES = 1000
SEED = random.randrange(2**32)


@pytest.fixture(scope="module")
def chance() -> random.Random:
    return random.Random(SEED)


@pytest.fixture(autouse=True)
def seed() -> None:
    print(f"seed {SEED}")  # shown when a test fails


@pytest.fixture(scope="module")
def system(chance: random.Random, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """Started when a thousand messages were there already, with Spark's pages. Its broker is its own, to be killed."""
    directory = tmp_path_factory.mktemp("system")
    file = directory / "livetables.toml"
    file.write_text('[pipeline.spark]\n"spark.ui.enabled" = "true"\n"spark.ui.port" = "0"\n')
    settings = {**LINGERING, "LIVETABLES_CONFIG": str(file)}
    with Broker() as broker, System(directory, broker, chance, settings) as system:
        system.new_topic("users")
        system.new_topic("accounts")
        messages = []
        for number in range(BOOT_MESSAGES - 1):
            messages.append(bad_message(system, chance) if number % 4 == 0 else random_message(system, chance))
            point(system, messages[-1:])
        messages.append(message_for(other_pointing(system, chance)))
        point(system, messages[-1:])
        system.send_control(*messages)
        system.start()
        system.wait_for_tables()
        yield system


def test_a_start_after_a_thousand_messages_builds_once(system: System) -> None:
    system.wait_decided()
    check_order(system)
    outcomes = system.outcomes()
    assert len(outcomes) == BOOT_MESSAGES
    assert outcomes.count("applied") == 1
    assert outcomes[-1] == "applied"
    assert set(outcomes) == {"applied", "superseded", "rejected"}
    (generation,) = system.generations()
    assert (generation["state"], generation["usersTopic"]) == ("live", system.now.users)
    tables = ("users_ui", "accounts_ui", "final_ui", "dead_letters")
    assert generation["rows"] == sum(system.count(table) for table in tables), "shown as soon as it is live"
    status = system.status()
    assert (status["generation"], status["state"]) == (generation["generation"], "live")
    assert status["lastApplied"]


def test_what_the_pipeline_reports_of_itself_is_in_the_metrics(system: System) -> None:
    metric = system.server.metric
    system.wait(lambda: metric('livetables_generations{state="live"}') == 1, "the generation is in the metrics")
    (live,) = system.live_generations()
    system.wait(lambda: metric(f'livetables_real_time{{generation="{live}"}}') == 1, "it reads in real time")
    assert metric("livetables_frames_received_total") > 0
    assert metric("livetables_query_restarts_total") == 0
    for table in ("users_ui", "accounts_ui"):
        taken, dead = (metric(f'livetables_{each}_total{{table="{table}"}}') for each in ("records", "dead_letters"))
        assert taken - dead == system.count(table) > 0


def test_sparks_pages_are_linked_and_are_on_loopback_only(system: System) -> None:
    def link() -> str | None:
        spark_ui: str | None = json.loads(system.server.get("/api/status"))["spark_ui"]
        return spark_ui

    system.wait(lambda: link() is not None, "the link")
    address = urlsplit(link() or "")
    assert address.hostname == "127.0.0.1"
    with urlopen(f"http://127.0.0.1:{address.port}/", timeout=30) as page:
        assert page.status == 200
    with pytest.raises(ConnectionRefusedError):  # another address of this machine
        socket.create_connection(("127.0.0.2", address.port or 0), timeout=10)


def test_a_rollback_is_rejected_when_nothing_lingers(system: System) -> None:
    """Follows the start, with only one generation so far."""
    system.send_control({"rollback": True})
    system.wait_decided()
    assert system.outcomes(1) == ["rejected"]
    assert not system.differences()


def test_who_watches_sees_whole_tables_through_random_messages(system: System, chance: random.Random) -> None:
    with Watcher(system.server) as watcher, Feeder(system, chance.randrange(2**32), seconds=0.5) as feeder:
        watcher.wait_for_rows()
        run_messages(system, watcher, feeder, 8, chance)


def test_the_topics_that_tables_may_be_pointed_to_are_a_table(system: System) -> None:
    new = system.new_topic("users", count=0)

    def topics() -> set[str]:
        return {row["topic"] for row in system.server.rows("kafka_topics", "limit=10000")}

    system.wait(lambda: new.name in topics(), f"{new.name} is listed", topics)
    assert {system.now.users, system.now.accounts} <= topics()
    assert system.control_topic not in topics()
    new.delete()
    system.wait(lambda: new.name not in topics(), f"{new.name} is not listed any more", topics)
    del system.topics[new.name]


def test_a_message_to_no_effect_only_refreshes_the_time(system: System) -> None:
    before = system.status()
    system.send_control({"joinType": system.now.join})
    system.wait_decided()
    assert system.outcomes(1) == ["unchanged"]
    after = system.status()
    assert after["lastApplied"] > before["lastApplied"]
    assert (after["generation"], after["state"]) == (before["generation"], "live")


def test_topics_that_cannot_be_used_leave_the_live_generation_alone(system: System, chance: random.Random) -> None:
    misfit = system.new_topic("users", count=0)
    del system.topics[misfit.name]
    misfit.send([b'{"age": "old"}', b"[]"], chance)
    before = system.status()["generation"]
    with Watcher(system.server) as watcher:
        watcher.wait_for_rows()
        for topic, reason in (("nowhere", "nowhere"), (misfit.name, "fits")):
            system.send_control({"usersTopic": topic, "joinType": "inner"})
            system.wait_decided()
            row = system.control_rows()[-1]
            assert (row["outcome"], reason in row["why"]) == ("rejected", True), row["why"]
            assert row["why"] in system.status()["message"]
        system.send_records(5)
        system.wait_for_tables()
        check_watched(watcher, system)
    assert system.status()["generation"] == before


def test_a_topic_whose_offsets_have_gaps_is_caught_up_with(system: System, chance: random.Random) -> None:
    """A build in real time is counted by its records. Here it cannot be, and has to ask Spark."""
    topic = system.new_topic("users", count=0)
    for number in range(3):
        topic.send(marked_values(topic, chance, 20), chance, transaction=f"{topic.name}-{number}")
    start = system.pipeline.log_end()
    send_pointing(system, replace(system.now, users=topic.name))
    system.wait_decided()
    system.wait_for_tables()
    assert system.outcomes(1) == ["applied"]
    assert [mode["mode"] for mode in system.pipeline.events("mode", start)][:2] == ["micro_batch", "real_time"]


def test_a_build_of_few_records_starts_in_real_time(system: System) -> None:
    start = system.pipeline.log_end()
    send_pointing(system, replace(system.now, users=system.new_topic("users").name))
    system.wait_decided()
    system.wait_for_tables()
    assert [query["mode"] for query in system.pipeline.events("query_started", start)] == ["real_time"]
    assert system.pipeline.events("mode", start) == []


@pytest.mark.parametrize("partitions", [PARTITIONS_MAX, pytest.param(1000, marks=pytest.mark.chaos)])
def test_a_generation_with_more_partitions_than_real_time_can_follow_takes_over_in_micro_batches(
    system: System, partitions: int
) -> None:
    """Those of the other topic come on top."""
    before = system.now
    topic = system.new_topic("users", count=2 * partitions, partitions=partitions)
    start = system.pipeline.log_end()
    with Watcher(system.server) as watcher:
        watcher.wait_for_rows()
        send_pointing(system, replace(before, users=topic.name))
        system.wait_decided()
        system.send_records(50, [topic.name])
        system.wait_for_tables()
        assert system.outcomes(1) == ["applied"]
        assert [query["mode"] for query in system.pipeline.events("query_started", start)] == ["micro_batch"]
        assert system.pipeline.events("mode", start) == []
        send_pointing(system, before)
        system.wait_decided()
        system.wait_for_tables()
        check_watched(watcher, system)
    topic.delete()
    del system.topics[topic.name]


def test_a_rollback_returns_to_the_generation_before(system: System, chance: random.Random) -> None:
    before, generation = system.now, system.status()["generation"]
    with Watcher(system.server) as watcher, Feeder(system, chance.randrange(2**32), seconds=0.5) as feeder:
        watcher.wait_for_rows()
        send_pointing(system, other_pointing(system, chance))
        system.wait_decided()
        built = len(system.generations())
        system.send_control({"rollback": True})
        system.now = before
        system.wait_decided()
        assert system.outcomes(2) == ["applied", "applied"]
        with feeder.paused:
            system.wait_for_tables()
        assert (system.status()["generation"], len(system.generations())) == (generation, built)
        system.wait(lambda: {watcher.generation(table) for table in TABLES} == {generation}, "the watcher sees it")
        check_watched(watcher, system)


def test_a_topic_that_is_deleted_and_created_again_is_read_from_its_start(system: System) -> None:
    topic, before = system.topics[system.now.accounts], system.status()["generation"]
    topic.delete()
    topic.create_again()
    system.send_records(40, [topic.name])
    system.wait(lambda: system.status()["generation"] != before, "another generation is live")
    system.wait_for_tables()


def test_tables_stay_while_a_topic_is_gone(system: System) -> None:
    topic = system.topics[system.now.users]
    with Watcher(system.server) as watcher:
        watcher.wait_for_rows()
        topic.delete()
        system.wait(
            lambda: system.status()["state"] != "live" and topic.name in system.status()["message"],
            "the status says that the topic is gone",
            system.status,
        )
        assert not system.differences()
        with suspended(system.pipeline.pid):  # else tables may be shown that are as empty as the topic is at first
            topic.create_again()
            system.send_records(40, [topic.name])
        system.wait_for_tables()
        assert watcher.violations == []
    system.wait(lambda: system.status()["state"] == "live", "all is well again", system.status)


def test_a_start_with_another_configuration_builds_anew_beside_what_is_served(system: System, tmp_path: Path) -> None:
    before = system.status()["generation"]
    types = {str: "string", int: "int64"}
    columns = {**{name: types[kind] for name, kind in FIELDS["users"].items()}, "city": "string"}
    file = tmp_path / "livetables.toml"
    declared = ", ".join(f'{name} = "{kind}"' for name, kind in columns.items())
    file.write_text(f"tables.users.columns = {{ {declared} }}")
    with Watcher(system.server) as watcher:
        watcher.wait_for_rows()
        assert system.pipeline.stop() == 0
        system.send_records(5)
        system.pipeline.start(LIVETABLES_CONFIG=str(file), **SETTINGS)
        system.wait(lambda: system.status()["generation"] != before, "another generation is live")
        system.wait_for_tables()
        assert "city" in system.server.table("final_ui").column_names
        check_watched(watcher, system)
    check_settled(system)


@pytest.mark.chaos
def test_a_kill_while_topics_are_exchanged(system: System, chance: random.Random) -> None:
    """Follows a start with little time to linger. `python -m tests.chaos` kills each process at each moment."""
    target, moment = chance.choice([cell for cell in CELLS if cell[0] in ("server", "broker")])
    kill_while_switching(system, target, moment, chance)
