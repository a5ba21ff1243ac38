"""What can be found out about a Kafka and its topics without changing anything: for `livetables doctor` and `init`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from livetables.kafka.clients import ADMIN, SLICE_SECONDS, Clients, ControlRecord, Topic, ready

SAMPLE_BYTES_MAX = 32 * 1024 * 1024


@dataclass(frozen=True)
class Sample:
    """The last records of a topic, as they are."""

    topic: str
    records: tuple[ControlRecord, ...]

    @property
    def newest(self) -> datetime | None:
        return max((record.timestamp for record in self.records), default=None)


class Inspection(Clients):
    """Looks at a Kafka with the user's own Java properties. Nothing is written."""

    def nodes(self, deadline: float) -> list[tuple[str, int]]:
        """Where the brokers say that they are to be reached. A TopicError has the reason why they do not answer."""
        with self.translating_errors("*"):
            asked = self._admin(deadline).describeCluster().nodes()
            # A list, since Python cannot go through any collection of Java's.
            nodes = self._java("java.util.ArrayList")(self._answer(asked, deadline))
            return [(node.host(), node.port()) for node in nodes]

    def operations(self, topic: str, deadline: float) -> set[str]:
        """What this client may do with a topic, like READ and WRITE; everything where nothing is checked."""
        with self.translating_errors(topic):
            asked = self._ask_description(self._admin(deadline), topic)
            return {str(operation) for operation in self._answer(asked, deadline).authorizedOperations() or ()}

    def check_creation(self, topic: str, deadline: float) -> None:
        """Returns when the topic could be created, which it is not; a TopicError has the reason why it cannot."""
        optional = self._java("java.util.Optional")
        new = self._java(f"{ADMIN}.NewTopic")(topic, optional.of(1), optional.empty())
        only_asked = self._java(f"{ADMIN}.CreateTopicsOptions")().validateOnly(True)
        with self.translating_errors(topic):
            admin = self._admin(deadline)
            self._answer(admin.createTopics(self._java.listed([new]), only_asked).all(), deadline)

    def sample(self, topic: Topic, count: int, deadline: float) -> Sample:
        """The last records that are there in time: about as many of each partition, `count` together."""
        positions = last_positions(topic, count)
        records: list[ControlRecord] = []
        size = 0
        with self.translating_errors(topic.name):
            consumer = self.consumer(deadline)
            consumer.seek(topic.name, positions)
            while any(positions[p] < topic.ends[p] for p in positions) and size < SAMPLE_BYTES_MAX:
                if time.monotonic() > deadline:
                    break
                polled = consumer.poll(SLICE_SECONDS)
                records += (record for record in polled if record.offset < topic.ends[record.partition])
                size += sum(len(record.value or b"") for record in polled)
                positions |= {record.partition: record.offset + 1 for record in polled}
                positions = consumer.positions(positions)
        if not records and topic.records and time.monotonic() > deadline:
            raise self.error(topic.name, ["TimeoutException"])
        return Sample(topic.name, tuple(records))

    def _admin(self, deadline: float) -> Any:
        return ready(self._client("admin"), deadline)


def last_positions(topic: Topic, count: int) -> dict[int, int]:
    """Where to begin in each partition to read the last `count`: what a short one lacks, longer ones give."""
    positions: dict[int, int] = {}
    held = {p: end - topic.beginnings[p] for p, end in topic.ends.items() if end > topic.beginnings[p]}
    left = count
    for place, partition in enumerate(sorted(held, key=lambda p: held[p])):
        share = -(-left // (len(held) - place))
        taken = min(held[partition], share)
        positions[partition] = topic.ends[partition] - taken
        left -= taken
    return positions
