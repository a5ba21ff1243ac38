"""The checksum of rows: what its definition says, however Arrow holds the rows."""

from __future__ import annotations

import struct
import zlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from livetables.model.checksum import content_checksum
from tests.support.tables import ROWS, SCHEMA, Row, numbered

START = datetime(1970, 1, 1, tzinfo=UTC)
TABLES = st.lists(st.builds(lambda number, row: {"_id": number, **row}, st.integers(0, 9), ROWS), max_size=8)


def defined_checksum(rows: pa.Table) -> str:
    """The checksum by its definition in docs/PROTOCOL.md, value by value."""
    data = b""
    for column in rows.columns:
        values = column.to_pylist()
        data += bytes(value is not None for value in values)
        if column.type == pa.string():
            texts = [(value or "").encode() for value in values]
            data += b"".join(struct.pack("<i", len(text)) for text in texts) + b"".join(texts)
        else:
            data += b"".join(_packed(column.type, value) for value in values)
    return f"{zlib.crc32(data):08x}"


def _packed(kind: pa.DataType, value: Any) -> bytes:
    if kind == pa.bool_():
        return struct.pack("<?", bool(value))
    if kind == pa.float64():
        return struct.pack("<d", 0.0 if value is None else value)
    if kind == pa.int64():
        return struct.pack("<q", value or 0)
    return struct.pack("<q", 0 if value is None else (value - START) // timedelta(microseconds=1))


def table(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(rows, SCHEMA)


@given(rows=TABLES, data=st.data())
@settings(deadline=None)
def test_it_is_what_the_definition_says_in_whatever_chunks(rows: list[Row], data: st.DataObject) -> None:
    whole = table(rows)
    expected = defined_checksum(whole)
    assert content_checksum(whole) == expected
    ends = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=3)))
    bounds = zip([0, *ends], [*ends, len(rows)], strict=True)
    pieces = [whole.slice(start, end - start) for start, end in bounds]  # views of the same buffers
    assert content_checksum(pa.concat_tables(pieces)) == expected


def test_what_is_in_the_place_of_a_missing_value_does_not_count() -> None:
    valid = pa.py_buffer(b"\x05")  # the second of three is missing
    texts = pa.Array.from_buffers(
        pa.string(), 3, [valid, pa.py_buffer(struct.pack("<4i", 0, 1, 3, 4)), pa.py_buffer(b"axxb")]
    )
    numbers = pa.Array.from_buffers(pa.int64(), 3, [valid, pa.py_buffer(struct.pack("<3q", 1, 99, 3))])
    found = pa.table({"text": texts, "number": numbers})
    assert found.to_pydict() == {"text": ["a", None, "b"], "number": [1, None, 3]}
    assert content_checksum(found) == content_checksum(pa.table(found.to_pydict())) == defined_checksum(found)


@pytest.mark.parametrize(
    "changed",
    [
        {"name": None},
        {"name": ""},
        {"name": "user 1é"},
        {"age": None},
        {"balance": -0.0},
        {"active": None},
        {"ts": None},
    ],
    ids=str,
)
def test_it_distinguishes_what_differs_in_one_value(changed: dict[str, Any]) -> None:
    rows = [{**row, "age": 0, "balance": 0.0, "active": False, "ts": START} for row in numbered(0, 3)]
    other = [rows[0], {**rows[1], **changed}, rows[2]]
    assert content_checksum(table(other)) != content_checksum(table(rows))
    assert content_checksum(table(rows[::-1])) != content_checksum(table(rows))


def test_texts_that_are_the_same_one_after_another_are_distinguished() -> None:
    assert content_checksum(pa.table({"a": ["ab", "c"]})) != content_checksum(pa.table({"a": ["a", "bc"]}))
