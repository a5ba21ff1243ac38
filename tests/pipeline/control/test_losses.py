"""What Kafka no longer has, and what was damaged: nothing is thrown away silently, and everything works again.

All tests share one system, in processes of their own, and leave it whole.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from livetables.local.broker import Broker
from livetables.model.spec import record_id
from tests.chaos.faults.records import send
from tests.chaos.messages import send_pointing
from tests.server.storage.test_damage import MAGIC_BYTES
from tests.support.kafka import ANY_TIME, WAIT_SECONDS, Record, create_topic, end_offsets, unique_topic
from tests.support.system import LiveTopic, Row, System, marked_values, suspended

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

SETTINGS = {
    "LIVETABLES_GENERATIONS_LINGER_SECONDS": "1",
    "LIVETABLES_GENERATIONS_SWITCH_AFTER_SECONDS": "600",
    "LIVETABLES_PIPELINE_BATCH_SECONDS": "5",  # so that there is soon a commit to go on from
}


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with Broker() as broker, System(tmp_path_factory.mktemp("system"), broker, random.Random(18), SETTINGS) as system:
        system.start()
        system.wait_for_tables()
        yield system


def row_of(system: System, generation: str) -> Row:
    (row,) = [row for row in system.generations() if row["generation"] == generation]
    return row


def let_retention_pass(system: System, topic: str, partition: int, offset: int) -> int:
    """Have Kafka delete the records of a partition before an offset; how many of them are rows."""
    admin = AdminClient({"bootstrap.servers": system.bootstrap})
    (deleted,) = admin.delete_records([TopicPartition(topic, partition, offset)]).values()
    deleted.result(WAIT_SECONDS)
    sent = system.topics[topic].sent
    gone = [each for each in sent if each.partition == partition and each.offset < offset]
    system.topics[topic].sent = [each for each in sent if each not in gone]
    rows = set(system.server.table("users_ui")["_id"].to_pylist())
    return len(rows & {record_id(each.partition, each.offset) for each in gone})


def test_a_switch_reports_what_kafka_no_longer_has_and_keeps_it_until_it_is_discarded(system: System) -> None:
    before, users = system.status()["generation"], system.now.users
    whole = system.server.table("users_ui").num_rows
    lost = let_retention_pass(system, users, 0, 10)
    assert lost
    send_pointing(system, replace(system.now, join="inner"))
    system.wait_decided()
    system.wait_for_tables()

    message = system.control_rows()[-1]
    loss = f"{lost} records of topic {users}"
    assert message["outcome"] == "applied"
    assert loss in message["why"]
    system.wait(lambda: loss in system.status()["message"], "the status has it", system.status)
    (logged,) = system.pipeline.events("loses")
    assert (logged["generation"], logged["topic"], logged["records"]) == (before, users, str(lost))

    system.wait(lambda: row_of(system, before)["state"] == "kept", "it is kept", system.generations)
    assert row_of(system, before)["lost"] == lost
    assert system.pipeline.stop() == 0
    restarted = system.pipeline.log_end()
    system.pipeline.start()
    system.wait(lambda: bool(system.pipeline.events("resumed", restarted)), "it is live again", system.status)
    assert before in system.stored_generations() & system.checkpoints(), "a restart removes nothing that is kept"

    system.send_control({"rollback": True})
    system.wait_decided()
    assert system.server.table("users_ui").num_rows == whole, "everything is there"
    system.send_records(5, [users])
    system.wait(lambda: system.server.table("users_ui").num_rows > whole, "it goes on", system.status)

    send_pointing(system, replace(system.now, join="inner"))
    system.wait_decided()
    system.wait(lambda: row_of(system, before)["state"] == "kept", "it is kept again", system.generations)
    system.send_control({"discard": before}, {"discard": before})
    system.wait_decided()
    assert system.outcomes(2) == ["applied", "rejected"]
    assert row_of(system, before)["state"] == "retired"
    assert before not in system.stored_generations() | system.checkpoints()
    system.wait_for_tables()


def test_what_retention_has_taken_before_it_was_read_is_built_without(system: System) -> None:
    """In real time the consumer finds out, and not Spark's planning: it ends with another error."""
    before, users = system.status()["generation"], system.now.users
    system.wait(lambda: row_of(system, before)["state"] == "live", "it is live", system.generations)
    with suspended(system.pipeline.jvm_pid):
        system.send_records(20, [users])  # the answer to the request that waits at the broker
        system.send_records(20, [users])
        for partition, end in end_offsets(system.bootstrap, users).items():
            let_retention_pass(system, users, partition, end)
        system.send_records(20, [users])
    system.wait(lambda: system.status()["generation"] != before, "another generation is live", system.status)
    system.wait_for_tables()
    system.wait(lambda: row_of(system, before)["state"] == "kept", "the old rows are kept", system.generations)


