"""Which rows pass: in Python exactly those that pass in the database."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, get_args

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from livetables.server.viewports.predicate import lowered, predicate
from livetables.server.viewports.viewport import ROW, Filter, Operator, Selection, scan_query
from tests.support.values import NEGATIVE_NAN, RECORDS, SCHEMA, TEXTS, VALUES, Database, numbered


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    filled = Database()
    yield filled
    filled.connection.close()


def json_value(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


@st.composite
def cases(draw: st.DrawFn, text: str) -> str:
    """A part of a text in any case."""
    start = draw(st.integers(0, len(text)))
    piece = text[start : start + draw(st.integers(0, 5))]
    return draw(st.sampled_from([piece, piece.lower(), piece.upper(), piece.swapcase(), piece.title()]))


@st.composite
def operands(draw: st.DrawFn, column: str, records: Sequence[Mapping[str, Any]]) -> Any:
    """A value to compare a column with, often one that the column has or that is next to it."""
    there = [record[column] for record in records if record[column] is not None]
    value = draw(st.sampled_from(there) | VALUES[column]) if there else draw(VALUES[column])
    match value:
        case bool():
            return value
        case int():
            near = value + draw(st.integers(-1, 1))
            near = near if -(2**63) <= near < 2**63 else value
            return draw(st.sampled_from([near, str(near)]))
        case float() if not math.isfinite(value):
            return 0.0  # a filter cannot ask for it
        case float():
            beside = [value, math.nextafter(value, math.inf), math.nextafter(value, -math.inf)]
            return draw(st.sampled_from([each for each in beside if math.isfinite(each)]))
        case datetime():
            if datetime(1900, 1, 1, tzinfo=UTC) < value < datetime(9000, 1, 1, tzinfo=UTC):
                value += timedelta(microseconds=draw(st.integers(-1, 1)))
                value = value.astimezone(timezone(timedelta(minutes=draw(st.sampled_from([0, 90, -300])))))
            text = value.isoformat()
            return text.removesuffix("+00:00") if draw(st.booleans()) else text
    return value


@st.composite
def filters(draw: st.DrawFn, records: Sequence[Mapping[str, Any]]) -> Filter:
    op: Operator = draw(st.sampled_from(get_args(Operator)))
    column = draw(st.sampled_from(sorted(VALUES)))
    if op in ("contains", "starts_with"):
        texts = [record["text"] for record in records if record["text"]]
        needle = draw(st.sampled_from(texts).flatmap(cases) if texts else TEXTS) if draw(st.booleans()) else draw(TEXTS)
        return Filter(column="text", op=op, value=needle)
    if op == "is_null":
        return Filter(column=column, op=op)
    value = operands(column, records)
    if op == "between":
        return Filter(column=column, op=op, value=[draw(value), draw(value)])
    if op == "in":
        return Filter(column=column, op=op, value=draw(st.lists(value, min_size=1, max_size=4)))
    return Filter(column=column, op=op, value=draw(value))


@st.composite
def quick_filters(draw: st.DrawFn, records: Sequence[Mapping[str, Any]]) -> str:
    """Parts of what some row shows, and what looks like a number, a time or a word."""
    shown = [str(value) for record in records for value in record.values() if value is not None]
    shown += [record["moment"].isoformat("T") for record in records if record["moment"]]
    shown += ["true", "False", "1e+16", "-nan", "inf", "12:00:00.25", "2026-01-31T12", "9999-12", "-0.0", "E+"]
    return draw(st.sampled_from(shown).flatmap(cases) | TEXTS)


@st.composite
def selections(draw: st.DrawFn, records: Sequence[Mapping[str, Any]]) -> Selection:
    has_quick = draw(st.booleans())
    return Selection(
        filters=draw(st.lists(filters(records), min_size=0 if has_quick else 1, max_size=2)),
        quick=draw(quick_filters(records)) if has_quick else "",
    )


def passing(database: Database, selection: Selection) -> list[int]:
    query = scan_query("rows_of_it", SCHEMA, selection)
    found: list[int] = (
        database.connection.sql(query.sql, params=list(query.parameters)).to_arrow_table()["_id"].to_pylist()
    )
    return found


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_a_row_passes_in_python_if_it_does_in_the_database(database: Database, data: st.DataObject) -> None:
    records = data.draw(st.lists(RECORDS, min_size=1, max_size=8))
    rows = database.fill(numbered(records))
    for selection in data.draw(st.lists(selections(records), min_size=1, max_size=6)):
        passes = predicate(SCHEMA, selection)
        expected = passing(database, selection)
        assert [row.number for row in rows if passes is None or passes(row)] == expected, selection


def test_without_filters_there_is_nothing_to_test() -> None:
    assert predicate(SCHEMA, Selection()) is None


def test_every_character_is_lowered_as_the_database_does(database: Database) -> None:
    """With letters around it: what Python makes of some depends on them."""
    texts = [f"A{chr(code)}Z {chr(code)}" for code in range(1, 0x110000) if not 0xD800 <= code < 0xE000]
    given_texts = pa.table({"each": pa.array(texts)})
    database.connection.register("texts", given_texts)
    expected = database.connection.sql("SELECT lower(each) AS lower FROM texts").to_arrow_table()["lower"].to_pylist()
    assert [lowered(text) for text in texts] == expected


def test_a_quick_filter_sees_the_sign_of_what_is_no_number(database: Database) -> None:
    nothing = dict.fromkeys(VALUES)
    rows = database.fill(numbered([{**nothing, "number": each} for each in (float("nan"), NEGATIVE_NAN)]))
    passes = predicate(SCHEMA, Selection(quick="-"))
    assert passes
    assert [row.number for row in rows if passes(row)] == passing(database, Selection(quick="-")) == [1]


def test_a_quick_filter_reads_every_time_that_a_table_may_have(database: Database) -> None:
    """Also those that Python has no word for: before year 1 and after 9999."""
    microseconds = [-(2**62), -62_135_596_800_000_001, -62_135_596_800_000_000, 253_402_300_800_000_000, 2**62]
    times = pa.array(microseconds, pa.int64()).cast(SCHEMA.field("moment").type)
    columns = [times if each.name == "moment" else pa.nulls(len(times), each.type) for each in SCHEMA]
    ids = pa.array(range(len(times)), pa.int64())
    table = pa.table([ids, ids, *columns[1:]], schema=SCHEMA.insert(0, pa.field(ROW, pa.int64())))
    rows = database.fill(table)
    for quick in ("12-31", "10000-01", "1-", ":", "00:00"):
        passes = predicate(SCHEMA, Selection(quick=quick))
        assert passes
        assert [row.number for row in rows if passes(row)] == passing(database, Selection(quick=quick)), quick
