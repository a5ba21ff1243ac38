"""Topics and the control topic through the driver's Java clients, at a real broker."""

from __future__ import annotations

import json
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from livetables.config.settings import Secret
from livetables.kafka.clients import ADMIN, Clients, instant
from livetables.kafka.redaction import Redaction
from livetables.kafka.topics import (
    ControlRecord,
    ControlTopic,
    KafkaTopics,
    Topic,
    TopicProblem,
    in_order,
    was_replaced,
)
from livetables.local.broker import Broker
from livetables.model.errors import PassingTopicError, TopicError
from livetables.model.wire import Receipt
from tests.support.kafka import Record, create_topic, delete_topic, end_offsets, produce, unique_topic, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

ACL = "org.apache.kafka.common.acl"
OAUTH = "org.apache.kafka.common.security.oauthbearer"
NOON_MS = 1_700_000_000_000
NOON = datetime.fromtimestamp(NOON_MS / 1000, UTC)
READ_SECONDS = 30.0
SHORT_SECONDS = 0.2


@pytest.fixture
def properties(broker: Broker) -> dict[str, str]:
    return {"bootstrap.servers": broker.bootstrap_servers}


@pytest.fixture
def topics(spark: SparkSession, properties: dict[str, str]) -> Iterator[KafkaTopics]:
    with KafkaTopics(spark, properties) as opened:
        yield opened


@pytest.fixture
def control(spark: SparkSession, properties: dict[str, str]) -> Iterator[ControlTopic]:
    """A control topic that is there, and empty."""
    with ControlTopic(spark, properties, unique_topic("control")) as opened:
        opened.create_if_missing()
        yield opened


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port at which nobody listens, and nobody can begin to."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def looked_at(topics: KafkaTopics, name: str) -> Topic:
    seen = topics.look([name])[name]
    assert isinstance(seen, Topic), seen
    return seen


def problem_of(topics: KafkaTopics, name: str) -> str:
    seen = topics.look([name])[name]
    assert isinstance(seen, TopicProblem), seen
    assert "\n" not in seen.reason
    assert "Exception" not in seen.reason
    return seen.reason


def seen_topic(topic_id: str = "a", ends: tuple[int, ...] = (5, 7), beginnings: tuple[int, ...] = (0, 0)) -> Topic:
    return Topic("user", topic_id, dict(enumerate(beginnings)), dict(enumerate(ends)))


def values(records: list[ControlRecord]) -> list[bytes | None]:
    return [record.value for record in records]


# Topics


def test_a_topic_has_an_id_and_the_offsets_of_every_partition(broker: Broker, topics: KafkaTopics) -> None:
    name = unique_topic("user")
    create_topic(broker.bootstrap_servers, name, partitions=2)
    empty = looked_at(topics, name)
    assert (empty.beginnings, empty.ends, empty.records) == ({0: 0, 1: 0}, {0: 0, 1: 0}, 0)

    produce(broker.bootstrap_servers, [Record(name, partition, b"{}", NOON_MS) for partition in (0, 1, 1)])
    filled = looked_at(topics, name)
    assert (filled.beginnings, filled.ends, filled.records) == ({0: 0, 1: 0}, {0: 1, 1: 2}, 3)
    assert filled.topic_id == empty.topic_id != ""


def test_topics_are_looked_at_together_and_none_spoils_another(broker: Broker, topics: KafkaTopics) -> None:
    there, missing, illegal = unique_topic("user"), unique_topic("missing"), "no topic!"
    create_topic(broker.bootstrap_servers, there)
    seen = topics.look([missing, illegal, there, there])
    assert list(seen) == [missing, illegal, there]
    assert isinstance(seen[there], Topic)
    # Neither is passing: only somebody who creates or names a topic helps.
    assert seen[missing] == TopicProblem(f'topic "{missing}" does not exist; create it, or name one that exists')
    assert seen[illegal] == TopicProblem('"no topic!" is not a valid topic name; use 1 to 249 of A-Z a-z 0-9 . _ -')


def test_no_names_are_no_topics(topics: KafkaTopics) -> None:
    assert topics.look([]) == {}


def test_looking_does_not_create_a_topic(broker: Broker, topics: KafkaTopics) -> None:
    name = unique_topic("missing")
    problem_of(topics, name)
    create_topic(broker.bootstrap_servers, name)
    assert looked_at(topics, name).records == 0


