"""From a raw record to a typed row, or to a dead letter: Spark decides which, once for each record.

`from_json` alone is not strict enough: it takes text after the object, writes a number into a string column, and turns
1e999 into infinity. Closing those gaps for every record would mean parsing it again, so a cheap look at the text first
tells the few records that could have such a fault. Every record that has one is among them; see each function. The
costly look is always in a `when`: in an `&`, Spark may evaluate both sides for every record.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from livetables.spec import ColumnType, Table

SPARK_TYPES: dict[ColumnType, str] = {"string": "string", "int64": "bigint", "double": "double", "bool": "boolean"}
JSON_WHITESPACE = " \t\n\r"
JSON_OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": "_corrupt",
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
}


def parse(records: DataFrame, table: Table) -> DataFrame:
    """One output row per record:

    - `_id` and `ts`, as the source has them
    - `fields`: a struct of the columns
    - `_dead`: true for a dead letter, and `_raw` its bytes; both null for a row
    - `_unknown`: the names of fields that are not columns; null when there are none
    """
    columns = [f"`{column.name}` {SPARK_TYPES[column.type]}" for column in table.columns]
    schema = ", ".join([*columns, "_corrupt string"])
    text = records.select("_id", "ts", F.col("value").alias("_bytes"), F.col("value").cast("string").alias("_text"))
    # explode is a barrier: a filter on the result of from_json would evaluate it a second time.
    fields = F.explode(F.array(F.from_json("_text", schema, JSON_OPTIONS))).alias("fields")
    parsed = text.select("_id", "ts", "_bytes", "_text", fields)
    judged = parsed.withColumn("_dead", F.when(_is_dead(table), F.lit(True)))
    return judged.select(
        "_id",
        "ts",
        "fields",
        "_dead",
        F.when(F.col("_dead"), F.col("_bytes")).alias("_raw"),
        F.when(F.col("_dead").isNull(), _unknown_fields(table)).alias("_unknown"),
    )


def _is_dead(table: Table) -> Column:
    faults = [
        F.col("_text").isNull(),
        # Without any field and without a complaint, there was no JSON at all: an empty value.
        F.col("fields._corrupt").isNotNull() | (F.btrim("_text", F.lit(JSON_WHITESPACE)) == ""),
        ~F.call_function("is_valid_utf8", F.col("_text")),
        _has_text_after_the_object(),
        *(_is_not_a_string(column.name) for column in table.columns if column.type == "string"),
        *(_is_infinite(column.name) for column in table.columns if column.type == "double"),
    ]
    return reduce(lambda dead, fault: dead | fault, (F.coalesce(fault, F.lit(False)) for fault in faults))


def _has_text_after_the_object() -> Column:
    """True for `{"a":1} x`, of which from_json reads only the object.

    When the first closing brace is the last character, nothing can follow. Otherwise the record is put into an array
    and into an object: text after it that keeps one of the two well-formed breaks the other.
    """
    text = F.col("_text")
    ends_at_first_brace = F.octet_length(F.substring_index(text, "}", 1)) + 1 == F.octet_length(F.rtrim(text))
    in_array = F.json_array_length(F.concat(F.lit("["), text, F.lit("]")))
    in_object = F.size(F.json_object_keys(F.concat(F.lit('{"v":'), text, F.lit("}"))))
    alone = F.coalesce((in_array == 1) & (in_object == 1), F.lit(False))
    return F.when(~ends_at_first_brace, ~alone)


def _is_not_a_string(name: str) -> Column:
    """True for `{"name":5}`, which from_json reads as "5": only text that starts like another JSON value can be one."""
    value = F.col(f"fields.{name}")
    starts_like_a_number = (value >= "-") & (value < ":")
    starts_like_a_container = value.startswith("{") | value.startswith("[")
    suspect = starts_like_a_number | starts_like_a_container | value.isin("true", "false")
    found = F.schema_of_variant(F.variant_get(F.try_parse_json("_text"), f"$.{name}", "variant"))
    return F.when(suspect, found != "STRING")


def _is_infinite(name: str) -> Column:
    """True for `{"balance":1e999}`: infinity cannot be written in JSON, so it can only be a number out of range."""
    return F.abs(F.col(f"fields.{name}")) == float("inf")


def _unknown_fields(table: Table) -> Column:
    """The names of fields that are no columns, found without listing the fields of every record.

    Every field and every string costs two quotes. When the columns found account for all quotes, there is no other.
    """
    quotes = F.octet_length("_text") - F.octet_length(F.replace("_text", F.lit('"'), F.lit("")))
    accounted = reduce(
        lambda total, quotes_of_column: total + quotes_of_column,
        (
            F.when(F.col(f"fields.{column.name}").isNull(), 0).otherwise(4 if column.type == "string" else 2)
            for column in table.columns
        ),
    )
    known = F.array(*(F.lit(column.name) for column in table.columns))
    unknown = F.array_except(F.json_object_keys("_text"), known)
    return F.when(quotes != accounted, F.when(F.size(unknown) > 0, unknown))
