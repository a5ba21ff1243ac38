"""One generation as one streaming query with one checkpoint: its batches carry all tables and views together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.conversion import PandasConversionMixin
from pyspark.sql.streaming.query import StreamingQuery

from livetables.change import Batch
from livetables.pipeline import changelog
from livetables.pipeline.callback import Callback
from livetables.pipeline.join import join
from livetables.pipeline.parse import parse
from livetables.pipeline.sink import Sink
from livetables.pipeline.source import read_topic
from livetables.spec import GenerationSpec

# Spark makes the code of every operator anew for each batch, in its tasks. For a few records that takes longer than
# their evaluation without it: at 1,000 records a second, tasks took 92 instead of 166 ms interpreted.
INTERPRETED_ROWS_MAX = 5_000
CODE_SETTING = "spark.sql.codegen.factoryMode"


class Evaluation:
    """How a query's expressions are evaluated: a batch is taken to be about as large as the one before it."""

    def __init__(self) -> None:
        self.rows: int | None = None  # of the batch before; None: there may be a backlog
        self._mode = ""

    def suit(self, batch: DataFrame) -> None:
        is_small = self.rows is not None and self.rows <= INTERPRETED_ROWS_MAX
        mode = "NO_CODEGEN" if is_small else "FALLBACK"
        if mode != self._mode:
            batch.sparkSession.conf.set(CODE_SETTING, mode)  # a session of this query's own
            self._mode = mode


def start_generation(
    spark: SparkSession,
    spec: GenerationSpec,
    *,
    generation: str,
    kafka_properties: Mapping[str, str],
    checkpoint: Path | str,
    sink: Sink,
    max_records_per_batch: int,
    callback: Callback | None = None,
) -> StreamingQuery:
    """Start a generation, or go on with it where its checkpoint is. For each micro-batch:

    1. Spark plans it: the offsets to read are written to the checkpoint.
    2. Its rows are computed and collected, in one action: a second would compute them again.
    3. They become changes.
    4. The sink commits the changes together with the batch id.
    5. Spark writes the batch id to the checkpoint.

    A crash before 5 replays the batch with the same offsets and id; after 4, the sink ignores it. `callback` is told
    of 2 to 4.
    """
    records = {t.name: read_topic(spark, t, kafka_properties, max_records_per_batch) for t in spec.tables}
    parsed = {table.name: parse(records[table.name], table) for table in spec.tables}
    rows = join(parsed, spec)

    evaluation = Evaluation()
    callback = callback or Callback()

    def deliver(batch: DataFrame, batch_id: int) -> None:
        with callback.called():
            handle(batch, batch_id)

    def handle(batch: DataFrame, batch_id: int) -> None:
        evaluation.suit(batch)
        with callback.steps.timed(batch_id, "collect"):
            collected = _collected(batch)  # 2
        evaluation.rows = collected.num_rows
        with callback.steps.timed(batch_id, "changelog"):
            streams = changelog.untagged(collected)
            changed = changelog.changes(streams, spec)  # 3
            unknown = changelog.unknown_fields(streams, spec)
        with callback.steps.timed(batch_id, "deliver"):
            sink.put(Batch(generation, batch_id, changed, unknown, changelog.records(streams, spec)))  # 4

    sink.begin(generation, changelog.shapes(spec))
    return (
        rows.writeStream.queryName(generation)
        .outputMode("update")
        .option("checkpointLocation", str(checkpoint))
        .foreachBatch(deliver)
        .start()
    )


def _collected(batch: DataFrame) -> pa.Table:
    """What `toArrow` gives, without its last step: a cast that refuses a struct with a field that is never null."""
    assert isinstance(batch, PandasConversionMixin)
    return pa.Table.from_batches(batch._collect_as_arrow(empty_list_if_zero_records=False))