def test_a_broker_that_cannot_be_reached_is_a_problem_of_every_topic_in_time(
    spark: SparkSession, closed_port: int
) -> None:
    with KafkaTopics(spark, {"bootstrap.servers": f"127.0.0.1:{closed_port}"}, seconds_max=1.0) as topics:
        started = time.monotonic()
        seen = topics.look(["user", "account"])
        took_seconds = time.monotonic() - started
    for name in ("user", "account"):
        problem = seen[name]
        assert isinstance(problem, TopicProblem)
        assert f'127.0.0.1:{closed_port} did not answer about topic "{name}" in time; check' in problem.reason
        assert problem.is_passing
    assert took_seconds < 30


def test_a_class_that_is_not_there_is_named(spark: SparkSession, properties: dict[str, str]) -> None:
    sasl = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": "com.example.NoSuchHandler",
    }
    with KafkaTopics(spark, {**properties, **sasl}) as topics:
        assert "com.example.NoSuchHandler" in problem_of(topics, "user")


@pytest.mark.parametrize(
    "jaas",
    [
        'hunter2 required username="hunter2" password="hunter2";',
        'org.apache.kafka.common.security.plain.PlainLoginModule hunter2 username="hunter2";',
        "org.apache.kafka.common.security.plain.PlainLoginModule required username=me password=my hunter2;",
        "hunter2",
    ],
)
def test_no_secret_is_in_a_problem(spark: SparkSession, properties: dict[str, str], jaas: str) -> None:
    sasl = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas}
    with KafkaTopics(spark, {**properties, **sasl}, seconds_max=1.0) as topics:
        assert "hunter2" not in problem_of(topics, "user")


def test_a_login_that_takes_long_is_a_problem_in_time_and_its_failure_is_reported_later(
    spark: SparkSession, properties: dict[str, str], closed_port: int
) -> None:
    sasl = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": f"{OAUTH}.OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": f"http://127.0.0.1:{closed_port}/token",
        "sasl.jaas.config": f'{OAUTH}.OAuthBearerLoginModule required clientId="me" clientSecret="hunter2";',
        # For how long the login is tried again.
        "sasl.login.retry.backoff.max.ms": "2000",
    }
    with KafkaTopics(spark, {**properties, **sasl}, seconds_max=0.5) as topics:
        started = time.monotonic()
        seen = topics.look(["user"])["user"]
        assert time.monotonic() - started < 30
        assert isinstance(seen, TopicProblem)
        assert "logs in" in seen.reason
        assert seen.is_passing
        wait_until(lambda: "logs in" not in problem_of(topics, "user"), "the login has failed")


def test_a_secret_is_redacted_whole_and_in_its_parts() -> None:
    jaas = "Module required clientId=me clientSecret='top secret' scope=\"a b\";"
    redaction = Redaction({"sasl.jaas.config": jaas, "plain": Secret("s3"), "ssl.key.password": "p"})
    assert redaction.applied(f"in {jaas}") == "in <redacted>"
    assert redaction.applied("top secret, a b and s3 are p, port 127.0.0.1 is not") == (
        "<redacted>, <redacted> and <redacted> are <redacted>, port 127.0.0.1 is not"
    )
    assert redaction.applied("https://user:pass@host") == "<redacted>"


@pytest.mark.parametrize(
    ("operations", "leaders", "problem", "kind"),
    [
        (["DESCRIBE"], [True], "is not authorised for this client", TopicError),
        (["DESCRIBE", "READ"], [], "without a leader", PassingTopicError),
        (None, [True, False], "without a leader", PassingTopicError),
    ],
)
def test_a_topic_that_cannot_be_read_says_why(
    spark: SparkSession, operations: list[str] | None, leaders: list[bool], problem: str, kind: type[TopicError]
) -> None:
    clients = Clients(spark, {})
    java = clients._java
    broker = java("org.apache.kafka.common.Node")(1, "127.0.0.1", 9092)
    partition, operation = java("org.apache.kafka.common.TopicPartitionInfo"), java(f"{ACL}.AclOperation")
    partitions = [
        partition(number, broker if has_leader else None, java.listed([broker]), java.listed([]))
        for number, has_leader in enumerate(leaders)
    ]
    allowed = None if operations is None else java("java.util.HashSet")(java.listed(map(operation.valueOf, operations)))
    description = java(f"{ADMIN}.TopicDescription")("user", False, java.listed(partitions), allowed)
    with pytest.raises(TopicError, match=problem) as error:
        clients._ask_offsets(None, description)
    assert error.type is kind


