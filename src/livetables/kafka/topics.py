"""Kafka as the pipeline sees it beside Spark's own reading: which topics there are, and the control topic."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pyspark.sql import SparkSession

from livetables.kafka.clients import (
    ANSWER_SECONDS_MAX,
    SLICE_SECONDS,
    ClientsOwner,
    ControlRecord,
    Topic,
)
from livetables.kafka.error_catalogue import MissingTopicError, shown
from livetables.model.errors import PassingTopicError, TopicError
from livetables.model.wire import Receipt

__all__ = ["ControlRecord", "ControlTopic", "KafkaTopics", "Topic", "TopicProblem", "in_order", "was_replaced"]

LOOK_AGAIN_SECONDS = 0.05
TIME_TYPE = "message.timestamp.type"
ARRIVAL_TIME = "LogAppendTime"
KAFKA_TIME_CURE = 'write timestamp = "kafka" for the table'
SECONDS_A_TOPIC = 0.05  # more for each, since a start may ask for all that a thousand messages name


@dataclass(frozen=True)
class TopicProblem:
    """Why a topic cannot be read, and how to fix it."""

    reason: str
    is_passing: bool = False  # whether it may be gone later, though nobody changes a topic or a setting


def arrival_cure(topic: str) -> str:
    """What lets the records of a topic have the time at which the broker takes them."""
    return (
        f"run kafka-configs --alter --entity-type topics --entity-name {topic} "
        f"--add-config {TIME_TYPE}={ARRIVAL_TIME}, or {KAFKA_TIME_CURE}"
    )


def was_replaced(before: Topic, now: Topic) -> str | None:
    """Says how the records that were read are no longer the topic's; None while they are, or were only deleted."""
    if before.topic_id != now.topic_id:
        return f"topic {shown(now.name)} was deleted and created again"
    for partition, end in before.ends.items():
        if now.ends.get(partition, 0) < end:
            return f"partition {partition} of topic {shown(now.name)} has lost records from its end"
    return None


def in_order(records: Iterable[ControlRecord]) -> list[ControlRecord]:
    """Control records in the order in which they count: within a partition by offset, whatever their timestamps.

    Between partitions the timestamps decide, each taken to be at least that of the record before it in its partition.
    """
    latest: dict[int, datetime] = {}
    placed: list[tuple[datetime, ControlRecord]] = []
    for record in sorted(records, key=lambda each: (each.partition, each.offset)):
        latest[record.partition] = max(record.timestamp, latest.get(record.partition, record.timestamp))
        placed.append((latest[record.partition], record))
    placed.sort(key=lambda each: each[0])  # stable: ties stay in the order of partition and offset
    return [record for _, record in placed]


class KafkaTopics(ClientsOwner):
    """Looks at topics. Any thread may ask."""

    def __init__(
        self, spark: SparkSession, properties: Mapping[str, str], seconds_max: float = ANSWER_SECONDS_MAX
    ) -> None:
        super().__init__(spark, properties)
        self._seconds_max = seconds_max

    def look(self, names: Iterable[str]) -> dict[str, Topic | TopicProblem]:
        """Each topic, or why it cannot be read; a broker that does not answer in time is a problem of each."""
        names = list(dict.fromkeys(names))
        seen = self._clients.look(names, time.monotonic() + self._seconds_max + SECONDS_A_TOPIC * len(names))
        return {name: _problem(found) if isinstance(found, TopicError) else found for name, found in seen.items()}

    def without_arrival(self, names: Iterable[str]) -> dict[str, TopicProblem]:
        """Those of the topics whose records do not have the time at which the broker took them, and why."""
        problems: dict[str, TopicProblem] = {}
        for name in dict.fromkeys(names):
            try:
                kept = self._clients.settings(name, [TIME_TYPE], time.monotonic() + self._seconds_max).get(TIME_TYPE)
            except PassingTopicError as error:
                problems[name] = _problem(error)
            except TopicError as error:
                reason = f"whether topic {shown(name)} has the time of arrival cannot be seen: {error.problem}"
                problems[name] = TopicProblem(f"{reason}; grant DescribeConfigs on it, or {KAFKA_TIME_CURE}")
            else:
                if kept != ARRIVAL_TIME:
                    reason = f"topic {shown(name)} does not have the time of arrival: its {TIME_TYPE} is {kept}"
                    problems[name] = TopicProblem(f"{reason}; {arrival_cure(name)}")
        return problems

    def names(self) -> list[str]:
        """All topics that can be seen, without Kafka's own."""
        return self._clients.names(time.monotonic() + self._seconds_max)


