"""From typed rows to joined ones, on Spark's own operators: one streaming DataFrame for a whole generation.

The DataFrame is a tagged union. It has one struct column per stream, and each row fills exactly one of them:

- every table is a stream of its parsed records;
- every `MatchStream` is a stream of joined rows. Views that join the same tables on the same column share one.

There are two kinds of match streams, and neither emits a row without a match: an outer join would hold it back until a
watermark passes. The row without a match is the table's own row, which the changelog shows until a match arrives.

- pairs (`inner`, `left`, `asof`): an inner stream-stream join. Each new record is paired with all of the other side.
- latest (`natural`): an aggregation that keeps, per key, the left rows and the latest right row. A new record costs the
  same however many right rows its key has had.

Each table is repartitioned by the join's key before all of its uses, so that Spark reuses the exchange: the topic is
read and parsed once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from livetables.spec import GenerationSpec, Table, View, joined_columns


@dataclass(frozen=True)
class MatchStream:
    """A stream of matched rows that one Spark operator makes for one or more views."""

    left: Table
    right: Table
    on: str
    latest: bool = False  # one row per left row, with the latest right row, instead of all pairs
    asof: bool = False  # only pairs whose left row is not newer than the right one
    lookback_seconds: int | None = None

    @property
    def name(self) -> str:
        kind = "latest" if self.latest else "asof" if self.asof else "pairs"
        bound = "" if self.lookback_seconds is None else f":{self.lookback_seconds}"
        return f"{self.left.name}:{self.right.name}:{self.on}:{kind}{bound}"


def match_streams(spec: GenerationSpec) -> dict[str, MatchStream]:
    """Which match stream serves each view, by the view's name."""
    unbounded = {
        (view.left, view.right, view.on) for view in spec.views if view.join in ("inner", "left")
    }  # their pairs hold every as-of pair, too

    def stream_of(view: View) -> MatchStream:
        left, right = spec.table(view.left), spec.table(view.right)
        if view.join == "natural":
            return MatchStream(left, right, view.on, latest=True)
        if view.join == "asof" and (view.left, view.right, view.on) not in unbounded:
            return MatchStream(left, right, view.on, asof=True, lookback_seconds=view.lookback_seconds)
        return MatchStream(left, right, view.on)

    return {view.name: stream_of(view) for view in spec.views}


def join(parsed: Mapping[str, DataFrame], spec: GenerationSpec) -> DataFrame:
    """The tagged union of all streams of a generation, from the parsed records of each table."""
    streams = {stream.name: stream for stream in match_streams(spec).values()}
    keyed = {
        (table.name, stream.on): parsed[table.name].repartition(F.col(stream.on))
        for stream in streams.values()
        for table in (stream.left, stream.right)
    }
    rows = {table: frame for (table, _), frame in reversed(keyed.items())}
    tagged = [(table.name, rows.get(table.name, parsed[table.name])) for table in spec.tables]
    for name, stream in streams.items():
        left = _joinable(keyed[stream.left.name, stream.on], stream.left, stream.on)
        right = _joinable(keyed[stream.right.name, stream.on], stream.right, stream.on)
        tagged.append((name, _latest(stream, left, right) if stream.latest else _pairs(stream, left, right)))
    structs = [frame.select(F.struct(*frame.columns).alias(name)) for name, frame in tagged]
    return reduce(lambda union, frame: union.unionByName(frame, allowMissingColumns=True), structs)


def _joinable(records: DataFrame, table: Table, on: str) -> DataFrame:
    """The rows of a table that can match: not dead, and with a key."""
    alive = records.filter(F.col("_dead").isNull() & F.col(on).isNotNull())
    return alive.select("_id", "ts", *(column.name for column in table.columns))


def _pairs(stream: MatchStream, left: DataFrame, right: DataFrame) -> DataFrame:
    if stream.lookback_seconds is not None:
        # Both sides must bound how late they may be, or Spark keeps their state for ever.
        delay = f"{stream.lookback_seconds} seconds"
        left, right = left.withWatermark("ts", delay), right.withWatermark("ts", delay)
    condition = F.col(f"l.{stream.on}") == F.col(f"r.{stream.on}")
    if stream.asof:
        condition &= F.col("l.ts") <= F.col("r.ts")
    if stream.lookback_seconds is not None:
        condition &= F.col("l.ts") >= F.col("r.ts") - F.expr(f"INTERVAL {stream.lookback_seconds} SECONDS")
    return left.alias("l").join(right.alias("r"), condition, "inner").select(*_joined(stream))


def _latest(stream: MatchStream, left: DataFrame, right: DataFrame) -> DataFrame:
    # The id comes second, so that the greatest struct is the latest record, and a tie never reaches further.
    order = ["ts", "_id"]
    left_fields = ["_id", "ts", *(column.name for column in stream.left.columns)]
    right_fields = [*order, *(column.name for column in stream.right.columns)]
    key = F.col(stream.on).alias("_key")
    both = left.select(key, F.struct(*left_fields).alias("l")).unionByName(
        right.select(key, F.struct(*right_fields).alias("r")), allowMissingColumns=True
    )
    latest = both.groupBy("_key").agg(F.collect_list("l").alias("lefts"), F.max("r").alias("r"))
    matched = latest.filter(F.col("r").isNotNull()).select(F.explode("lefts").alias("l"), "r")
    return matched.select(*_joined(stream))


def _joined(stream: MatchStream) -> list[Column]:
    """The view's columns from the sides `l` and `r`."""
    return [
        F.col(f"{column.side[0]}.{column.source}").alias(column.name)
        for column in joined_columns(stream.left, stream.right, stream.on)
    ]