@pytest.mark.parametrize(
    ("thrown", "is_passing"),
    [
        ("org.apache.kafka.common.errors.TimeoutException", True),
        ("org.apache.kafka.common.errors.LeaderNotAvailableException", True),
        ("org.apache.kafka.common.errors.NotLeaderOrFollowerException", True),
        ("org.apache.kafka.common.errors.NotEnoughReplicasException", True),
        ("org.apache.kafka.common.errors.NetworkException", True),
        ("org.apache.kafka.common.errors.DisconnectException", True),
        ("java.util.concurrent.TimeoutException", True),
        ("org.apache.kafka.common.errors.UnknownTopicOrPartitionException", False),
        ("org.apache.kafka.common.errors.TopicAuthorizationException", False),
        ("org.apache.kafka.common.errors.SaslAuthenticationException", True),
        ("org.apache.kafka.common.errors.RecordTooLargeException", False),
        ("org.apache.kafka.common.KafkaException", False),
    ],
)
def test_what_may_pass_by_itself_is_distinguished_from_what_does_not(
    spark: SparkSession, thrown: str, is_passing: bool
) -> None:
    clients = Clients(spark, {})
    assert spark._jvm is not None
    failed = spark._jvm.java.util.concurrent.CompletableFuture()
    failed.completeExceptionally(clients._java(thrown)("as the broker says"))
    with pytest.raises(TopicError) as error, clients.translating_errors("user"):
        failed.get()
    assert isinstance(error.value, PassingTopicError) == is_passing
    assert "Exception" not in error.value.problem


def test_a_recreated_topic_is_noticed(broker: Broker, topics: KafkaTopics) -> None:
    name = unique_topic("user")
    create_topic(broker.bootstrap_servers, name)
    before = looked_at(topics, name)
    assert was_replaced(before, looked_at(topics, name)) is None

    delete_topic(broker.bootstrap_servers, name)
    create_topic(broker.bootstrap_servers, name)
    wait_until(lambda: isinstance(topics.look([name])[name], Topic), "the new topic is seen")
    assert was_replaced(before, looked_at(topics, name)) == f'topic "{name}" was deleted and created again'


@pytest.mark.parametrize(
    "now",
    [
        seen_topic(),
        seen_topic(ends=(6, 7)),
        seen_topic(ends=(5, 7, 1), beginnings=(0, 0, 0)),
        seen_topic(ends=(9, 9), beginnings=(8, 8)),
    ],
    ids=["the same", "longer", "one more partition", "cut at its beginning"],
)
def test_a_topic_that_goes_on_was_not_replaced(now: Topic) -> None:
    assert was_replaced(seen_topic(), now) is None


def test_an_end_that_moved_back_is_a_replaced_topic() -> None:
    lost = was_replaced(seen_topic(ends=(5, 7)), seen_topic(ends=(9, 6)))
    assert lost == 'partition 1 of topic "user" has lost records from its end'


# The control topic


def test_a_missing_control_topic_is_created_with_one_partition_and_an_existing_one_is_kept(
    broker: Broker, spark: SparkSession, properties: dict[str, str]
) -> None:
    name = unique_topic("control")
    with ControlTopic(spark, properties, name) as control:
        control.create_if_missing()
        control.send({"joinType": "inner"})
        control.create_if_missing()
    assert end_offsets(broker.bootstrap_servers, name) == {0: 1}


def test_what_is_sent_is_read_as_json_at_its_receipt(control: ControlTopic) -> None:
    fields = {"usersTopic": "üser", "joinType": None, "rollback": False}
    before = datetime.now(UTC)
    receipt = control.send(fields)
    (record,) = control.read(READ_SECONDS)
    assert receipt == Receipt(receipt.topic, record.partition, record.offset) == Receipt(receipt.topic, 0, 0)
    assert record.value is not None
    assert json.loads(record.value) == fields
    assert abs((record.timestamp - before).total_seconds()) < 60
    assert record.timestamp.tzinfo is UTC


def test_all_partitions_are_read_from_their_beginning_each_in_order(
    broker: Broker, spark: SparkSession, properties: dict[str, str]
) -> None:
    name = unique_topic("control")
    create_topic(broker.bootstrap_servers, name, partitions=2)
    times = [(1, 30), (0, 10), (1, 20), (0, 20), (0, 40), (1, 5)]
    produce(broker.bootstrap_servers, [Record(name, p, b"%d" % at, NOON_MS + at) for p, at in times])
    with ControlTopic(spark, properties, name) as control:
        read = control.read(READ_SECONDS)
    assert [(r.partition, r.offset) for r in read] == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (0, 2)]
    assert values(read) == [b"10", b"20", b"30", b"20", b"5", b"40"]
    assert read[0].timestamp == datetime.fromtimestamp(NOON_MS / 1000, UTC).replace(microsecond=10000)


