"""How far a generation is: computed from the server's offsets, Spark's commits and the ends of its topics."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql.streaming.listener import StreamingQueryProgress

from livetables.kafka.error_catalogue import shown
from livetables.kafka.topics import Topic

Offsets = dict[str, dict[int, int]]  # by topic and partition: the next one to read


def committed_offsets(progress: StreamingQueryProgress) -> Offsets:
    """Return what Spark had read at the end of its last batch. If two tables read one topic, the lower one counts."""
    reached: Offsets = {}
    for source in progress.sources:
        for topic, partitions in _parsed(source.endOffset).items():
            before = reached.get(topic)
            found = {int(number): offset for number, offset in partitions.items()}
            reached[topic] = found if before is None else {n: min(o, before.get(n, 0)) for n, o in found.items()}
    return reached


def lag_of(
    topic: Topic, stored: Mapping[int, int], committed: Mapping[int, int], first: Mapping[int, int] | None = None
) -> int:
    """Return how many records of a topic are not read yet.

    All arguments are next offsets: `stored` by the server, `committed` by Spark, and `first`, where reading began in
    partitions of which neither has any; without it, at their beginnings.
    The server has those of records only; what a transaction leaves between them, Spark knows at the end of a batch.
    """
    reached = {n: max(stored.get(n, 0), committed.get(n, 0)) or (first or {}).get(n, 0) for n in topic.ends}
    return sum(max(0, end - max(reached[n], topic.beginnings.get(n, 0))) for n, end in topic.ends.items())


def records_read(committed: Offsets, topics: Mapping[str, Topic]) -> int:
    """Return how many of the records that topics had when they were checked have been read, or skipped, since."""
    return sum(
        max(0, min(end, committed.get(name, {}).get(number, 0)) - topic.beginnings[number])
        for name, topic in topics.items()
        for number, end in topic.ends.items()
    )


def lost_unread(committed: Offsets, beginnings: Mapping[str, Mapping[int, int]]) -> str | None:
    """Say which topic has lost the first records of a partition before one of them was read; None if there is none.

    `beginnings` are older than the batch after which `committed` was reported. In real time, Spark takes a partition
    that cannot be read at offset 0 for one that has no record yet, and waits for ever; anywhere else, it fails.
    """
    for name, offsets in committed.items():
        for number, offset in sorted(offsets.items()):
            if offset == 0 and beginnings.get(name, {}).get(number, 0) > 0:
                return (
                    f"Kafka no longer has the first records of partition {number} of topic {shown(name)}, "
                    "and none of them was read"
                )
    return None


def has_every_record(topic: Topic, stored: Mapping[int, int], records: int) -> bool:
    """Whether a table that is read from its topic's beginning has every record before the next offsets `stored`.

    Several writers send the records of a partition in parallel, so that a high offset of one proves nothing about the
    others. But offsets without a gap are as many as there are records. Where a transaction or compaction has left
    gaps, it is never known.
    """
    return sum(offset - topic.beginnings.get(number, 0) for number, offset in stored.items()) == records


def _parsed(text: str | None) -> Mapping[str, Mapping[str, int]]:
    offsets: Mapping[str, Mapping[str, int]] | None = json.loads(text) if text else None
    return offsets or {}
