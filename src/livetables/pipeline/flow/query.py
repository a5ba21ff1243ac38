"""One generation as one streaming query with one checkpoint, in one of two modes that share it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from livetables.model.spec import GenerationSpec
from livetables.pipeline.flow.match import events
from livetables.pipeline.flow.modes import Mode
from livetables.pipeline.flow.plan import plan_json
from livetables.pipeline.flow.source import BatchLimit, read_topic

FRAME_MS = 5  # records of this time are one frame: each frame costs the server some milliseconds


@dataclass(frozen=True)
class Target:
    """Where the writers of a query send their frames, and how long they wait for a server that is down."""

    url: str
    token: str
    run: int  # grows with each start of a query: the server refuses frames of an earlier one
    token_file: str | None = None
    authorities: str | None = None  # certificates as PEM text; None: those that Java trusts
    patience_seconds: float = 60.0


def start_generation(
    spark: SparkSession,
    spec: GenerationSpec,
    *,
    generation: str,
    kafka_properties: Mapping[str, str],
    checkpoint: Path | str,
    target: Target,
    mode: Mode,
    limit: BatchLimit,
    batch_seconds: int = 300,
) -> StreamingQuery:
    """Start a generation, or continue it where its checkpoint is. A record's way:

    1. Spark reads it from Kafka, parses it, and sends it to the partition of its key.
    2. The operator there keeps it, and emits it with everything that it changes.
    3. The writer of that partition sends that to the server, which applies it in one transaction.
    4. At the end of a batch, when the server has confirmed all frames, Spark writes offsets to the checkpoint.

    In micro-batches all four follow each other for a bounded number of records: the way for a backlog. In real time 1
    to 3 happen for each record at once, and 4 every `batch_seconds`. A crash before 4 reads the records of the batch
    again, and the server recognises what it has.
    """
    at_once = limit if mode == "micro_batch" else None
    read = [read_topic(spark, table, kafka_properties, at_once) for table in spec.tables]
    jvm = spark._jvm
    assert jvm is not None
    where = {
        "url": target.url,
        "ca": target.authorities,
        "token_file": target.token_file,
        "generation": generation,
        "run": target.run,
        "query": f"{generation} {target.run}",
        "real_time": mode == "real_time",
        "frame_ms": FRAME_MS,
        "patience_seconds": target.patience_seconds,
    }
    writer = (
        events(read, spec, str(where["query"]))
        .writeStream()
        .queryName(generation)
        .outputMode("update")
        .option("checkpointLocation", str(checkpoint))
        .foreach(jvm.livetables.FrameWriter(plan_json(spec), json.dumps(where), str(target.token)))
    )
    if mode == "real_time":
        writer = writer.trigger(jvm.org.apache.spark.sql.streaming.Trigger.RealTime(f"{batch_seconds} seconds"))
    return StreamingQuery(writer.start())