CONTROL_RECORDS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=12)


def control_records(times: list[tuple[int, int]]) -> list[ControlRecord]:
    """Records of (partition, time) each, as they come."""
    offsets: Counter[int] = Counter()
    records = []
    for partition, at in times:
        records.append(ControlRecord(partition, offsets[partition], NOON + timedelta(seconds=at), None))
        offsets[partition] += 1
    return records


def test_a_message_whose_clock_was_ahead_does_not_win_over_those_after_it() -> None:
    first, *others = control_records([(0, 3600), (0, 1), (0, 2)])
    assert in_order([first, *others]) == [first, *others]


def test_messages_of_several_partitions_are_in_order_of_time() -> None:
    records = control_records([(0, 1), (1, 2), (0, 3), (1, 3), (2, 0)])
    assert [(r.partition, r.offset) for r in in_order(records)] == [(2, 0), (0, 0), (1, 0), (0, 1), (1, 1)]


@given(CONTROL_RECORDS, st.randoms(use_true_random=False))
def test_the_order_of_messages_follows_offsets_and_does_not_depend_on_how_they_were_read(
    times: list[tuple[int, int]], random: Random
) -> None:
    records = control_records(times)
    ordered = in_order(records)
    for partition in range(3):
        offsets = [record.offset for record in ordered if record.partition == partition]
        assert offsets == sorted(offsets)
    shuffled = random.sample(records, len(records))
    assert in_order(shuffled) == ordered


def test_values_come_back_byte_for_byte(broker: Broker, spark: SparkSession, properties: dict[str, str]) -> None:
    name = unique_topic("control")
    create_topic(broker.bootstrap_servers, name, partitions=1)
    sent = [None, b"", bytes(range(256)), b"\xff\x00" * 400_000, "ü✓".encode()]
    produce(broker.bootstrap_servers, [Record(name, 0, value, NOON_MS) for value in sent])
    with ControlTopic(spark, properties, name) as control:
        assert values(control.read(READ_SECONDS)) == sent


def test_a_read_goes_on_where_the_last_one_ended_and_a_new_reader_reads_all(
    spark: SparkSession, properties: dict[str, str], control: ControlTopic
) -> None:
    topic = control.send({"n": 1}).topic
    assert values(control.read(READ_SECONDS)) == [b'{"n": 1}']
    assert control.read(SHORT_SECONDS) == []
    control.send({"n": 2})
    control.send({"n": 3})
    assert values(control.read(READ_SECONDS)) == [b'{"n": 2}', b'{"n": 3}']
    with ControlTopic(spark, properties, topic) as other:
        assert values(other.read(READ_SECONDS)) == [b'{"n": 1}', b'{"n": 2}', b'{"n": 3}']


def test_reads_that_do_not_wait_get_on_too(control: ControlTopic) -> None:
    control.send({"n": 1})
    wait_until(lambda: bool(control.read(0)), "the record is read")
    assert control.is_at_end()


def test_a_backlog_of_many_polls_is_one_read(broker: Broker, spark: SparkSession, properties: dict[str, str]) -> None:
    name = unique_topic("control")
    create_topic(broker.bootstrap_servers, name, partitions=1)
    produce(broker.bootstrap_servers, [Record(name, 0, b"%d" % n, NOON_MS + n) for n in range(30)])
    with ControlTopic(spark, {**properties, "max.poll.records": "7"}, name) as control:
        assert values(control.read(READ_SECONDS)) == [b"%d" % n for n in range(30)]


def test_the_end_is_reached_when_all_records_are_read(control: ControlTopic) -> None:
    assert control.is_at_end()
    control.send({"n": 1})
    assert not control.is_at_end()
    control.read(READ_SECONDS)
    assert control.is_at_end()


