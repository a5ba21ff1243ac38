"""Values of every JSON type in columns of every type, as docs/CONFIGURATION.md has it in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from livetables.formats.json import fault
from livetables.local.broker import Broker
from livetables.model.columns import COLUMN_TYPES
from livetables.model.spec import Column, GenerationSpec, Table, record_position
from livetables.pipeline.flow.parse import parser
from tests.support.kafka import Record, create_topic, produce, unique_topic
from tests.support.oracle import Written, converted
from tests.support.pipeline import Engine
from tests.support.server import ServerProcess

TYPES: dict[str, type] = {"string": str, "int64": int, "double": float, "bool": bool}
DEAD = object()

# A value as a record has it, and what it is as string, int64, double and bool: first converted, then in a strict table.
MATRIX: list[tuple[str, tuple[Any, Any, Any, Any], tuple[Any, Any, Any, Any]]] = [
    ("null", (None, None, None, None), (None, None, None, None)),
    ("true", ("true", DEAD, DEAD, True), (DEAD, DEAD, DEAD, True)),
    ("false", ("false", DEAD, DEAD, False), (DEAD, DEAD, DEAD, False)),
    ("7", ("7", 7, 7.0, DEAD), (DEAD, 7, 7.0, DEAD)),
    ("0", ("0", 0, 0.0, DEAD), (DEAD, 0, 0.0, DEAD)),
    ("1", ("1", 1, 1.0, DEAD), (DEAD, 1, 1.0, DEAD)),
    ("-0", ("-0", 0, -0.0, DEAD), (DEAD, 0, -0.0, DEAD)),
    ("42.0", ("42.0", 42, 42.0, DEAD), (DEAD, DEAD, 42.0, DEAD)),
    ("4.2e1", ("4.2e1", 42, 42.0, DEAD), (DEAD, DEAD, 42.0, DEAD)),
    ("1.50", ("1.50", DEAD, 1.5, DEAD), (DEAD, DEAD, 1.5, DEAD)),
    ("1E400", ("1E400", DEAD, DEAD, DEAD), (DEAD, DEAD, DEAD, DEAD)),
    ("9223372036854775807", ("9223372036854775807", 2**63 - 1, 2.0**63, DEAD), (DEAD, 2**63 - 1, 2.0**63, DEAD)),
    ("9223372036854775808", ("9223372036854775808", DEAD, 2.0**63, DEAD), (DEAD, DEAD, 2.0**63, DEAD)),
    ("-9223372036854775808.0", ("-9223372036854775808.0", -(2**63), -(2.0**63), DEAD), (DEAD, DEAD, -(2.0**63), DEAD)),
    ("1.0000000000000000001", ("1.0000000000000000001", DEAD, 1.0, DEAD), (DEAD, DEAD, 1.0, DEAD)),
    ('"42"', ("42", 42, 42.0, DEAD), ("42", DEAD, DEAD, DEAD)),
    ('"42.0"', ("42.0", 42, 42.0, DEAD), ("42.0", DEAD, DEAD, DEAD)),
    ('"1.5"', ("1.5", DEAD, 1.5, DEAD), ("1.5", DEAD, DEAD, DEAD)),
    ('"1e309"', ("1e309", DEAD, DEAD, DEAD), ("1e309", DEAD, DEAD, DEAD)),
    ('"9223372036854775808"', ("9223372036854775808", DEAD, 2.0**63, DEAD), ("9223372036854775808", DEAD, DEAD, DEAD)),
    *((json.dumps(text), (text, DEAD, DEAD, DEAD), (text, DEAD, DEAD, DEAD)) for text in ("", "x", "NaN", "null")),
    *((json.dumps(text), (text, DEAD, DEAD, DEAD), (text, DEAD, DEAD, DEAD)) for text in (" 42", "+42", "042", "4_2")),
    *((json.dumps(text), (text, DEAD, DEAD, DEAD), (text, DEAD, DEAD, DEAD)) for text in ("٤٢", "0x2A", "True", "1.")),
    ('"true"', ("true", DEAD, DEAD, True), ("true", DEAD, DEAD, DEAD)),
    ('"false"', ("false", DEAD, DEAD, False), ("false", DEAD, DEAD, DEAD)),
    ("{}", (DEAD, DEAD, DEAD, DEAD), (DEAD, DEAD, DEAD, DEAD)),
    ('{"a": 1}', (DEAD, DEAD, DEAD, DEAD), (DEAD, DEAD, DEAD, DEAD)),
    ("[42]", (DEAD, DEAD, DEAD, DEAD), (DEAD, DEAD, DEAD, DEAD)),
]

digits = st.text("0123456789", min_size=1, max_size=25)
numbers = st.from_regex(r"-?(0|[1-9][0-9]{0,21})(\.[0-9]{1,22})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)
far_numbers = st.from_regex(r"-?(0|[1-9])(\.0{1,3})?[eE][+-]?[0-9]{1,30}", fullmatch=True)
near_limits = st.builds(
    lambda number, zeros, power: f"{number * 10**power}{'.' * bool(zeros)}{'0' * zeros}e-{power}",
    st.sampled_from([2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**53 + 1]),
    st.integers(0, 3),
    st.integers(0, 30),
)
texts = st.text(max_size=4) | numbers | far_numbers | near_limits | digits | st.sampled_from(["true", "false", "TRUE"])
scalars = st.sampled_from(["null", "true", "false", "{}", "[]"]) | numbers | far_numbers | near_limits
written = scalars | texts.map(json.dumps)


def one_column(column_type: Any, strict: bool) -> Table:
    return Table("t", "topic", (Column("c", column_type),), "t_ui", strict=strict)


def by_the_words(value: str, column_type: str, strict: bool) -> Any:
    """What the rules make of a value: DEAD, or what the column has."""
    read = json.loads(value, parse_int=Written, parse_float=Written)
    found = converted(read, TYPES[column_type], strict=strict)
    return DEAD if found is None and read is not None else found


def same(one: Any, other: Any) -> bool:
    """Whether they are equal and of one type. That 0 may have a sign does not count."""
    return type(one) is type(other) and bool(one == other)


@pytest.mark.parametrize(("value", "lenient", "strict"), MATRIX, ids=[value for value, _, _ in MATRIX])
def test_a_value_has_a_reason_where_its_column_does_not_take_it(
    value: str, lenient: tuple[Any, ...], strict: tuple[Any, ...]
) -> None:
    raw = f'{{"c":{value}}}'.encode()
    for is_strict, row in ((False, lenient), (True, strict)):
        for column_type, expected in zip(COLUMN_TYPES, row, strict=True):
            found = fault(raw, one_column(column_type, is_strict))
            assert (found is not None) == (expected is DEAD), (column_type, is_strict, found)
            assert found is None or found.startswith("c: "), found
            assert same(by_the_words(value, column_type, is_strict), expected), (column_type, is_strict)


@settings(deadline=None, max_examples=500)
@given(written)
def test_any_value_has_a_reason_where_the_rules_do_not_take_it(value: str) -> None:
    for column_type in COLUMN_TYPES:
        for strict in (False, True):
            found = fault(f'{{"c":{value}}}'.encode(), one_column(column_type, strict))
            assert (found is not None) == (by_the_words(value, column_type, strict) is DEAD), (column_type, strict)


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@settings(deadline=None, max_examples=500)
@given(written)
def test_any_value_is_converted_as_the_rules_say(value: str) -> None:
    spark = SparkSession.getActiveSession()
    assert spark
    for column_type in COLUMN_TYPES:
        for strict in (False, True):
            row = parser(spark, one_column(column_type, strict))(f'{{"c":{value}}}'.encode())
            found = row.fields["c"] if row else DEAD
            assert same(found, by_the_words(value, column_type, strict)), (column_type, strict, found)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("value", "is_row"),
    [
        (b'{"c":1,"x":' + b"9" * 5000 + b"}", True),
        (b'{"c":' + b"0." + b"0" * 5000 + b"1}", False),
        (b'{"c":1' + b"0" * 5000 + b"e-5000}", True),
        (b'{"c":1,"' + b"x" * 60_000 + b'":1}', True),
        (b'{"c":1,"x":' + b"[" * 499 + b"]" * 499 + b"}", True),
        (b'{"c":1,"x":' + b"[" * 500 + b"]" * 500 + b"}", False),
        (b'{"c":1,"x":' + b'{"a":' * 20_000 + b"1" + b"}" * 20_000 + b"}", False),
    ],
    ids=["a long number", "a long fraction", "a long way to 1", "a long name", "deep", "too deep", "far too deep"],
)
def test_parser_and_reasons_agree_on_what_is_large(spark: SparkSession, value: bytes, is_row: bool) -> None:
    table = one_column("int64", False)
    assert (parser(spark, table)(value) is not None) == is_row
    assert (fault(value, table) is None) == is_row


@pytest.mark.spark
@pytest.mark.kafka
def test_values_of_every_type_from_kafka_in_both_settings(
    spark: SparkSession, broker: Broker, server: ServerProcess, tmp_path: Path
) -> None:
    """One record for each value and column, read by a table that converts and by one that is strict."""
    topic = unique_topic("values")
    create_topic(broker.bootstrap_servers, topic)
    cells = [(place, column) for place in range(len(MATRIX)) for column in COLUMN_TYPES]
    records = [
        Record(topic, 0, f'{{"cell":{number},"in_{column}":{MATRIX[place][0]}}}'.encode(), 1)
        for number, (place, column) in enumerate(cells)
    ]
    offsets = produce(broker.bootstrap_servers, records)
    columns = (Column("cell", "int64"), *(Column(f"in_{each}", each) for each in COLUMN_TYPES))
    tables = {name: Table(name, topic, columns, name, strict=name == "strict") for name in ("lenient", "strict")}
    spec = GenerationSpec(tuple(tables.values()), ())
    with Engine(spark, server, spec, broker.bootstrap_servers, tmp_path) as engine:
        engine.start()
        engine.settle(2 * len(records))
        rows = {name: {row["cell"]: row for row in engine.rows(name)} for name in tables}
        letters = {(letter["source"], letter["offset"]): letter for letter in engine.rows("dead_letters")}
    for setting, name in enumerate(("lenient", "strict"), 1):
        for number, (place, column) in enumerate(cells):
            expected = MATRIX[place][setting][COLUMN_TYPES.index(column)]
            row, letter = rows[name].get(number), letters.get((name, offsets[number]))
            where = (name, MATRIX[place][0], column)
            assert (row is None, letter is None) == (expected is DEAD, expected is not DEAD), where
            if row:
                assert same(row[f"in_{column}"], expected), where
                assert record_position(row["_id"]) == (0, offsets[number])
            if letter:
                assert letter["reason"].startswith(f"in_{column}: "), (where, letter)
