"""Which rows pass a viewport's filters, in Python as in the database.

`viewport.py` says the same in SQL; a property test holds the two together. Text is lower-cased as the database does
it, character by character: Python's own rules differ for a few letters.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import cache, lru_cache
from typing import Any

import duckdb
import pyarrow as pa

from livetables.model.columns import EPOCH, ColumnKind, kind_of
from livetables.server.viewports.row import Row
from livetables.server.viewports.viewport import Filter, Selection, filter_values, has_case, is_searched

Test = Callable[[Any], bool]  # of a value that is not null

MICROSECOND = timedelta(microseconds=1)


def predicate(schema: pa.Schema, selection: Selection) -> Callable[[Row], bool] | None:
    """A function that decides whether a row passes all filters; None if every row does."""
    if not selection.is_filtered:
        return None
    columns: list[tuple[int, bool, Test]] = []
    for each in selection.filters:
        kind = kind_of(schema.field(each.column).type)
        columns.append((schema.names.index(each.column), each.op == "is_null", _test(each, kind)))
    searched = _searched(schema, selection.quick) if selection.quick else None

    def passes(row: Row) -> bool:
        values = row.values
        for place, wants_null, test in columns:
            value = values[place]
            if (value is None) != wants_null or (value is not None and not test(value)):
                return False
        if searched is None:
            return True
        return any((value := values[place]) is not None and test(value) for place, test in searched)

    return passes


def _test(each: Filter, kind: ColumnKind) -> Test:
    values = [_comparable(value) for value in filter_values(each, kind)]
    ordered: Callable[[Any], Any] = _above_all if kind.has_nan else _itself
    match each.op:
        case "is_null":
            return lambda _: False
        case "equals":
            (wanted,) = values
            return lambda value: bool(value == wanted)
        case "<":
            bound = ordered(values[0])
            return lambda value: bool(ordered(value) < bound)
        case ">":
            bound = ordered(values[0])
            return lambda value: bool(ordered(value) > bound)
        case "between":
            low, high = map(ordered, values)
            return lambda value: bool(low <= ordered(value) <= high)
        case "in":
            wanted_values = set(values)
            return lambda value: value in wanted_values
        case "contains" | "starts_with":
            return _finds(str(values[0]), at_start=each.op == "starts_with")


def _comparable(value: Any) -> Any:
    """A filter's value as rows have it."""
    return (value.replace(tzinfo=None) - EPOCH) // MICROSECOND if isinstance(value, datetime) else value


def _above_all(value: float) -> tuple[int, float]:
    """NaN is above all numbers, as the database has it. A filter cannot ask for it."""
    return (0, value) if value == value else (1, 0.0)


def _itself(value: Any) -> Any:
    return value


def _finds(needle: str, *, at_start: bool = False) -> Test:
    wanted = lowered(needle) if has_case(needle) else needle
    lower: Callable[[str], str] = lowered if has_case(needle) else str
    if at_start:
        return lambda text: lower(text).startswith(wanted)
    return lambda text: wanted in lower(text)


def _searched(schema: pa.Schema, needle: str) -> list[tuple[int, Test]]:
    """The columns that a quick filter looks into, and how."""
    found = []
    for place, field in enumerate(schema):
        kind = kind_of(field.type)
        if is_searched(field.name, kind, needle):
            test = _finds(kind.needle(needle))
            found.append((place, test if kind.is_text else _written(kind, test)))
    return found


def _written(kind: ColumnKind, test: Test) -> Test:
    """The test of a value's text, as the database writes it."""

    def passes(value: Any) -> bool:
        try:
            text = kind.text(value)
        except OverflowError:  # a time before year 1 or after 9999: only the database can write it
            text = _written_far_time(value)
        return test(text)

    return passes


@lru_cache(maxsize=10_000)
def _written_far_time(microseconds: int) -> str:
    with duckdb.connect(":memory:") as database:
        ((text,),) = database.execute("SELECT CAST(make_timestamp(?) AS VARCHAR)", [microseconds]).fetchall()
        return str(text)


def lowered(text: str) -> str:
    """The text in lower case, as the database has it."""
    return text.lower() if text.isascii() else text.translate(_lower_case())


@cache
def _lower_case() -> dict[int, str]:
    """The lower case of each character that has one, as the database knows it."""
    # All characters but NUL and the surrogates.
    query = """
        SELECT code, lower(chr(code)) FROM (SELECT range::INTEGER AS code FROM range(1, 1114112))
        WHERE code NOT BETWEEN 55296 AND 57343 AND lower(chr(code)) <> chr(code)
    """
    with duckdb.connect(":memory:") as database:
        return dict(database.sql(query).fetchall())
