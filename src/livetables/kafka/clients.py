"""The Java clients of Kafka in the driver's JVM, with values and errors of Python.

They are the ones that Spark reads with, so the user's Java properties mean here what they mean to Spark: SASL, callback
handler classes, key stores. No call stays in the JVM for longer than SLICE_SECONDS, so that Python's signals and other
threads are served in between.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from itertools import count
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from livetables.config.kafka_properties import READER_DEFAULTS
from livetables.jvm.java_errors import JAVA_ERRORS, class_names
from livetables.kafka.error_catalogue import MAX_SHOWN, NO_TOKEN, NOT_LET_IN, root_cause, topic_error
from livetables.kafka.redaction import Redaction
from livetables.model.errors import PassingTopicError, TopicError
from livetables.model.spec import is_topic_name
from livetables.model.wire import Receipt

ANSWER_SECONDS_MAX = 10.0
SLICE_SECONDS = 0.5
LATE_SECONDS = 1.0  # after which a wait that should have ended is ended

OWN_LOGIN = "sasl.livetables.login"
LOGIN_NUMBERS = count()

# A reader of its own belongs to no group, and a writer of single messages to no transaction.
NOT_FOR_CLIENTS = re.compile(r"group\..*|transactional\.id|interceptor\.classes")
LIMITS: Mapping[str, str] = {
    "default.api.timeout.ms": f"{ANSWER_SECONDS_MAX * 1000:.0f}",
    "request.timeout.ms": f"{ANSWER_SECONDS_MAX * 500:.0f}",
}
CONSUMER_PROPERTIES: Mapping[str, str] = {
    **LIMITS,
    "key.deserializer": "org.apache.kafka.common.serialization.ByteArrayDeserializer",
    "value.deserializer": "org.apache.kafka.common.serialization.ByteArrayDeserializer",
    "enable.auto.commit": "false",
    "allow.auto.create.topics": "false",
    # Where to read is decided here, never by the client.
    "auto.offset.reset": "none",
}
PRODUCER_PROPERTIES: Mapping[str, str] = {
    "key.serializer": "org.apache.kafka.common.serialization.ByteArraySerializer",
    "value.serializer": "org.apache.kafka.common.serialization.ByteArraySerializer",
    "acks": "all",
    "linger.ms": "0",
    "max.block.ms": f"{SLICE_SECONDS * 1000:.0f}",
    "delivery.timeout.ms": f"{ANSWER_SECONDS_MAX * 1000:.0f}",
    "request.timeout.ms": f"{ANSWER_SECONDS_MAX * 500:.0f}",
}
ADMIN = "org.apache.kafka.clients.admin"
CLIENTS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "admin": (f"{ADMIN}.AdminClient.create", LIMITS),
    "consumer": ("org.apache.kafka.clients.consumer.KafkaConsumer", CONSUMER_PROPERTIES),
    "producer": ("org.apache.kafka.clients.producer.KafkaProducer", PRODUCER_PROPERTIES),
}

# An answer about a thousand partitions is taken as Java's text: a call for each of its values would take seconds.
NO_LEADER = "leader=null,"
OFFSET = re.compile(r"-([0-9]+)=ListOffsetsResultInfo\(offset=([0-9]+),")
ASKED_MAX = 100  # topics whose questions are kept

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Before = TypeVar("Before")
After = TypeVar("After")


class Driver(Protocol):
    """What has a JVM with the Kafka clients: a Spark session, or a JVM without one."""

    @property
    def _jvm(self) -> Any: ...


@dataclass(frozen=True)
class Topic:
    """A topic as it is at one moment. Another one of the same name has another id."""

    name: str
    topic_id: str
    beginnings: Mapping[int, int]  # the first offset of each partition
    ends: Mapping[int, int]  # the next offset of each partition

    @property
    def records(self) -> int:
        """How many records there are, where none was compacted away."""
        return sum(self.ends.values()) - sum(self.beginnings.values())


@dataclass(frozen=True)
class ControlRecord:
    """A record of the control topic, as it is."""

    partition: int
    offset: int
    timestamp: datetime
    value: bytes | None


def with_own_login(properties: Mapping[str, str]) -> dict[str, str]:
    """Properties for a client that logs in itself.

    Clients with the same `sasl.*` properties share a login. Kafka renews its token until one comes that has expired
    already, and then never again, for none of them.
    """
    own = {OWN_LOGIN: str(next(LOGIN_NUMBERS))} if properties.get("sasl.mechanism") == "OAUTHBEARER" else {}
    return {**properties, **own}


class Making(Future[Any]):
    """A client that is being made; `failed_before` is why the previous one could not be."""

    def __init__(self, failed_before: BaseException | None) -> None:
        super().__init__()
        self.failed_before = failed_before


class Java:
    """Java's classes by their full names. To find one asks the JVM for each part of its name, so it is done once."""

    def __init__(self, jvm: Any) -> None:
        self._jvm = jvm
        self._found: dict[str, Any] = {}

    def __call__(self, name: str) -> Any:
        if name not in self._found:
            self._found[name] = reduce(getattr, name.split("."), self._jvm)
        return self._found[name]

    def listed(self, values: Iterable[Any]) -> Any:
        """The values as a Java list."""
        made = self("java.util.ArrayList")()
        for value in values:
            made.add(value)
        return made

    def mapped(self, pairs: Iterable[tuple[Any, Any]]) -> Any:
        """The pairs as a Java map."""
        made = self("java.util.HashMap")()
        for key, value in pairs:
            made.put(key, value)
        return made

    def duration(self, seconds: float) -> Any:
        return self("java.time.Duration").ofMillis(int(seconds * 1000))


