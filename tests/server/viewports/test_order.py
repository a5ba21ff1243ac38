"""The order of rows: in Python exactly that of the database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from livetables.server.viewports.order import order_key
from livetables.server.viewports.viewport import Selection, Sort, ViewOptions, scan_query, window_query
from tests.support.values import RECORDS, SCHEMA, VALUES, Database, numbered

SORTS = st.lists(
    st.builds(Sort, column=st.sampled_from(SCHEMA.names), descending=st.booleans()), max_size=4
)  # also by one column twice


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    filled = Database()
    yield filled
    filled.connection.close()


@st.composite
def tied(draw: st.DrawFn) -> list[dict[str, object]]:
    """Records of which many have the same values."""
    columns = {name: draw(st.lists(st.none() | values, min_size=1, max_size=4)) for name, values in VALUES.items()}
    few = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in columns.items()})
    return draw(st.lists(few | RECORDS, max_size=14))


@settings(deadline=None, max_examples=150)
@given(records=tied(), sorts=st.lists(SORTS, min_size=1, max_size=6))
def test_rows_are_ordered_in_python_as_in_the_database(
    database: Database, records: list[dict[str, object]], sorts: list[list[Sort]]
) -> None:
    rows = database.fill(numbered(records))
    for sort in sorts:
        query = scan_query("rows_of_it", SCHEMA, Selection(sort=sort))
        expected = database.connection.sql(query.sql).to_arrow_table()["_id"].to_pylist()
        key = order_key(SCHEMA, sort)
        assert [row.number for row in sorted(rows, key=key)] == expected, sort
        assert len({key(row) for row in rows}) == len(rows), "two rows have the same key"
        window = window_query("rows_of_it", SCHEMA, ViewOptions(sort=sort, size=5, offset=2), len(rows), len(rows))
        assert database.connection.sql(window.sql).to_arrow_table()["_id"].to_pylist() == expected[2:7]


def test_keys_of_all_values_can_be_compared() -> None:
    """Every two of them: what sorting happens to compare is not all that a window does."""
    rows = Database().fill(
        numbered(
            [
                {"text": text, "whole": whole, "number": number, "flag": flag, "moment": None, "other": None}
                for text in (None, "", "é")
                for whole in (None, -(2**63), 2**63 - 1)
                for number in (None, float("nan"), float("-inf"), -0.0)
                for flag in (None, False, True)
            ]
        )
    )
    for column in SCHEMA.names:
        for descending in (False, True):
            key = order_key(SCHEMA, [Sort(column=column, descending=descending)])
            for one in rows:
                for other in rows:
                    assert (key(one) < key(other)) + (key(other) < key(one)) + (key(one) == key(other)) == 1