def test_marks_and_aborted_records_of_transactions_are_passed_over(
    spark: SparkSession, properties: dict[str, str], control: ControlTopic
) -> None:
    topic = control.send({"n": 1}).topic
    producer = Producer({**properties, "transactional.id": topic})
    producer.init_transactions()
    for value, end in ((b"kept", producer.commit_transaction), (b"aborted", producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush()
        end()
    with ControlTopic(spark, properties, topic) as committed:
        assert values(committed.read(READ_SECONDS)) == [b'{"n": 1}', b"kept"]
        assert committed.is_at_end()
    with ControlTopic(spark, {**properties, "isolation.level": "read_uncommitted"}, topic) as everything:
        assert values(everything.read(READ_SECONDS)) == [b'{"n": 1}', b"kept", b"aborted"]


def test_an_empty_topic_is_read_in_the_time_given(control: ControlTopic) -> None:
    control.read(0)
    started = time.monotonic()
    assert control.read(1.2) == []
    assert time.monotonic() - started >= 1.2


@pytest.mark.parametrize(
    ("milliseconds", "nearest"),
    [
        (1, datetime(1970, 1, 1, 0, 0, 0, 1000, UTC)),
        (-1, datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)),
        (2**63 - 1, datetime.max.replace(tzinfo=UTC)),
        (-(2**63), datetime.min.replace(tzinfo=UTC)),
    ],
)
def test_a_time_that_no_calendar_has_is_the_nearest_one(milliseconds: int, nearest: datetime) -> None:
    assert instant(milliseconds) == nearest


def test_the_user_s_group_and_acks_do_not_reach_the_clients(
    spark: SparkSession, properties: dict[str, str], control: ControlTopic
) -> None:
    topic = control.send({"n": 1}).topic
    pasted = {"group.id": "mine", "group.instance.id": "a", "transactional.id": "t", "acks": "0", "client.id": "me"}
    with ControlTopic(spark, {**properties, **pasted}, topic) as other:
        assert other.send({"n": 2}).offset == 1
        assert len(other.read(READ_SECONDS)) == 2


def test_a_control_topic_that_is_missing_says_so(spark: SparkSession, properties: dict[str, str]) -> None:
    with ControlTopic(spark, properties, unique_topic("missing")) as control:
        for use in (lambda: control.read(0), control.is_at_end, lambda: control.send({})):
            with pytest.raises(TopicError, match="does not exist") as error:
                use()
            assert not isinstance(error.value, PassingTopicError)


def test_a_topic_deleted_under_the_reader_says_so_and_a_new_one_is_read_from_its_beginning(
    broker: Broker, control: ControlTopic
) -> None:
    topic = control.send({"n": 1}).topic
    control.send({"n": 2})
    assert len(control.read(READ_SECONDS)) == 2
    delete_topic(broker.bootstrap_servers, topic)
    with pytest.raises(TopicError, match=f'topic "{topic}" does not exist'):
        control.read(READ_SECONDS)

    control.create_if_missing()
    control.send({"n": 3})
    with pytest.raises(TopicError, match="was deleted and created again"):
        control.read(READ_SECONDS)
    assert values(control.read(READ_SECONDS)) == [b'{"n": 3}']


@pytest.mark.parametrize("use", [lambda control: control.send({}), lambda control: control.read(0)])
def test_a_broker_that_cannot_be_reached_fails_a_send_and_a_read_in_time(
    spark: SparkSession, closed_port: int, monkeypatch: pytest.MonkeyPatch, use: Callable[[ControlTopic], object]
) -> None:
    monkeypatch.setattr("livetables.kafka.topics.ANSWER_SECONDS_MAX", 1.0)
    started = time.monotonic()
    with (
        ControlTopic(spark, {"bootstrap.servers": f"127.0.0.1:{closed_port}"}, "control") as control,
        pytest.raises(PassingTopicError, match="did not answer") as error,
    ):
        use(control)
    assert time.monotonic() - started < 30
    assert error.value.__suppress_context__, "Java's stack would be shown"


def kafka_threads(spark: SparkSession) -> list[str]:
    assert spark._jvm is not None
    threads = spark._jvm.java.lang.Thread.getAllStackTraces().keySet()
    return [name for name in (str(thread.getName()) for thread in threads) if "closed-by-test" in name]


def test_closing_ends_the_java_clients_and_may_be_repeated(
    spark: SparkSession, properties: dict[str, str], control: ControlTopic
) -> None:
    topic = control.send({}).topic
    opened = ControlTopic(spark, {**properties, "client.id": "closed-by-test"}, topic)
    opened.send({})
    assert len(opened.read(READ_SECONDS)) == 2
    assert len(kafka_threads(spark)) >= 2, "an admin client and a producer"
    opened.close()
    opened.close()
    wait_until(lambda: kafka_threads(spark) == [], "the threads of the clients have ended")
    with pytest.raises(AssertionError, match="closed"):
        opened.read(0)