class Consumer:
    """A Java consumer of one topic, with records and positions as values of Python."""

    def __init__(self, java: Java, consumer: Any) -> None:
        self._java = java
        self._consumer = consumer
        self._partitions: dict[int, Any] = {}

    def seek(self, topic: str, positions: Mapping[int, int]) -> None:
        create = self._java("org.apache.kafka.common.TopicPartition")
        self._partitions = {number: create(topic, number) for number in positions}
        self._consumer.assign(self._java.listed(self._partitions.values()))
        for number, offset in positions.items():
            self._consumer.seek(self._partitions[number], offset)

    def poll(self, seconds_max: float) -> list[ControlRecord]:
        """The next records, if some come in time.

        Kafka's client waits by the machine's clock, which may be set back meanwhile. So a timer of ours ends the wait.
        """
        timer = threading.Timer(seconds_max + LATE_SECONDS, self._consumer.wakeup)
        timer.daemon = True
        timer.start()
        try:
            polled = self._consumer.poll(self._java.duration(seconds_max))
        except Py4JJavaError as error:
            if "WakeupException" not in class_names(error):
                raise
            return []
        finally:
            timer.cancel()
        if polled.isEmpty():
            return []
        return [
            ControlRecord(record.partition(), record.offset(), instant(record.timestamp()), record.value())
            for record in polled.iterator()
        ]

    def positions(self, before: Mapping[int, int]) -> dict[int, int]:
        """Where the consumer is: beyond the last record, and beyond the marks of transactions after it."""
        return {number: self._position(number, offset) for number, offset in before.items()}

    def _position(self, number: int, before: int) -> int:
        try:
            return int(self._consumer.position(self._partitions[number], self._java.duration(0)))
        except Py4JJavaError as error:
            # After a seek or a change of leader the consumer first asks the broker whether the position holds.
            if "TimeoutException" in class_names(error):
                return before
            raise