def test_a_rollback_to_what_cannot_go_on_is_shown_until_the_next_message_also_after_a_restart(system: System) -> None:
    """Follows the test above, which leaves a generation whose next records Kafka no longer has."""
    after = system.status()["generation"]
    (before,) = [row["generation"] for row in system.generations() if row["state"] == "kept"]

    def is_shown_unchanged() -> bool:
        status = system.status()
        return (status["generation"], status["state"]) == (before, "failed")

    system.send_control({"rollback": True})
    system.wait_decided()
    system.wait(is_shown_unchanged, "it cannot go on, and is shown", system.status)
    whole = system.server.table("users_ui").num_rows
    assert system.pipeline.stop() == 0
    restarted = system.pipeline.log_end()
    system.pipeline.start()
    system.wait(lambda: bool(system.pipeline.events("resumed", restarted)), "it is what is live", system.status)
    system.wait(is_shown_unchanged, "it cannot go on, and is shown", system.status)
    assert not system.pipeline.events("build", restarted)
    assert system.server.table("users_ui").num_rows == whole

    system.send_control({"rollback": True})
    send_pointing(system, replace(system.now, join="asof"))
    system.wait_decided()
    system.wait_for_tables()
    assert system.status()["generation"] not in (before, after)
    system.wait(lambda: row_of(system, before)["state"] == "kept", "the old rows are kept", system.generations)
    system.send_control({"discard": before})
    system.wait_decided()


def test_a_partition_of_which_nothing_was_read_before_retention_is_built_without(system: System) -> None:
    """Spark waits for ever for such a partition in real time: at offset 0 it expects a first record, and no error."""
    users = LiveTopic(system.bootstrap, "users", unique_topic("users"))
    create_topic(system.bootstrap, users.name, users.partitions + 1, config=ANY_TIME)
    empty = users.partitions
    system.topics[users.name] = users
    system.send_records(20, [users.name])
    send_pointing(system, replace(system.now, users=users.name))
    system.wait_decided()
    before = system.status()["generation"]
    commits = system.directory / "checkpoints" / before / "commits"
    system.wait(lambda: any(commits.glob("[0-9]*")), "a batch is committed")
    assert system.pipeline.stop() == 0
    values = marked_values(users, system.chance, 40)
    send(users, [Record(users.name, empty, value, 1_700_000_000_000) for value in values])
    let_retention_pass(system, users.name, empty, 20)
    system.pipeline.start()
    system.wait(lambda: system.status()["generation"] != before, "another generation is live", system.status)
    system.wait_for_tables()
    assert f"the first records of partition {empty}" in row_of(system, before)["message"]


def damage(file: Path, kind: str) -> None:
    content = file.read_bytes()
    is_store = file.suffix == ".duckdb"  # one that does not say any more that it is a database is anybody's file
    kept = content[: len(content) // 2] if kind == "truncated" else content[: MAGIC_BYTES * is_store]
    file.write_bytes(kept + b"\xff\x00?" * 100 * (kind == "garbage"))
    (file.parent / f".{file.name}.crc").unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ("state", "garbage"),
        pytest.param("offsets", "garbage", marks=pytest.mark.chaos),
        pytest.param("commits", "truncated", marks=pytest.mark.chaos),
        pytest.param("metadata", "garbage", marks=pytest.mark.chaos),
    ],
)
def test_a_damaged_checkpoint_is_kept_aside_and_its_generation_built_again(
    system: System, part: str, kind: str
) -> None:
    before = system.status()["generation"]
    system.wait(lambda: row_of(system, before)["state"] == "live", "it is live", system.generations)
    checkpoint = system.directory / "checkpoints" / before
    system.wait(lambda: any((checkpoint / "commits").glob("[0-9]*")), "a batch is committed")
    assert system.pipeline.stop() == 0
    files = [checkpoint / part] if part == "metadata" else [each for each in (checkpoint / part).rglob("*")]
    for file in files:
        if file.is_file() and not file.name.startswith("."):
            damage(file, kind)
    restarted = system.pipeline.log_end()
    system.pipeline.start()
    system.wait(lambda: system.status()["generation"] != before, "another generation is live", system.status)
    system.wait_for_tables()
    (logged,) = system.pipeline.events("checkpoint_damaged", restarted)
    assert logged["generation"] == before
    aside = [each for each in (system.directory / "checkpoints").iterdir() if each.name.startswith(f"{before}.damaged")]
    assert [str(each) for each in aside] == [logged["kept"]]
    assert not checkpoint.exists()


@pytest.mark.chaos
@pytest.mark.parametrize("kind", ["garbage", "truncated"])
def test_a_damaged_store_is_kept_aside_and_its_tables_are_built_again(system: System, kind: str) -> None:
    system.server.stop()
    damage(system.directory / "store.duckdb", kind)
    system.server.start()
    system.wait_for_tables()
    assert "event=store_damaged" in system.server.log()
    assert list(system.directory.glob("store.duckdb.damaged-*"))
