"""From parsed records to the operator: every record of every table, once for each column that views join it on.

The operator is Java (`jvm/java/MatchOperator.java`), because Spark runs it for every record. It gets one stream with
a struct of values for each table, of which a record fills its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from livetables.pipeline.parse import SPARK_TYPES
from livetables.pipeline.plan import plan_json, scopes, scopes_of
from livetables.spec import ColumnType, GenerationSpec, Table

# Records without a key meet nobody: they are only spread over the partitions.
SPREAD = 64

# As bytes: the operator does not look at text, and would decode and encode it otherwise.
VALUE_TYPES: dict[ColumnType, str] = {**SPARK_TYPES, "string": "binary"}


def events(parsed: Mapping[str, DataFrame], spec: GenerationSpec) -> Any:
    """The events of all records, as a Java Dataset of bytes."""
    records = reduce(
        DataFrame.unionAll, (_keyed(parsed[table.name], number, spec) for number, table in enumerate(spec.tables))
    )
    jvm = records.sparkSession._jvm
    assert jvm is not None
    return jvm.livetables.MatchOperator.events(records._jdf, plan_json(spec))


def _keyed(parsed: DataFrame, number: int, spec: GenerationSpec) -> DataFrame:
    """The records of a table in the operator's form, in the order of its columns."""
    table = spec.tables[number]
    numbers = {name: place for place, name in enumerate(scopes(spec))}
    own_scopes: list[str | None] = [*scopes_of(table, spec)] or [None]
    places = [
        F.struct(
            F.lit(numbers[scope] if scope else 0).alias("scope"),
            F.lit(place == 0).alias("is_own"),
            (_key(table, scope, numbers[scope]) if scope else F.lit(None).cast("string")).alias("key"),
        )
        for place, scope in enumerate(own_scopes)
    ]
    spread = F.concat(F.lit("-"), F.pmod(F.col("_id"), F.lit(SPREAD)).cast("string"))
    placed = parsed.select("*", (F.explode(F.array(*places)) if len(places) > 1 else places[0]).alias("_place"))
    if len(places) > 1:  # a dead letter is emitted once
        placed = placed.filter(F.col("_dead").isNull() | F.col("_place.is_own"))
    return placed.select(
        F.coalesce(F.col("_place.key"), spread).alias("key"),
        F.lit(number).alias("table"),
        F.col("_place.scope").alias("scope"),
        F.col("_place.is_own").alias("is_own"),
        F.col("_place.key").isNotNull().alias("has_key"),
        F.col("_id").alias("id"),
        F.col("ts").alias("time"),
        F.coalesce("_dead", F.lit(False)).alias("is_dead"),
        F.col("_raw").alias("raw"),
        F.col("_unknown").alias("unknown"),
        *(_values(other, is_own=other is table).alias(f"values_{each}") for each, other in enumerate(spec.tables)),
    )


def _key(table: Table, on: str, scope: int) -> Column:
    """What records meet by: the scope, and the value there. Null where nothing may match."""
    value = F.col(f"fields.{on}")
    if next(column.type for column in table.columns if column.name == on) == "double":
        value = value + F.lit(0.0)  # -0.0 is equal to 0.0, and has another text
    return F.when(F.col("_dead").isNull(), F.concat(F.lit(f"{scope}:"), value.cast("string")))


def _values(table: Table, *, is_own: bool) -> Column:
    if not is_own:
        types = ", ".join(f"`{column.name}`: {VALUE_TYPES[column.type]}" for column in table.columns)
        return F.lit(None).cast(f"struct<{types}>")
    return F.struct(
        *(F.col(f"fields.{column.name}").cast(VALUE_TYPES[column.type]).alias(column.name) for column in table.columns)
    )