class Clients:
    """The Java clients of one set of properties, each made when it is first needed, and what they complain of."""

    def __init__(self, driver: Driver, properties: Mapping[str, str]) -> None:
        assert driver._jvm is not None, "a session without a JVM of its own has no Kafka client"
        self._java = Java(driver._jvm)
        given = {n: str(v) for n, v in properties.items() if not NOT_FOR_CLIENTS.fullmatch(n)}
        self._properties = {**READER_DEFAULTS, **given}
        self._redaction = Redaction(properties)
        self._making = threading.Lock()
        self._made: dict[str, Making] = {}
        self._failures: dict[str, BaseException] = {}  # why a client could not be made, until it can
        self._refused: set[str] = set()  # clients that were not let in, and have to log in anew
        self._closed = False
        self._asked: dict[tuple[str, int], tuple[Any, Any]] = {}  # by topic and its number of partitions

    def look(self, names: Iterable[str], deadline: float) -> dict[str, Topic | TopicError]:
        """The topics, or what is wrong with each. A step is asked for all before the next: none holds another up."""
        named: dict[str, str | TopicError] = {
            name: name if is_topic_name(name) else self.error(name, ["InvalidTopicException"]) for name in names
        }
        making = self._client("admin")
        asked = self._each(named, lambda name: self._ask_description(ready(making, deadline), name))
        described = self._each(
            asked, lambda future: self._ask_offsets(ready(making, deadline), self._answer(future, deadline))
        )
        return self._each(described, lambda asked: self._topic(*asked, deadline))

    def names(self, deadline: float) -> list[str]:
        """All topics that these properties may see, without Kafka's own."""
        with self.translating_errors("*"):
            return sorted(self._answer(ready(self._client("admin"), deadline).listTopics().names(), deadline))

    def settings(self, topic: str, names: Iterable[str], deadline: float) -> dict[str, str]:
        """Settings of a topic. A TopicError means that they may not be seen."""
        with self.translating_errors(topic):
            kind = self._java("org.apache.kafka.common.config.ConfigResource$Type").TOPIC
            resource = self._java("org.apache.kafka.common.config.ConfigResource")(kind, topic)
            admin = ready(self._client("admin"), deadline)
            asked = admin.describeConfigs(self._java.listed([resource])).values()[resource]
            found = self._answer(asked, deadline)
            entries = {name: found.get(name) for name in names}
            return {name: str(entry.value()) for name, entry in entries.items() if entry is not None}

    def create(self, name: str, deadline: float) -> None:
        """Create a topic that keeps its records for ever, unless somebody else just did."""
        optional = self._java("java.util.Optional")
        topic = self._java(f"{ADMIN}.NewTopic")(name, optional.of(1), optional.empty())
        topic.configs(self._java.mapped([("retention.ms", "-1"), ("retention.bytes", "-1")]))
        with self.translating_errors(name):
            created = ready(self._client("admin"), deadline).createTopics(self._java.listed([topic])).all()
            try:
                self._answer(created, deadline)
            except Py4JJavaError as error:
                if "TopicExistsException" not in class_names(error):
                    raise

    def send(self, topic: str, value: bytes, deadline: float) -> Receipt:
        """Have a record published, and wait until it is."""
        record = self._java("org.apache.kafka.clients.producer.ProducerRecord")(topic, value)
        with self.translating_errors(topic, "producer"):
            producer = self._producer_for(topic, deadline)
            try:
                written = self._answer(producer.send(record), deadline)
            except BaseException:
                # What was reported to have failed must not be sent later.
                self.drop("producer")
                raise
            return Receipt(topic, written.partition(), written.offset())

    def consumer(self, deadline: float) -> Consumer:
        return Consumer(self._java, ready(self._client("consumer"), deadline))

    def drop(self, kind: str) -> None:
        """Close a client at once, or when it is made; the next use makes another."""
        with self._making:
            making = self._made.pop(kind, None)
        if making is not None:
            making.add_done_callback(self._close)

    def close(self) -> None:
        with self._making:
            self._closed = True
        for kind in list(self._made):
            self.drop(kind)

    def _close(self, made: Future[Any]) -> None:
        # There may be no JVM any more.
        with suppress(Py4JError, OSError):
            if not made.exception():
                made.result().close(self._java.duration(0))

    @contextmanager
    def translating_errors(self, topic: str, kind: str = "admin") -> Iterator[None]:
        """Turns what Java throws at a client into an error that says what is wrong, without Java's stack."""
        try:
            yield
        except JAVA_ERRORS as error:
            names = class_names(error)
            if not set(NOT_LET_IN).isdisjoint(names):
                self._refused.add(kind)
            raise self.error(topic, names, self._cause(error)) from None

    def error(self, topic: str, class_names: Iterable[str], cause: str = "") -> TopicError:
        """The error for an exception of these classes, those of the outermost one first."""
        servers = self._redaction.applied(self._properties.get("bootstrap.servers", "(no address)"))
        return topic_error(topic, class_names, servers=servers, cause=cause)

    def _cause(self, error: Exception) -> str:
        # Cut only when it is redacted: a part of a secret would not be found.
        return self._redaction.applied(root_cause(error)).partition("\n")[0][:MAX_SHOWN]

    def _each(
        self, before: Mapping[str, Before | TopicError], step: Callable[[Before], After]
    ) -> dict[str, After | TopicError]:
        """Takes every topic that has no problem yet through a step."""
        after: dict[str, After | TopicError] = {}
        for name, value in before.items():
            try:
                with self.translating_errors(name):
                    after[name] = value if isinstance(value, TopicError) else step(value)
            except TopicError as problem:
                after[name] = problem
        return after

    def _ask_description(self, admin: Any, name: str) -> Any:
        options = self._java(f"{ADMIN}.DescribeTopicsOptions")()
        asked = admin.describeTopics(self._java.listed([name]), options.includeAuthorizedOperations(True))
        return asked.topicNameValues()[name]

    def _ask_offsets(self, admin: Any, description: Any) -> tuple[Any, Any, Any]:
        name = description.name()
        allowed = {str(operation) for operation in description.authorizedOperations() or ()}
        if allowed and "READ" not in allowed:
            raise self.error(name, ["TopicAuthorizationException"])
        partitions = description.partitions()
        # To ask for the offsets of such a partition would take all the time there is.
        if partitions.isEmpty() or NO_LEADER in partitions.toString():
            raise self.error(name, ["LeaderNotAvailableException"])
        isolation = self._properties["isolation.level"].upper()  # the end is as far as it lets the reader read
        level = self._java("org.apache.kafka.common.IsolationLevel").valueOf(isolation)
        options = self._java(f"{ADMIN}.ListOffsetsOptions")(level)
        first, last = self._questions(name, partitions.size())
        return description, admin.listOffsets(first, options).all(), admin.listOffsets(last, options).all()

    def _questions(self, topic: str, partitions: int) -> tuple[Any, Any]:
        """What to ask for the first and the last offsets. Made once for a topic: it is a call for each partition."""
        made = self._asked.get((topic, partitions))
        if made is None:
            create, offset = self._java("org.apache.kafka.common.TopicPartition"), self._java(f"{ADMIN}.OffsetSpec")
            places = [create(topic, number) for number in range(partitions)]
            first, last = offset.earliest(), offset.latest()
            made = (
                self._java.mapped((each, first) for each in places),
                self._java.mapped((each, last) for each in places),
            )
            if len(self._asked) >= ASKED_MAX:
                self._asked.clear()
            self._asked[topic, partitions] = made
        return made

    def _topic(self, description: Any, first: Any, last: Any, deadline: float) -> Topic:
        partitions = description.partitions().size()
        return Topic(
            description.name(),
            description.topicId().toString(),
            offsets_in(self._answer(first, deadline).toString(), partitions),
            offsets_in(self._answer(last, deadline).toString(), partitions),
        )

    def _answer(self, future: Any, deadline: float) -> Any:
        """What a Java future comes to by then. One that has come to it is never too late."""
        unit = self._java("java.util.concurrent.TimeUnit").MILLISECONDS
        while True:
            left = deadline - time.monotonic()
            try:
                return future.get(max(1, int(1000 * min(left, SLICE_SECONDS))), unit)
            except Py4JJavaError as error:
                if left <= 0 or error.java_exception.getClass().getName() != "java.util.concurrent.TimeoutException":
                    raise

    def _producer_for(self, topic: str, deadline: float) -> Any:
        """The producer, when it knows the topic and so will not block."""
        producer = ready(self._client("producer"), deadline)
        while True:
            try:
                producer.partitionsFor(topic)
                return producer
            except Py4JJavaError as error:
                if time.monotonic() > deadline or "TimeoutException" not in class_names(error):
                    raise

    def _client(self, kind: str) -> Making:
        """A client, which a thread of its own makes: to log in can take longer than there is time.

        One that could not be made is handed out once, so that its failure is reported, and then made anew.
        """
        if kind in self._refused:
            self._refused.discard(kind)
            self.drop(kind)
        with self._making:
            assert not self._closed, "used after it was closed"
            making = self._made.get(kind)
            if making is None:
                making = self._made[kind] = Making(self._failures.get(kind))
                threading.Thread(target=self._make, args=(kind, making), name=f"kafka-{kind}", daemon=True).start()
            elif making.done() and (failure := making.exception()):
                self._failures[kind] = failure
                del self._made[kind]
            return making

    def _make(self, kind: str, making: Making) -> None:
        create, properties = CLIENTS[kind]
        try:
            given = self._java.mapped({**with_own_login(self._properties), **properties}.items())
            making.set_result(self._java(create)(given))
            self._failures.pop(kind, None)
        except Exception as error:
            making.set_exception(self._token_error(error) or error)

    def _token_error(self, error: Exception) -> TopicError | None:
        """Why a login got no OAuth token. The client has it in its log only, so the handler is asked once more."""
        handler_class = self._properties.get("sasl.login.callback.handler.class")
        if not handler_class or "LoginException" not in class_names(error):
            return None
        oauth = "org.apache.kafka.common.security.oauthbearer"
        try:
            values = self._java(f"{ADMIN}.AdminClientConfig")(self._java.mapped(self._properties.items())).values()
            jaas = self._java("org.apache.kafka.common.security.JaasContext").loadClientContext(values)
            handler = self._java(handler_class)()
            handler.configure(values, self._properties.get("sasl.mechanism"), jaas.configurationEntries())
            assert SparkContext._gateway is not None, "whoever has a JVM has started it so"
            asked = SparkContext._gateway.new_array(self._java("javax.security.auth.callback.Callback"), 1)
            asked[0] = self._java(f"{oauth}.OAuthBearerTokenCallback")()
            handler.handle(asked)
        except JAVA_ERRORS as error:
            problem, cure = NO_TOKEN
            return PassingTopicError(problem.format(cause=self._cause(error)), cure)
        except (Py4JError, TypeError):  # of no use to it, as the handler of another mechanism
            return None
        return None


class ClientsOwner:
    """Whatever has Java clients of its own, which end with its `with` block."""

    def __init__(self, spark: SparkSession, properties: Mapping[str, str]) -> None:
        self._clients = Clients(spark, properties)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._clients.close()


def offsets_in(text: str, partitions: int) -> dict[int, int]:
    """The offsets by partition in Java's text of the answer about a topic."""
    found = {int(number): int(offset) for number, offset in OFFSET.findall(text)}
    assert len(found) == partitions, f"this version of Kafka's client is not known: it answers {text[:200]}"
    return found


def ready(making: Making, deadline: float) -> Any:
    """A client, when it is made in time."""
    try:
        return making.result(max(0.0, deadline - time.monotonic()))
    except TimeoutError:
        if making.failed_before:
            raise making.failed_before from None
        raise PassingTopicError(
            "the Kafka client is not ready in time: it still looks for its broker or logs in",
            "check kafka.bootstrap.servers and what the login needs, as kafka.sasl.oauthbearer.token.endpoint.url",
        ) from None


def instant(milliseconds: int) -> datetime:
    """The time of a record. A client may have written any number, also one that no calendar reaches."""
    try:
        return EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC) if milliseconds > 0 else datetime.min.replace(tzinfo=UTC)
