"""A row in memory: what clients are sent of it, and its part of a checksum."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from livetables.server.viewports.encoding import encoded_rows
from livetables.server.viewports.row import Checksums, Row, View, rows_of, table_of
from livetables.server.viewports.viewport import ViewOptions
from tests.support.checksum import checksum
from tests.support.values import RECORDS, SCHEMA, numbered

ALL = View.of(SCHEMA, ViewOptions())
SOME = View.of(SCHEMA, ViewOptions(columns=[SCHEMA.names[5], SCHEMA.names[1]]))


@settings(deadline=None, max_examples=100)
@given(records=st.lists(RECORDS, max_size=5))
def test_a_row_is_sent_as_every_other_answer_has_it(records: list[dict[str, object]]) -> None:
    table = numbered(records)
    rows = rows_of(table)
    expected = encoded_rows(table.drop_columns("_row"))
    assert repr([list(ALL.entry(row)[1]) for row in rows]) == repr(expected)
    assert repr([list(SOME.entry(row)[1]) for row in rows]) == repr([[row[5], row[1]] for row in expected])
    assert repr(rows_of(table_of(rows, SCHEMA))) == repr(rows)
    total = len(rows) + 7
    own = Checksums().of_window(total, [ALL.entry(row) for row in rows])
    assert own == checksum(total, [row.number for row in rows], expected)


def test_an_unchanged_row_is_known_by_what_is_sent() -> None:
    (row,) = rows_of(numbered([dict.fromkeys(SCHEMA.names[1:])]))
    assert ALL.entry(row) is ALL.entry(row)


def test_the_checksum_of_the_protocols_example() -> None:
    rows: list[list[Any]] = [["Ann", 30, 1.5], [None, True, "é"]]
    checksums = Checksums()
    own = checksums.of_window(3, [(number, tuple(values)) for number, values in enumerate(rows)])
    assert own == checksum(3, [0, 1], rows)
    assert len(own) == 8
    others: list[list[list[Any]]] = [
        [["Ann", 30, 1.5], [None, 1, "é"]],
        [["Ann", 30, 1.5], [False, True, "é"]],
        [["Ann", "30", 1.5], [None, True, "é"]],
        rows[::-1],
    ]
    for other in others:
        assert checksums.of_window(3, [(number, tuple(values)) for number, values in enumerate(other)]) != own


@pytest.mark.parametrize("microseconds", [-(2**62), 253_402_300_800_000_000, 2**62])
def test_times_that_python_has_no_word_for_are_sent(microseconds: int) -> None:
    schema = pa.schema([("at", pa.timestamp("us", "UTC"))])
    row = Row(0, (microseconds,))
    shown = View.of(schema, ViewOptions()).entry(row)[1]
    assert [list(shown)] == encoded_rows(table_of([row], schema).drop_columns("_row"))
