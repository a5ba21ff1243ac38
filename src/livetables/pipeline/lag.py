"""How far a generation is behind its topics, from what Spark tells of its last batch."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql.streaming.listener import StreamingQueryProgress

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


def _offsets(text: str | None) -> Mapping[str, Mapping[str, int]]:
    offsets: Mapping[str, Mapping[str, int]] | None = json.loads(text) if text else None
    return offsets or {}
