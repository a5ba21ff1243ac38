"""Rows as clients get them: values in JSON, CSV and Arrow, and the choice between those."""

from __future__ import annotations

import csv
import io
import json
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livetables.model.errors import RequestError
from livetables.server.viewports.encoding import (
    ARROW,
    CSV,
    JSON,
    MEDIA_TYPES,
    after,
    arrow_chunks,
    chosen_media_type,
    csv_chunks,
    encoded_rows,
)

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def encoded(values: list[Any], data_type: pa.DataType) -> list[Any]:
    return [row[0] for row in encoded_rows(pa.table({"a": pa.array(values, data_type)}))]


def as_csv(table: pa.Table) -> str:
    return b"".join(csv_chunks(table.schema, table.to_batches())).decode()


def test_an_integer_that_javascript_cannot_hold_is_text() -> None:
    values = [2**53 - 1, 2**53, -(2**53) + 1, -(2**53), 2**63 - 1, -(2**63), None, 0]
    expected = [2**53 - 1, str(2**53), -(2**53) + 1, str(-(2**53)), str(2**63 - 1), str(-(2**63)), None, 0]
    assert encoded(values, pa.int64()) == expected


def test_small_integers_stay_integers_beside_nulls() -> None:
    values = encoded([1, None, -3], pa.int64())
    assert values == [1, None, -3]
    assert type(values[0]) is int


def test_doubles_that_json_has_no_number_for_are_text() -> None:
    values = [math.nan, math.inf, -math.inf, 1.5, None, -0.0]
    assert encoded(values, pa.float64()) == ["NaN", "Infinity", "-Infinity", 1.5, None, -0.0]


def test_finite_doubles_stay_doubles_beside_nulls() -> None:
    values = encoded([1.0, None], pa.float64())
    assert values == [1.0, None]
    assert type(values[0]) is float


@pytest.mark.parametrize(
    ("time", "text"),
    [
        (NOON, "2026-01-31T12:00:00.000Z"),
        (NOON + timedelta(milliseconds=123), "2026-01-31T12:00:00.123Z"),
        (NOON + timedelta(microseconds=123_456), "2026-01-31T12:00:00.123456Z"),
        (datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), "1969-12-31T23:59:59.999999Z"),
        (datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC), "1969-12-31T23:59:59.999Z"),
        (datetime(1, 1, 1, tzinfo=UTC), "0001-01-01T00:00:00.000Z"),
    ],
)
def test_a_time_is_as_exact_as_it_needs_to_be(time: datetime, text: str) -> None:
    assert encoded([time, None], pa.timestamp("us", "UTC")) == [text, None]


def test_each_time_of_a_column_has_its_own_exactness() -> None:
    times = [NOON, NOON + timedelta(microseconds=1), None]
    assert encoded(times, pa.timestamp("us", "UTC")) == [
        "2026-01-31T12:00:00.000Z",
        "2026-01-31T12:00:00.000001Z",
        None,
    ]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_a_time_of_any_unit_and_zone_is_encoded_in_utc(unit: str, zone: str | None) -> None:
    assert encoded([NOON.replace(tzinfo=None)], pa.timestamp(unit, zone)) == ["2026-01-31T12:00:00.000Z"]


def test_a_time_beyond_the_calendar_does_no_harm() -> None:
    (text,) = encoded([2**63 - 1], pa.timestamp("us", "UTC"))
    assert isinstance(text, str)


def test_booleans_text_and_nulls_are_themselves() -> None:
    assert encoded([True, None, False], pa.bool_()) == [True, None, False]
    assert encoded(["", None, "žluťoučký 🐎\x00\n"], pa.string()) == ["", None, "žluťoučký 🐎\x00\n"]


@pytest.mark.parametrize("data_type", [pa.string(), pa.int64(), pa.float64(), pa.bool_(), pa.timestamp("us", "UTC")])
@pytest.mark.parametrize("values", [[], [None, None]], ids=["empty", "nulls"])
def test_columns_without_a_value(data_type: pa.DataType, values: list[None]) -> None:
    assert encoded(list(values), data_type) == values


def test_rows_are_lists_in_the_order_of_the_columns_across_chunks() -> None:
    piece = pa.table({"b": [1, 2], "a": ["x", None]})
    assert encoded_rows(pa.concat_tables([piece, piece])) == [[1, "x"], [2, None], [1, "x"], [2, None]]


def test_rows_of_no_columns_are_counted() -> None:
    assert encoded_rows(pa.table({"a": [1, 2]}).select([])) == [[], []]


@pytest.mark.parametrize(
    ("value", "data_type", "expected"),
    [
        (2**64 - 1, pa.uint64(), str(2**64 - 1)),
        (5, pa.uint8(), 5),
        (1.5, pa.float32(), 1.5),
        (Decimal("12"), pa.decimal128(38, 0), 12),
        (Decimal(2**100), pa.decimal128(38, 0), str(2**100)),
        (Decimal("0.1"), pa.decimal128(2, 1), 0.1),
        (Decimal("1234567890123456.75"), pa.decimal128(20, 2), "1234567890123456.75"),
        (date(2026, 1, 31), pa.date32(), "2026-01-31"),
        (b"\x00\xff", pa.binary(), "00ff"),
        ([1, 2**60], pa.list_(pa.int64()), [1, str(2**60)]),
        ({"a": math.nan, "t": NOON}, pa.struct({"a": pa.float64(), "t": pa.timestamp("us", "UTC")}),
         {"a": "NaN", "t": "2026-01-31T12:00:00.000Z"}),
        ([("k", 1)], pa.map_(pa.string(), pa.int64()), [["k", 1]]),
        (None, pa.null(), None),
    ],
)  # fmt: skip
def test_what_else_sql_can_answer(value: object, data_type: pa.DataType, expected: object) -> None:
    assert encoded([value], data_type) == [expected]


