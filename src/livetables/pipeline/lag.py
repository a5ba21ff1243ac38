"""How far a generation is behind its topics, and how far it has come since its start, from what Spark tells."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql.streaming.listener import StreamingQueryProgress

from livetables.pipeline.topics import Topic
from livetables.spec import GenerationSpec
from livetables.wire import SourceReport


def source_reports(progress: StreamingQueryProgress, spec: GenerationSpec) -> list[SourceReport]:
    """The records of each table's topic that were still to be read after a batch."""
    behind: dict[str, int] = {}
    for source in progress.sources:
        read, there = _offsets(source.endOffset), _offsets(source.latestOffset)
        for topic, partitions in there.items():
            lag = sum(end - read.get(topic, {}).get(partition, 0) for partition, end in partitions.items())
            behind[topic] = max(lag, behind.get(topic, 0))
    return [SourceReport(table.publish, table.topic, behind.get(table.topic, 0)) for table in spec.tables]


def records_read(progress: StreamingQueryProgress | None, topics: Mapping[str, Topic]) -> int:
    """How many of the records that topics had when they were looked at have been read, or passed over, since."""
    reached: dict[str, Mapping[str, int]] = {}
    for source in progress.sources if progress else ():
        for topic, partitions in _offsets(source.endOffset).items():
            before = reached.get(topic, partitions)  # two tables may read one topic, and both have to get there
            reached[topic] = {number: min(end, before.get(number, 0)) for number, end in partitions.items()}
    return sum(
        max(0, min(end, reached.get(name, {}).get(str(number), 0)) - topic.beginnings[number])
        for name, topic in topics.items()
        for number, end in topic.ends.items()
    )


def _offsets(text: str | None) -> Mapping[str, Mapping[str, int]]:
    offsets: Mapping[str, Mapping[str, int]] | None = json.loads(text) if text else None
    return offsets or {}
