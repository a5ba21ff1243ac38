"""The source: a Kafka topic as a stream of raw records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from livetables.config.kafka_properties import READER_DEFAULTS
from livetables.jvm.session import is_one_process
from livetables.model.spec import OFFSET_BITS, Start, Table

# Kafka's defaults cost two extra round trips per 500 records. A client's own properties win. Kafka's own
# `fetch.max.wait.ms` of 500 stays: a request waits at the broker until a record comes. With 5, each partition without
# records was asked 200 times a second, which took half a core from broker and JVM, and doubled the latency on two.
FETCH_PROPERTIES: Mapping[str, str] = {
    "max.poll.records": "50000",
    "max.partition.fetch.bytes": str(16 * 1024 * 1024),
}

# In micro-batches, where Spark asks for the end of a partition on the connection of a request that still waits: 0.5 s
# for each partition, one after another (1,000 of them, read by 8 tasks, took 79 instead of 19 s, measured).
BATCH_PROPERTIES: Mapping[str, str] = {"fetch.max.wait.ms": "5"}

# Partitions that are read at once in micro-batches, in one process: each has a Kafka consumer, and a consumer of a
# topic with 1,000 partitions takes 1.4 MB of heap.
READERS_MAX = 32

SOURCE = "livetables.MatchOperator$Source"  # Spark's, for any timestamp, and with batches that are limited in bytes
MAX_BYTES = "livetables.maxBytesPerTrigger"

# Kafka accepts any time. From 1582-10-15, before which Spark counts days by another calendar, to the end of 9999, after
# which Python has no times, a record has its own; any other has the nearest of these.
TIME_MS_MIN, TIME_MS_MAX = -12_219_292_800_000, 253_402_300_799_999


@dataclass(frozen=True)
class BatchLimit:
    """How much of a topic is read at once. Bytes are estimated, by a sample of the topic when a query starts."""

    records: int
    bytes: int


def read_topic(
    spark: SparkSession, table: Table, kafka_properties: Mapping[str, str], limit: BatchLimit | None
) -> DataFrame:
    """Return the records of a topic: `_id`, `ts` in milliseconds, and the `value` as bytes. The key is ignored."""
    fetch = FETCH_PROPERTIES if limit is None else {**FETCH_PROPERTIES, **BATCH_PROPERTIES}
    given = {**READER_DEFAULTS, **fetch, **kafka_properties}
    properties = {f"kafka.{name}": value for name, value in given.items()}
    reader = (
        spark.readStream.format(SOURCE)
        .options(**properties, **start_options(table.start))
        .option("subscribe", table.topic)
        # A topic that was deleted, created again or truncated must end the query, not skip records silently.
        .option("failOnDataLoss", "true")
    )
    if limit is not None:  # real time does not support it
        reader = reader.option("maxOffsetsPerTrigger", limit.records).option(MAX_BYTES, limit.bytes)
    packed_id = F.shiftleft(F.col("partition").cast("bigint"), OFFSET_BITS).bitwiseOR(F.col("offset"))
    time_ms = F.least(F.greatest(F.unix_millis("timestamp"), F.lit(TIME_MS_MIN)), F.lit(TIME_MS_MAX))
    records = reader.load().select(packed_id.alias("_id"), time_ms.alias("ts"), "value")
    # Elsewhere tasks are bounded by the cores of the cluster.
    is_bounded = limit is not None and is_one_process(str(spark.conf.get("spark.master")))
    return records.coalesce(READERS_MAX) if is_bounded else records


def start_options(start: Start) -> dict[str, str]:
    """Return Spark's options for where a new generation starts to read; a restarted one continues where it was."""
    if isinstance(start, datetime):
        return {
            "startingTimestamp": str(int(start.timestamp() * 1000)),
            # A partition without a record that new starts at its end.
            "startingOffsetsByTimestampStrategy": "latest",
        }
    return {"startingOffsets": start}