class ControlTopic(ClientsOwner):
    """Reads and writes the control topic. One thread reads at a time; any thread may send.

    Whatever fails, what `read` has not returned is read again, and a PassingTopicError says that trying again may be
    all that is needed. A topic that was replaced is reported once, as an error, and then read from its beginning.
    """

    def __init__(self, spark: SparkSession, properties: Mapping[str, str], topic: str) -> None:
        super().__init__(spark, properties)
        self._name = topic
        self._reading = threading.Lock()
        self._seen: Topic | None = None
        self._positions: dict[int, int] = {}

    def create_if_missing(self) -> None:
        """Returns when the topic is there. A new one has one partition, and keeps its records for ever."""
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        try:
            self._look(deadline)
        except MissingTopicError:
            self._clients.create(self._name, deadline)
        else:
            return
        while True:
            # A new topic is known to every broker, and has leaders, only after a moment.
            with suppress(TopicError):
                self._look(deadline)
                return
            if time.monotonic() > deadline:
                raise self._clients.error(self._name, ["TimeoutException"])
            time.sleep(LOOK_AGAIN_SECONDS)

    def rewind(self) -> None:
        """Read from the beginning again."""
        with self._reading:
            self._positions = {}

    def is_at_end(self) -> bool:
        """Whether every record that is on the topic now has been read."""
        with self._reading:
            topic = self._followed()
            return _reach(self._positions, topic.ends)

    def read(self, seconds_max: float) -> list[ControlRecord]:
        """The records since the last read, at first from the beginning: all that are there when it starts.

        If there are none, the first to come; none when none comes in time. They are `in_order`.
        """
        deadline = time.monotonic() + seconds_max
        with self._reading:
            topic = self._followed()
            positions = dict(self._positions)
            records: list[ControlRecord] = []
            with self._clients.translating_errors(self._name, "consumer"):
                consumer = self._clients.consumer(time.monotonic() + ANSWER_SECONDS_MAX)
                consumer.seek(topic.name, positions)
                while not (records and _reach(positions, topic.ends)):
                    polled = consumer.poll(max(0.0, min(SLICE_SECONDS, deadline - time.monotonic())))
                    records += polled
                    positions |= {record.partition: record.offset + 1 for record in polled}
                    positions = consumer.positions(positions)
                    if time.monotonic() >= deadline:
                        break
            self._positions = positions
            # What was read beyond the ends seen before must not get lost unnoticed either.
            self._seen = replace(topic, ends={p: max(end, positions[p]) for p, end in topic.ends.items()})
        return in_order(records)

    def send(self, fields: Mapping[str, Any]) -> Receipt:
        """Publish a control message, and return when all replicas in sync have it.

        After an error it may be on the topic nevertheless: only the broker's answer may have been lost.
        """
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        # Asked first, since a producer would wait for a missing topic in vain, or have a broker create it.
        self._look(deadline)
        return self._clients.send(self._name, json.dumps(dict(fields)).encode(), deadline)

    def close(self) -> None:
        with self._reading:
            super().close()

    def _look(self, deadline: float) -> Topic:
        seen = self._clients.look([self._name], deadline)[self._name]
        if isinstance(seen, TopicError):
            raise seen
        return seen

    def _followed(self) -> Topic:
        """The topic now, with a position for each of its partitions, new ones too."""
        topic = self._look(time.monotonic() + ANSWER_SECONDS_MAX)
        before, self._seen = self._seen, topic
        if before is not None and (replaced := was_replaced(before, topic)):
            self._positions = {}
            self._clients.drop("consumer")
            raise TopicError(f"the control {replaced}", "nothing to do: it is read again from its beginning")
        self._positions = {p: max(self._positions.get(p, 0), first) for p, first in topic.beginnings.items()}
        return topic


def _problem(error: TopicError) -> TopicProblem:
    return TopicProblem(f"{error.problem}; {error.cure}", is_passing=isinstance(error, PassingTopicError))


def _reach(positions: Mapping[int, int], ends: Mapping[int, int]) -> bool:
    return all(positions[partition] >= end for partition, end in ends.items())