def test_what_json_cannot_carry_is_refused_with_a_cure() -> None:
    with pytest.raises(RequestError, match="cast it to VARCHAR") as refused:
        encoded([[2**63 - 1]], pa.list_(pa.timestamp("us")))
    assert refused.value.code == "bad_sql"


@given(
    st.lists(
        st.tuples(
            st.none() | st.integers(-(2**63), 2**63 - 1),
            st.none() | st.floats(),
            st.none() | st.text(),
            st.none() | st.datetimes(),
            st.none() | st.booleans(),
        )
    )
)
def test_everything_encoded_is_json_and_loses_nothing(rows: list[tuple[Any, ...]]) -> None:
    types = [pa.int64(), pa.float64(), pa.string(), pa.timestamp("us", "UTC"), pa.bool_()]
    columns = [pa.array([row[i] for row in rows], data_type) for i, data_type in enumerate(types)]
    answer = json.loads(json.dumps(encoded_rows(pa.table(columns, names=list("abcde"))), allow_nan=False))

    def decoded(row: list[Any]) -> tuple[Any, ...]:
        number, double, text, time, truth = row
        return (
            None if number is None else int(number),
            None if double is None else repr(float(double)),
            text,
            None if time is None else datetime.fromisoformat(time).replace(tzinfo=None),
            truth,
        )

    expected = [(a, None if b is None else repr(b), c, d, e) for a, b, c, d, e in rows]
    assert [decoded(row) for row in answer] == expected


def test_csv_quotes_what_needs_it_and_ends_lines_as_rfc_4180_says() -> None:
    texts = ['say "hi"', "a,b", "two\nlines", "", None, "žluť"]
    table = pa.table({"text, quoted": texts, "n": pa.array([1, 2, None, 4, 5, 6], pa.int64())})
    answer = as_csv(table)
    assert answer.startswith('"text, quoted","n"\r\n"say ""hi""",1\r\n"a,b",2\r\n"two\nlines",\r\n"",4\r\n,5\r\n')
    assert [row[0] for row in csv.reader(io.StringIO(answer, newline=""))][1:] == [text or "" for text in texts]


FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "=cmd|' /C calc'!A0", "-"]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_csv_has_no_text_that_a_spreadsheet_takes_for_a_formula(kind: pa.DataType) -> None:
    texts = [*FORMULAS, "a=1", " =1", "'=1", "a\n=1", "", None]
    answer = as_csv(pa.table({"text": pa.array(texts, kind)}))
    read = [row[0] if row else None for row in csv.reader(io.StringIO(answer, newline=""))][1:]
    assert read == [*(f"'{text}" for text in FORMULAS), "a=1", " =1", "'=1", "a\n=1", "", None]


def test_csv_leaves_numbers_as_they_are() -> None:
    assert as_csv(pa.table({"n": [-1], "x": [-0.5]})) == '"n","x"\r\n-1,-0.5\r\n'


def test_csv_is_exact_and_has_times_in_iso_8601() -> None:
    table = pa.table(
        {"n": [2**63 - 1], "t": pa.array([NOON + timedelta(microseconds=7)], pa.timestamp("us", "UTC")), "x": [0.1]}
    )
    assert as_csv(table) == '"n","t","x"\r\n9223372036854775807,"2026-01-31T12:00:00.000007Z",0.1\r\n'


def test_csv_of_no_rows_is_its_header() -> None:
    assert as_csv(pa.schema({"a": pa.string(), "t": pa.timestamp("us", "UTC")}).empty_table()) == '"a","t"\r\n'


@pytest.mark.parametrize("batches", [0, 1, 3])
def test_arrow_chunks_are_one_stream(batches: int) -> None:
    schema = pa.schema({"a": pa.int64(), "b": pa.string()})
    batch = pa.record_batch({"a": [1, 2], "b": ["x", None]}, schema)
    stream = b"".join(arrow_chunks(schema, [batch] * batches))
    assert pa.ipc.open_stream(stream).read_all() == pa.Table.from_batches([batch] * batches, schema)


@pytest.mark.parametrize("offset", [0, 1, 3, 4, 6, 7])
def test_rows_from_a_position_on(offset: int) -> None:
    batches = [pa.record_batch({"a": [0, 1, 2]}), pa.record_batch({"a": [3, 4, 5]})]
    assert [value for batch in after(offset, batches) for value in batch["a"].to_pylist()] == list(range(offset, 6))


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        (None, JSON),
        ("", JSON),
        ("*/*", JSON),
        ("text/csv", CSV),
        ("TEXT/CSV; charset=utf-8", CSV),
        ("text/*", CSV),
        ("application/*", JSON),
        ("application/vnd.apache.arrow.stream", ARROW),
        ("text/html, text/csv;q=0.5, */*;q=0.1", CSV),
        ("application/json;q=0.2, text/csv;q=0.9", CSV),
        ("application/json;q=0, */*", CSV),
        ("text/csv;q=nonsense", None),
        ("text/html", None),
        ("application/json;q=0", None),
    ],
)
def test_the_accept_header_chooses(accept: str | None, chosen: str | None) -> None:
    assert chosen_media_type(accept, MEDIA_TYPES) == chosen
