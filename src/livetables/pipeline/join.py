"""From typed rows to joined ones, on Spark's own operators: one streaming DataFrame for a whole generation.

The DataFrame is a tagged union. It has one struct column per stream, and each row fills exactly one of them:

- every table is a stream of its parsed records, as `parse` makes them;
- every `MatchStream` is a stream of matched rows `l` and `r`. Views that join the same tables on the same column share
  one.

There are two kinds of match streams, and neither emits a row without a match: an outer join would hold it back until a
watermark passes. The row without a match is the table's own row, which the changelog shows until a match arrives.

- pairs (`inner`, `left`, `asof`): an inner stream-stream join. Each new record is paired with all of the other side.
- latest (`natural`): an aggregation that keeps, per key, the left rows and the latest right row. A new record costs the
  same however many right rows its key has had.

Each table is repartitioned by the join's key before all of its uses, so that Spark reuses the exchange: the topic is
read and parsed once (once for each key, where views join it on several).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from livetables.spec import GenerationSpec, Table, View


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
        (table.name, stream.on): _by_key(parsed[table.name], stream.on)
        for stream in streams.values()
        for table in (stream.left, stream.right)
    }
    by_first_key = {table: records for (table, _), records in reversed(keyed.items())}
    without_key = F.lit(None).cast("string").alias("_key")
    tagged = {
        table.name: by_first_key.get(table.name, parsed[table.name].select("*", without_key)).select(
            "_key", F.struct("_row", "_dead", "_raw", "_unknown").alias(table.name)
        )
        for table in spec.tables
    }
    for name, stream in streams.items():
        left, right = (keyed[table.name, stream.on] for table in (stream.left, stream.right))
        matches = _latest(left, right) if stream.latest else _pairs(stream, left, right)
        tagged[name] = matches.select("_key", F.struct("l", "r").alias(name))
    return _tagged_union(tagged)


def _by_key(records: DataFrame, on: str) -> DataFrame:
    """Records partitioned by what they are joined on; null where nothing may match."""
    key = F.when(F.col("_dead").isNull(), F.col(f"_row.fields.{on}")).alias("_key")
    return records.select(key, "_row", "_dead", "_raw", "_unknown").repartition(F.col("_key"))


def _tagged_union(tagged: Mapping[str, DataFrame]) -> DataFrame:
    """All rows of all streams, each in the struct of its stream, the others null.

    The key stays beside the structs: by it Spark sees that the streams are partitioned alike, and gives each partition
    one task for all of them instead of one for each.
    """
    structs = {name: frame.schema[name].dataType for name, frame in tagged.items()}
    # Left to itself, Spark would make numbers of texts where keys have several types, and fail on text that is none.
    same_type = len({frame.schema["_key"].dataType for frame in tagged.values()}) == 1
    key = F.col("_key") if same_type else F.col("_key").cast("string").alias("_key")

    def aligned(name: str, frame: DataFrame) -> DataFrame:
        others = {other: F.lit(None).cast(struct).alias(other) for other, struct in structs.items()}
        return frame.select(key, *(F.col(f"`{name}`") if other == name else null for other, null in others.items()))

    return reduce(DataFrame.union, (aligned(name, frame) for name, frame in tagged.items()))


def _pairs(stream: MatchStream, left: DataFrame, right: DataFrame) -> DataFrame:
    left = left.filter(F.col("_key").isNotNull()).select("_key", F.col("_row").alias("l"))
    right = right.filter(F.col("_key").isNotNull()).select(F.col("_key").alias("_right_key"), F.col("_row").alias("r"))
    condition = F.col("_key") == F.col("_right_key")
    if stream.lookback_seconds is not None:
        # Both sides must bound how late they may be, or Spark keeps their state for ever.
        delay = f"{stream.lookback_seconds} seconds"
        left = left.withColumn("_left_ts", F.col("l.ts")).withWatermark("_left_ts", delay)
        right = right.withColumn("_right_ts", F.col("r.ts")).withWatermark("_right_ts", delay)
        condition &= F.col("_left_ts") >= F.col("_right_ts") - F.expr(f"INTERVAL {stream.lookback_seconds} SECONDS")
        condition &= F.col("_left_ts") <= F.col("_right_ts")
    elif stream.asof:
        condition &= F.col("l.ts") <= F.col("r.ts")
    return left.join(right, condition, "inner").select("_key", "l", "r")


def _latest(left: DataFrame, right: DataFrame) -> DataFrame:
    no_row_of = {name: F.lit(None).cast(frame.schema["_row"].dataType) for name, frame in (("l", left), ("r", right))}
    both = left.select("_key", F.col("_row").alias("l"), no_row_of["r"].alias("r")).union(
        right.select("_key", no_row_of["l"].alias("l"), F.col("_row").alias("r"))
    )
    per_key = both.filter(F.col("_key").isNotNull()).groupBy("_key")
    # A row begins with its ts and id, so the greatest is the latest, and no tie reaches further.
    latest = per_key.agg(F.collect_list("l").alias("lefts"), F.max("r").alias("r"))
    return latest.filter(F.col("r").isNotNull()).select("_key", F.explode("lefts").alias("l"), "r")
