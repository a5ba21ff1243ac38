"""Batches and shapes are the same after the wire."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livetables.model.change import Batch, TableChanges, TableShape
from livetables.model.spec import Retain
from livetables.model.wire import (
    FramePart,
    FrameStream,
    decode_batch,
    decode_part,
    decode_shape,
    decode_shapes,
    encode_batch,
    encode_shape,
    encode_shapes,
)
from tests.support.frames import encode_part

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("name", pa.string()),
        ("value", pa.float64()),
        ("good", pa.bool_()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
ROW = {"id": 1, "name": "naïve \N{SNOWMAN}", "value": -0.5, "good": None, "at": datetime(2026, 1, 31, tzinfo=UTC)}

names = st.text(min_size=1, max_size=20)
rows = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.integers(-(2**63), 2**63 - 1),
            "name": st.none() | st.text(max_size=20),
            "value": st.none() | st.floats(allow_nan=False),
            "good": st.none() | st.booleans(),
            "at": st.none() | st.datetimes(timezones=st.just(UTC)),
        }
    ),
    max_size=5,
)


@given(names, st.integers(0, 2**63 - 1), st.lists(st.tuples(names, rows, rows), max_size=4))
def test_a_batch_is_the_same_after_the_wire(
    generation: str, batch_id: int, tables: list[tuple[str, list[object], list[object]]]
) -> None:
    changes = tuple(
        TableChanges(
            name,
            pa.Table.from_pylist(upserts, schema=SCHEMA),
            pa.Table.from_pylist(deletes, schema=SCHEMA).select(["id", "name"]),
        )
        for name, upserts, deletes in tables
    )
    batch = Batch(generation, batch_id, changes, {name: {name: batch_id} for name, _, _ in tables})
    assert decode_batch(encode_batch(batch)) == batch


@pytest.mark.parametrize("deletes", [pa.table({}), SCHEMA.empty_table(), SCHEMA.empty_table().select(["id"])])
def test_no_rows_are_no_rows_after_the_wire(deletes: pa.Table) -> None:
    batch = Batch("g", 0, (TableChanges("t", SCHEMA.empty_table(), deletes),))
    (changes,) = decode_batch(encode_batch(batch)).changes
    assert (changes.upserts.schema, changes.upserts.num_rows) == (SCHEMA, 0)
    assert (changes.deletes.schema, changes.deletes.num_rows) == (deletes.schema, 0)


def test_a_batch_without_tables_passes() -> None:
    assert decode_batch(encode_batch(Batch("g", 7, ()))) == Batch("g", 7, ())


def test_a_table_of_many_chunks_keeps_its_rows() -> None:
    table = pa.concat_tables([pa.Table.from_pylist([ROW], schema=SCHEMA)] * 3)
    assert table["id"].num_chunks == 3
    batch = Batch("g", 0, (TableChanges("t", table, pa.table({})),))
    assert decode_batch(pa.py_buffer(encode_batch(batch))) == batch


def test_the_arrow_data_is_aligned() -> None:
    data = encode_batch(Batch("g", 0, (TableChanges("t", SCHEMA.empty_table(), pa.table({})),)))
    assert (8 + int.from_bytes(data[:8], "little")) % 64 == 0


@pytest.mark.parametrize(
    "shape",
    [
        TableShape("t", SCHEMA, ("id",)),
        TableShape("t", SCHEMA, ("id", "name"), version=("at", "id"), aliases=("user", "ünique")),
        TableShape("log", SCHEMA, ("id",), appends=True),
        TableShape("t", SCHEMA, ("id",), sources=("t",), scope="name", topic="topic"),
        TableShape("t", SCHEMA, ("id",), sources=("t",), times=("at",), retain=Retain(rows=5, bytes=7)),
        TableShape("v", SCHEMA, ("id",), sources=("a", "b"), scope="name", join="left"),
        TableShape("v", SCHEMA, ("id",), sources=("a", "b"), times=("at", "at"), sides=(("id",), ("name", "at"))),
    ],
)
def test_a_shape_is_the_same_after_the_wire(shape: TableShape) -> None:
    assert decode_shape(encode_shape(shape)) == shape
    assert decode_shapes(encode_shapes("g", [shape, shape])) == ("g", (shape, shape))


def test_a_generation_without_tables_passes() -> None:
    assert decode_shapes(encode_shapes("g", [])) == ("g", ())


@pytest.mark.parametrize("cut", [0, 10, 64, 200, -1])
def test_what_is_cut_off_is_an_error(cut: int) -> None:
    data = encode_batch(Batch("g", 0, (TableChanges("t", pa.Table.from_pylist([ROW] * 9, SCHEMA), pa.table({})),)))
    with pytest.raises((ValueError, IndexError, OSError)):
        decode_batch(data[:cut])


@given(
    names,
    st.lists(st.tuples(names, st.sampled_from(["rows", "removed", "unknown"]), rows), max_size=3),
    st.dictionaries(
        names,
        st.dictionaries(st.text(max_size=5), st.dictionaries(st.integers(0, 2**19 - 1), st.integers(0, 2**44 - 1))),
        max_size=3,
    ),
)
def test_a_part_of_a_frame_is_the_same_after_the_wire(
    name: str, tables: list[tuple[str, Any, list[object]]], marks: dict[str, dict[str, dict[int, int]]]
) -> None:
    streams = tuple(
        FrameStream.of(table, kind, pa.Table.from_pylist(each, schema=SCHEMA)) for table, kind, each in tables
    )
    part = FramePart(
        name, 3_000_001, 0, "an attempt", 17, 0, True, 1_763_340_000_000, streams, marks, durable=True, kafka_ms=0
    )
    data = encode_part(part)
    assert decode_part(data) == part
    assert [stream.rows().num_rows for stream in decode_part(pa.py_buffer(data)).streams] == [
        len(each) for _, _, each in tables
    ]
    assert (8 + int.from_bytes(data[:8], "little")) % 64 == 0


def with_header(part: FramePart, **fields: Any) -> bytes:
    """A part in which the header has other values; those that are None are left out."""
    data = encode_part(part)
    length = int.from_bytes(data[:8], "little")
    header = {**json.loads(data[8 : 8 + length]), **fields}
    text = json.dumps({name: value for name, value in header.items() if value is not None}).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


PART = FramePart("g", 1, 0, "an attempt", 0, 0, True, 0, (), {})


def test_a_part_that_does_not_say_so_is_durable_and_has_no_records() -> None:
    assert decode_part(with_header(PART, durable=None, kafka_ms=None)) == PART


@pytest.mark.parametrize(("name", "value"), [("kafka_ms", -2), ("durable", 1), ("frame", -1), ("commit", "yes")])
def test_a_value_that_cannot_be_is_an_error(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{name} is {value!r}$"):
        decode_part(with_header(PART, **{name: value}))
