"""The column types: one description of each, which Java's names and DuckDB's values agree with."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import duckdb
import pyarrow as pa
import pytest

import livetables
from livetables.model.columns import (
    COLUMN_KINDS,
    COLUMN_TYPES,
    ColumnType,
    Scalar,
    column_type,
    declared_type,
    inferred_types,
    kind_of,
)

JAVA = Path(livetables.__file__).parent / "jvm" / "java"


def test_every_type_that_a_table_may_declare_is_described() -> None:
    assert get_args(ColumnType) == COLUMN_TYPES
    assert {*COLUMN_KINDS} == {*COLUMN_TYPES, "timestamp"}


def test_java_parses_the_same_types() -> None:
    (names,) = re.findall(r"enum Type \{\s*([A-Z0-9, ]+)", (JAVA / "MatchOperator.java").read_text())
    assert {name.strip().lower() for name in names.split(",")} == {*COLUMN_TYPES}


def test_java_sends_the_same_types_and_the_bytes_of_dead_letters() -> None:
    names = re.findall(r'case "(\w+)" -> (?:new )?ArrowType', (JAVA / "FrameWriter.java").read_text())
    assert {*names} == {*COLUMN_KINDS, "binary"}


@pytest.mark.parametrize("name", COLUMN_KINDS)
def test_duckdb_returns_a_type_as_its_arrow_type(name: str) -> None:
    kind = COLUMN_KINDS[name]
    with duckdb.connect(":memory:") as database:
        database.execute("SET TimeZone = 'UTC'")
        schema = database.sql(f"SELECT CAST(NULL AS {kind.sql}) AS value").to_arrow_table().schema
    assert schema.field("value").type == kind.arrow


@pytest.mark.parametrize("name", COLUMN_KINDS)
def test_a_type_is_known_by_its_arrow_type(name: str) -> None:
    assert column_type(COLUMN_KINDS[name].arrow) == name


@pytest.mark.parametrize("data_type", [pa.timestamp("ms"), pa.timestamp("ns", "Europe/Berlin")])
def test_a_time_of_any_unit_is_a_timestamp(data_type: pa.DataType) -> None:
    assert kind_of(data_type).name == "timestamp"


def test_a_type_that_tables_do_not_have_is_unknown() -> None:
    with pytest.raises(KeyError):
        kind_of(pa.date32())


@pytest.mark.parametrize(("name", "declared"), [("int64", "int64"), ("timestamp", None), ("INT64", None), (1, None)])
def test_only_the_types_of_records_can_be_declared(name: object, declared: ColumnType | None) -> None:
    assert declared_type(name) == declared


@pytest.mark.parametrize(
    ("name", "sent", "value"),
    [
        ("string", "a", "a"),
        ("int64", 7, 7),
        ("int64", "9223372036854775807", 2**63 - 1),
        ("double", 1, 1.0),
        ("bool", True, True),
        ("timestamp", "2026-01-31T12:00:00", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("timestamp", "2026-01-31T12:00:00+01:00", datetime(2026, 1, 31, 11, tzinfo=UTC)),
    ],
)
def test_the_value_of_a_filter_is_read_in_its_type(name: str, sent: Scalar, value: object) -> None:
    found = COLUMN_KINDS[name].filter_value(sent)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("string", 1),
        ("string", "\ud800"),
        ("int64", True),
        ("int64", 1.0),
        ("int64", "9223372036854775808"),
        ("double", "1"),
        ("double", True),
        ("double", 10**400),
        ("bool", 1),
        ("bool", "true"),
        ("timestamp", 0),
        ("timestamp", "yesterday"),
    ],
)
def test_a_value_of_another_type_does_not_match(name: str, sent: Scalar) -> None:
    with pytest.raises((ValueError, OverflowError)):
        COLUMN_KINDS[name].filter_value(sent)


@pytest.mark.parametrize(
    ("seen", "types"),
    [
        ({str}, ("string",)),
        ({int}, ("int64", "double")),
        ({float}, ("double",)),
        ({int, float}, ("double",)),
        ({bool}, ("bool",)),
        ({int, bool}, ("string",)),
        ({str, float}, ("string",)),
    ],
)
def test_types_are_inferred_from_the_values_seen(seen: set[type[Any]], types: tuple[ColumnType, ...]) -> None:
    assert inferred_types(seen) == types


def test_types_are_known_without_pyarrow() -> None:
    script = "import livetables.config.load, sys; assert 'pyarrow' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
