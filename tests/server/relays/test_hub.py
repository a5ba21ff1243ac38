"""A relay's copy of a window: patched as every client patches its own, and in Arrow as the server has it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json, to_json

from livetables.model.columns import column_type
from livetables.server.live import protocol
from livetables.server.live.protocol import Heading
from livetables.server.relays.hub import arrow_rows, patched_entries
from livetables.server.viewports.encoding import encoded_rows
from livetables.server.viewports.viewport import patch
from tests.support.tables import ROWS, SCHEMA

HEADING = Heading(table="t", generation="g", sequence=1, newest=None)
WINDOWS = st.lists(
    st.tuples(st.integers(0, 12), st.tuples(st.integers(0, 2), st.none() | st.text("ab", max_size=1))),
    max_size=8,
    unique_by=lambda row: row[0],
)


@given(WINDOWS, WINDOWS)
def test_a_patched_copy_is_the_new_window(
    old: list[tuple[int, tuple[Any, ...]]], new: list[tuple[int, tuple[Any, ...]]]
) -> None:
    change = patch(old, new)
    if change is None:  # then the window is sent whole
        return
    frame = from_json("{" + protocol.patch(HEADING, len(new), change))
    before = list(old)
    assert patched_entries(before, frame) == new
    assert before == old, "the state before stays as it is"


@given(st.lists(ROWS, max_size=5))
def test_rows_in_arrow_are_those_of_the_server(rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist([{"_id": number, **row} for number, row in enumerate(rows)], schema=SCHEMA)
    columns = tuple((field.name, column_type(field.type)) for field in table.schema)
    again = arrow_rows(columns, list(enumerate(map(tuple, from_json(to_json(encoded_rows(table)))))))
    assert again.schema == table.schema
    assert repr(again.to_pylist()) == repr(table.to_pylist())  # in which NaN equals itself, and 0.0 is not -0.0
