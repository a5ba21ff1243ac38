"""A window that is kept current from deltas alone shows what a full evaluation would; and how seldom it has to ask."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from livetables.server.viewports import window as window_module
from livetables.server.viewports.row import Row, numbered, rows_of, table_of
from livetables.server.viewports.viewport import Filter, Sort, ViewOptions
from livetables.server.viewports.window import Delta, LiveWindow, kept_range

SCHEMA = pa.schema(
    [("word", pa.string()), ("whole", pa.int64()), ("number", pa.float64()), ("at", pa.timestamp("us", "UTC"))]
)
Values = tuple[Any, ...]


# The model: what a full evaluation shows, by brute force and with no code of the server's


def sort_key(value: Any) -> tuple[int, Any]:
    """Nulls are put last by another sort; not-a-number is the greatest number."""
    if value is None:
        return 0, 0
    return (2, 0) if isinstance(value, float) and math.isnan(value) else (1, value)


def passes(values: Values, options: ViewOptions) -> bool:
    for each in options.filters:
        value = values[SCHEMA.names.index(each.column)]
        if value is None or (isinstance(value, float) and math.isnan(value) and each.op == "<"):
            return False
        if each.op == "<" and not value < each.value:
            return False
        if each.op == "contains" and str(each.value) not in value:
            return False
    return True


@dataclass
class Model:
    """A table, and the store as a window asks it."""

    rows: dict[int, Row] = field(default_factory=dict)
    next_number: int = 0
    asked: int = 0

    def apply(self, delta: Delta) -> None:
        for was, now in delta.changed:
            del self.rows[was.number]
            if now is not None:
                self.rows[now.number] = now
        for row in delta.new:
            self.rows[row.number] = row
            self.next_number = row.number + 1

    def ordered(self, options: ViewOptions) -> list[Row]:
        found = [row for _, row in sorted(self.rows.items()) if passes(row.values, options)]
        for sort in reversed(options.sort):
            place = SCHEMA.names.index(sort.column)
            found.sort(key=lambda row: sort_key(row.values[place]), reverse=sort.descending)
            found.sort(key=lambda row: row.values[place] is None)
        return found

    def view(self, options: ViewOptions) -> list[Row]:
        """The rows in view, as many as may be sent."""
        rows = self.ordered(options)[options.offset : options.offset + options.size]
        size, fitting = 0, 0
        for row in rows:
            size += row.size
            if size > window_module.VIEW_BYTES_MAX:
                break
            fitting += 1
        return rows[: max(1, fitting)]

    def load(self, options: ViewOptions) -> LiveWindow:
        """What `Store.kept` finds of a table without large rows, and the hub makes of it."""
        self.asked += 1
        start, size = kept_range(options)
        rows = self.ordered(options)
        return LiveWindow(SCHEMA, options, start, rows[start : start + size], len(rows))

    def delta(self, new: Sequence[Values], changes: Sequence[tuple[int, Values | None]]) -> Delta:
        """New rows, and what becomes of rows by their numbers."""
        given_rows = table_of([Row(0, values) for values in new], SCHEMA).drop_columns("_row")
        numbers = range(self.next_number, self.next_number + len(new))
        changed = [(self.rows[number], None if now is None else Row(number, now)) for number, now in changes]
        return Delta(numbered(given_rows, numbers[0]) if new else None, tuple(changed))


VALUES = st.tuples(
    st.sampled_from([None, "", "a", "b", "ab", "é", "zz" * 9]),
    st.none() | st.integers(-4, 4),
    st.sampled_from([None, 0.0, -0.0, 1.5, -2.0, float("nan"), float("inf"), float("-inf")]),
    st.none() | st.integers(-3, 3),
)
SORTS = st.lists(st.builds(Sort, column=st.sampled_from(SCHEMA.names), descending=st.booleans()), max_size=3)
FILTERS = st.sampled_from(
    [
        [],
        [],
        [Filter(column="word", op="contains", value="a")],
        [Filter(column="whole", op="<", value=1)],
        [Filter(column="number", op="<", value=1.0)],
    ]
)
VIEWS = st.builds(
    ViewOptions,
    sort=SORTS,
    filters=FILTERS,
    offset=st.sampled_from([0, 0, 1, 2, 3, 5, 8, 13, 30]),
    size=st.sampled_from([0, 1, 2, 3, 5, 40]),
)
SMALL = {"KEPT_FROM_THE_TOP": 2, "BESIDE_MIN": 1, "BESIDE_MAX": 3, "MANY": 2}  # so that margins run out
BYTES = st.sampled_from([10**9, 10**9, 120, 200])


@st.composite
def stories(draw: st.DrawFn, model: Model) -> Delta:
    new = draw(st.lists(VALUES, max_size=6))
    numbers = draw(st.lists(st.sampled_from(sorted(model.rows)), unique=True, max_size=6)) if model.rows else []
    return model.delta(new, [(number, draw(st.none() | VALUES)) for number in numbers])


def shown(rows: Sequence[Row]) -> list[tuple[int, str]]:
    return [(row.number, repr(row.values)) for row in rows]


@settings(deadline=None, max_examples=200)
@given(
    views=st.lists(VIEWS, min_size=1, max_size=4), first=st.lists(VALUES, max_size=30), bytes_max=BYTES, data=st.data()
)
def test_a_window_shows_what_a_full_evaluation_would(
    views: list[ViewOptions], first: list[Values], bytes_max: int, data: st.DataObject
) -> None:
    limits = {**SMALL, "VIEW_BYTES_MAX": bytes_max, "KEPT_BYTES_MAX": 2 * bytes_max}
    with ExitStack() as patches:
        for name, value in limits.items():
            patches.enter_context(patch.object(window_module, name, value))
        model = Model()
        model.apply(model.delta(first, []))
        windows = [model.load(options) for options in views]
        for _ in range(data.draw(st.integers(1, 12))):
            delta = data.draw(stories(model))
            model.apply(delta)
            for place, options in enumerate(views):
                before, total = windows[place].rows, windows[place].total
                has_news = windows[place].advance(delta)
                rows = windows[place].rows
                assert windows[place].total == len(model.ordered(options))
                if rows is None:
                    assert has_news, "what it needs the store for is news"
                    event("the store was asked")
                    windows[place] = model.load(options)
                    rows = windows[place].rows
                    assert rows is not None, "what the store has is enough"
                expected = model.view(options)
                assert shown(rows) == shown(expected)
                if not has_news:
                    assert before is not None
                    assert (shown(before), total) == (shown(expected), windows[place].total)


@settings(deadline=None, max_examples=100)
@given(view=VIEWS, first=st.lists(VALUES, max_size=30), data=st.data())
def test_a_window_that_was_not_asked_for_is_right_again_when_it_says_so(
    view: ViewOptions, first: list[Values], data: st.DataObject
) -> None:
    """A window goes on taking deltas in while the store is asked: it may be None for a while, and never wrong."""
    with ExitStack() as patches:
        for name, value in SMALL.items():
            patches.enter_context(patch.object(window_module, name, value))
        model = Model()
        model.apply(model.delta(first, []))
        window = model.load(view)
        for _ in range(data.draw(st.integers(1, 20))):
            delta = data.draw(stories(model))
            model.apply(delta)
            window.advance(delta)
            assert window.total == len(model.ordered(view))
            if (rows := window.rows) is not None:
                assert shown(rows) == shown(model.view(view))


# How often the store is asked


def values_at(number: int) -> Values:
    return f"word {number}", number, number / 2, number


@dataclass
class Watched:
    """A window over a table, which asks the model where it must."""

    options: ViewOptions
    rows: int = 2_000
    model: Model = field(default_factory=Model)

    def __post_init__(self) -> None:
        self.model.apply(self.model.delta([values_at(2 * number) for number in range(self.rows)], []))
        self.window = self.model.load(self.options)
        self.model.asked = 0

    def take(self, new: Sequence[Values], changes: Sequence[tuple[int, Values | None]] = ()) -> None:
        delta = self.model.delta(new, changes)
        self.model.apply(delta)
        self.window.advance(delta)
        if self.window.rows is None:
            self.window = self.model.load(self.options)
        assert self.window.rows is not None

    def check(self) -> None:
        assert self.window.rows is not None
        assert shown(self.window.rows) == shown(self.model.view(self.options))
        assert self.window.total == len(self.model.ordered(self.options))


NEWEST_FIRST = [Sort(column="whole", descending=True)]


@pytest.mark.parametrize(
    "options",
    [
        ViewOptions(size=300),
        ViewOptions(size=300, offset=1_500),
        ViewOptions(size=300, sort=NEWEST_FIRST),
        ViewOptions(size=300, sort=[Sort(column="whole")]),
        ViewOptions(size=300, sort=NEWEST_FIRST, filters=[Filter(column="word", op="contains", value="1")]),
        ViewOptions(size=300, offset=900, sort=NEWEST_FIRST),
    ],
    ids=lambda options: json.dumps(options.model_dump(exclude_defaults=True)),
)
@pytest.mark.parametrize("rows_at_once", [1, 50])
def test_new_rows_never_ask_a_window_that_keeps_all_above_it(options: ViewOptions, rows_at_once: int) -> None:
    """Appended after the last row, as the newest are, or put at the top by a sort."""
    watched = Watched(options)
    numbers = count(10_000)
    for _ in range(40):
        watched.take([values_at(next(numbers)) for _ in range(rows_at_once)])
    watched.check()
    assert watched.model.asked == 0


def test_deletes_ask_once_the_rows_below_have_run_out() -> None:
    watched = Watched(ViewOptions(size=100))
    for number in range(400):
        watched.take([], [(number, None)])
    watched.check()
    assert watched.model.asked == 3, "after each hundred rows that were kept below"


def test_updates_within_a_window_never_ask() -> None:
    watched = Watched(ViewOptions(size=100, sort=NEWEST_FIRST))
    for number in range(1_900, 2_000):
        watched.take([], [(number, values_at(5_000 + number * 7 % 100))])
    watched.check()
    assert watched.model.asked == 0


def test_rows_that_leave_and_others_that_come_never_ask() -> None:
    """As many move in at the top as move out to the bottom."""
    watched = Watched(ViewOptions(size=100, sort=NEWEST_FIRST))
    for turn in range(500):
        watched.take([values_at(10_000 + turn)], [(1_999 - turn, values_at(-turn))])
    watched.check()
    assert watched.model.asked == 0


def test_a_deep_window_asks_when_what_is_above_it_has_grown_by_its_margin() -> None:
    watched = Watched(ViewOptions(offset=1_500, size=100, sort=NEWEST_FIRST))
    for number in range(400):
        watched.take([values_at(10_000 + number)])
    watched.check()
    assert 1 <= watched.model.asked <= 4


def test_what_is_kept_stays_bounded() -> None:
    for options in (ViewOptions(size=100, sort=NEWEST_FIRST), ViewOptions(offset=1_500, size=100)):
        watched = Watched(options)
        for number in range(1_500):
            watched.take([values_at(10_000 + number)], [(number, None)] if number < 500 else [])
            assert len(watched.window._rows) == len(watched.window._keys) <= 2 * kept_range(options)[1] + 500
        watched.check()


# Windows cut by their bytes


def large(number: int, characters: int) -> Values:
    return f"{number} " + "x" * characters, number, None, None


@pytest.mark.parametrize("offset", [0, 10, 500, 1_500])
def test_a_window_of_large_rows_ends_where_its_bytes_do(offset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_module, "VIEW_BYTES_MAX", 10_000)
    monkeypatch.setattr(window_module, "KEPT_BYTES_MAX", 40_000)
    options = ViewOptions(offset=offset, size=100)
    watched = Watched(options)
    watched.take([large(number, 1_000) for number in range(30)], [(each, large(each, 1_000)) for each in range(1_990)])
    watched.check()
    assert watched.window.rows
    assert len(watched.window.rows) == 9
    watched.take([large(2_030, 1_000)])
    assert sum(row.size for row in watched.window._rows) <= 40_000, "memory is bounded"
    watched.take([], [(each, None) for each in range(offset, offset + 5)])
    watched.check()


def test_one_row_larger_than_a_view_is_shown_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_module, "VIEW_BYTES_MAX", 1_000)
    monkeypatch.setattr(window_module, "KEPT_BYTES_MAX", 4_000)
    watched = Watched(ViewOptions(size=10, sort=NEWEST_FIRST))
    watched.take([large(10_000, 20_000)])
    watched.check()
    assert watched.window.rows
    assert [row.number for row in watched.window.rows] == [2_000]


# Deltas


def test_a_delta_knows_its_size_and_rows() -> None:
    model = Model()
    delta = model.delta([values_at(1), values_at(2)], [])
    assert ([row.number for row in delta.new], delta.size) == ([0, 1], 2)
    assert (Delta().new, Delta().size) == ([], 0)
    assert [row.values for row in rows_of(table_of(delta.new, SCHEMA))] == [values_at(1), values_at(2)]


def test_times_of_any_unit_are_microseconds() -> None:
    schema = pa.schema([("at", pa.timestamp("ms", "UTC"))])
    rows = [Row(0, (1_769_860_800_123_000,)), Row(1, (None,))]
    assert [row.values for row in rows_of(table_of(rows, schema))] == [row.values for row in rows]
    delta = Delta(table_of(rows[:1], schema))
    numbers = delta.numbers(0)
    assert numbers is not None
    assert numbers.tolist() == [1_769_860_800_123_000]
