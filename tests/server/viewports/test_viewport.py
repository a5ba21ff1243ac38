"""What a viewport shows, against a model in plain Python; and how one window becomes the next."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import combinations, count, pairwise
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from livetables.model.change import TableShape
from livetables.model.errors import RequestError
from livetables.server.storage.store import Store
from livetables.server.viewports.viewport import (
    MAX_IN_VALUES,
    MAX_TEXT_CHARACTERS,
    Filter,
    Operator,
    Patch,
    Selection,
    Sort,
    ViewOptions,
    Window,
    patch,
    same,
)
from tests.support.tables import (
    APPENDS,
    EPOCH,
    KEYED,
    SCHEMA,
    SHAPES,
    TEXTS,
    VALUES,
    VERSIONED,
    Changes,
    Row,
    batch,
    histories,
    numbered,
)
from tests.support.windows import patched

Rows = list[tuple[int, tuple[Any, ...]]]

GENERATIONS = count()


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    store = Store(None)
    yield store
    store.close()


# The model


class Model:
    """A table as a list of rows in the order of their numbers."""

    def __init__(self, shape: TableShape) -> None:
        self.shape = shape
        self.rows: dict[int, Row] = {}
        self._next_row = 0

    def apply(self, changes: Changes) -> None:
        upserts, deletes = changes
        gone = [self._key(key) for key in deletes]
        self.rows = {number: row for number, row in self.rows.items() if self._key(row) not in gone}
        for row in upserts:
            places = [number for number, known in self.rows.items() if self._key(known) == self._key(row)]
            if not places:
                self.rows[self._next_row] = row
            elif self._version(row) > self._version(self.rows[places[0]]) or not self.shape.version:
                self.rows[places[0]] = row
            self._next_row += 1

    def window(self, options: ViewOptions) -> tuple[list[int], list[Row], int]:
        found = [(number, row) for number, row in sorted(self.rows.items()) if passes(row, options)]
        for sort in reversed(options.sort):
            found.sort(key=lambda each: sort_key(each[1][sort.column]), reverse=sort.descending)
            found.sort(key=lambda each: each[1][sort.column] is None)
        shown = found[options.offset : options.offset + options.size]
        columns = options.columns or self.shape.schema.names
        return [number for number, _ in shown], [{c: row[c] for c in columns} for _, row in shown], len(found)

    def _key(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[column] for column in self.shape.key)

    def _version(self, row: Row) -> tuple[Any, ...]:
        return tuple((row[column] is not None, row[column] or 0) for column in self.shape.version)


def sort_key(value: Any) -> Any:
    """Nulls are put last by another sort; not-a-number is the greatest number, and text goes by its UTF-8."""
    if value is None:
        return (0,)
    if isinstance(value, float) and math.isnan(value):
        return (2, 0)
    return (1, value.encode() if isinstance(value, str) else value)


def passes(row: Row, selection: Selection) -> bool:
    return all(passes_filter(row[each.column], each) for each in selection.filters) and (
        not selection.quick or any(found_in(row[name], selection.quick) for name in row if not name.startswith("_"))
    )


def passes_filter(value: Any, each: Filter) -> bool:
    if each.op == "is_null" or value is None:
        return each.op == "is_null" and value is None
    operands = [typed(value, operand) for operand in (each.value if isinstance(each.value, list) else [each.value])]
    own, others = sort_key(value), [sort_key(operand) for operand in operands]
    match each.op:
        case "equals" | "in":
            return own in others
        case "<":
            return bool(own < others[0])
        case ">":
            return bool(own > others[0])
        case "between":
            return bool(others[0] <= own <= others[1])
        case "contains":
            return operands[0].lower() in value.lower()
        case "starts_with":
            return bool(value.lower().startswith(operands[0].lower()))
    raise AssertionError(each.op)


def typed(value: Any, operand: Any) -> Any:
    """An operand as it was before it became JSON."""
    if isinstance(value, datetime):
        return datetime.fromisoformat(operand)
    return (
        int(operand) if isinstance(value, int) and not isinstance(value, bool) and isinstance(operand, str) else operand
    )


def found_in(value: Any, needle: str) -> bool:
    if isinstance(value, str):
        return needle.lower() in value.lower()
    if isinstance(value, bool):
        return needle.lower() in str(value).lower()
    if isinstance(value, int | float):
        return set(needle.lower()) <= set("-+0123456789.e") and needle.lower() in str(value)
    if isinstance(value, datetime):
        text = value.strftime("%Y-%m-%d %H:%M:%S") + (f".{value:%f}".rstrip("0") if value.microsecond else "")
        looks_like_a_time = any(a.isdigit() and b in "-:" for a, b in pairwise(needle))
        return looks_like_a_time and needle.replace("T", " ") in text
    return False


# Questions

NEEDLES = TEXTS | st.sampled_from(
    ["a", "É", "true", "als", "1", "2.5", "-1", "12:00", "2026-01", "31T12:00", "00.5", "e"]
)


def json_value(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    column = draw(st.sampled_from(sorted(VALUES)))
    values = VALUES[column].filter(lambda value: not isinstance(value, float) or math.isfinite(value)).map(json_value)
    if column == "age":
        values = values | values.map(str)
    op: Operator = draw(st.sampled_from(get_args(Operator)))
    if op in ("contains", "starts_with"):
        return Filter(column="name", op=op, value=draw(NEEDLES))
    if op == "is_null":
        return Filter(column=column, op=op)
    if op == "between":
        return Filter(column=column, op=op, value=[draw(values), draw(values)])
    if op == "in":
        return Filter(column=column, op=op, value=draw(st.lists(values, min_size=1, max_size=4)))
    return Filter(column=column, op=op, value=draw(values))


def mostly(nothing: Any, something: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.just(nothing) | something


@st.composite
def views(draw: st.DrawFn) -> ViewOptions:
    columns = sorted(SCHEMA.names)
    sorts = st.builds(Sort, column=st.sampled_from(columns), descending=st.booleans())
    return ViewOptions(
        columns=draw(mostly(None, st.lists(st.sampled_from(columns), min_size=1, unique=True))),
        sort=draw(mostly([], st.lists(sorts, max_size=3))),
        filters=draw(mostly([], st.lists(filters(), max_size=2))),
        quick=draw(mostly("", NEEDLES)),
        offset=draw(st.sampled_from([0, 0, 0, 1, 3, 7, 1000, 2**62])),
        size=draw(st.sampled_from([0, 1, 3, 5, 300, 300])),
    )


def encoded(rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    """Rows in a form that compares as on the wire: each value's type counts, and not-a-number is itself."""
    return [tuple(repr(json_value(value)) for value in row.values()) for row in rows]


def client_rows(window: Window) -> Rows:
    return list(zip(window.ids, encoded(window.rows.to_pylist()), strict=True))


# Windows


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_a_window_is_what_the_model_shows_after_every_batch_and_patches_lead_there(store: Store, data: Any) -> None:
    shape = data.draw(st.sampled_from(SHAPES))
    options = data.draw(st.lists(views(), min_size=1, max_size=3))
    generation, model = f"g{next(GENERATIONS)}", Model(shape)
    store.begin(generation, [shape])
    store.publish(generation)
    shown: list[Rows] = [[] for _ in options]
    try:
        for batch_id, changes in enumerate(data.draw(histories(shape))):
            store.put(batch(generation, batch_id, {shape: changes}))
            model.apply(changes)
            for position, option in enumerate(options):
                _, window = store.reader.window(shape.name, option)
                ids, rows, total = model.window(option)
                assert (list(window.ids), window.total) == (ids, total)
                assert encoded(window.rows.to_pylist()) == encoded(rows)
                new = client_rows(window)
                change = patch(shown[position], new)
                assert change is None or patched(shown[position], change) == new
                shown[position] = new
    finally:
        store.drop(generation)


@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_a_scan_gives_the_rows_of_the_widest_window(store: Store, data: Any) -> None:
    generation = f"g{next(GENERATIONS)}"
    store.begin(generation, [KEYED])
    store.publish(generation)
    try:
        for batch_id, changes in enumerate(data.draw(histories(KEYED))):
            store.put(batch(generation, batch_id, {KEYED: changes}))
        view = data.draw(views())
        _, window = store.reader.window("keyed", view.model_copy(update={"offset": 0, "size": 10_000}))
        with store.reader.scan("keyed", view) as reader:
            assert encoded(reader.read_all().to_pylist()) == encoded(window.rows.to_pylist())
    finally:
        store.drop(generation)


@pytest.fixture
def people(store: Store) -> Iterator[str]:
    """A table of ten rows, as an alias-free name."""
    generation = f"g{next(GENERATIONS)}"
    store.begin(generation, [APPENDS, KEYED, VERSIONED])
    store.publish(generation)
    store.put(batch(generation, 0, {APPENDS: (numbered(0, 10), []), KEYED: (numbered(0, 10), [])}))
    yield generation
    store.drop(generation)


def ids(store: Store, table: str, **options: Any) -> list[int]:
    _, window = store.reader.window(table, ViewOptions(**options))
    assert [row["_id"] for row in window.rows.to_pylist()] == list(window.ids)
    return list(window.ids)


@pytest.mark.usefixtures("people")
def test_rows_are_in_the_order_of_arrival(store: Store) -> None:
    assert ids(store, "appends", offset=3, size=4) == [3, 4, 5, 6]
    assert ids(store, "appends", offset=8, size=4) == [8, 9]


def test_rows_are_in_the_order_of_arrival_where_some_were_deleted(store: Store, people: str) -> None:
    gone = [row for row in numbered(0, 10) if row["_id"] in (0, 4, 5, 9)]
    store.put(batch(people, 1, {KEYED: ([], gone)}))
    assert ids(store, "keyed", offset=0, size=3) == [1, 2, 3]
    assert ids(store, "keyed", offset=2, size=3) == [3, 6, 7]
    assert ids(store, "keyed", offset=4, size=300) == [7, 8]
    assert ids(store, "keyed", offset=6) == []


def test_a_row_keeps_its_number_and_place_when_it_changes(store: Store, people: str) -> None:
    store.put(batch(people, 1, {KEYED: ([{**numbered(2, 1)[0], "balance": 99.0}], [])}))
    _, window = store.reader.window("keyed", ViewOptions(offset=1, size=3))
    assert window.ids == (1, 2, 3)
    assert window.rows["balance"].to_pylist() == [0.5, 99.0, 1.5]


def test_the_quick_filter_does_not_look_at_columns_for_programs(store: Store, people: str) -> None:
    store.put(batch(people, 1, {APPENDS: ([{"_id": 777, "name": "x"}], [])}))
    _, window = store.reader.window("appends", ViewOptions(quick="777"))
    assert window.total == 0


@pytest.mark.usefixtures("people")
def test_equals_minds_case_and_the_others_do_not(store: Store) -> None:
    def total(op: Operator, value: str) -> int:
        return store.reader.window("appends", ViewOptions(filters=[Filter(column="name", op=op, value=value)]))[1].total

    assert (total("equals", "USER 1"), total("equals", "user 1")) == (0, 1)
    assert (total("contains", "SER 1"), total("starts_with", "USER 1")) == (1, 1)


@pytest.mark.usefixtures("people")
def test_a_time_without_a_zone_is_utc(store: Store) -> None:
    for text in ("2026-01-31T12:00:03", "2026-01-31T12:00:03Z", "2026-01-31T13:00:03+01:00"):
        view = ViewOptions(filters=[Filter(column="ts", op="equals", value=text)])
        assert store.reader.window("appends", view)[1].rows["ts"].to_pylist() == [
            datetime(2026, 1, 31, 12, 0, 3, tzinfo=UTC)
        ]


# Bad requests: (options, code, problem, cure)

BAD: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "unknown column": ({"columns": ["nam"]}, "unknown_column", "no column 'nam'", 'did you mean "name"?'),
    "row numbers": ({"columns": ["_row"]}, "unknown_column", "no column '_row'", "use one of _id, name"),
    "no column": ({"columns": []}, "unknown_column", "no column is asked for", "name at least one"),
    "column twice": ({"columns": ["age", "age"]}, "unknown_column", "asked for twice", "name each column once"),
    "unknown sort": ({"sort": [Sort(column="x")]}, "unknown_column", "no column 'x'", "use one of"),
    "SQL as a column": ({"sort": [Sort(column='"; DROP')]}, "unknown_column", "no column", "use one of"),
}
BAD_FILTERS: dict[str, tuple[str, str, Any, str, str, str]] = {
    "unknown column": ("nme", "equals", "x", "unknown_column", "no column 'nme'", 'did you mean "name"?'),
    "text for int64": ("age", "equals", "x", "bad_filter", "'x' does not match age, which is int64", "give a number"),
    "too large": ("age", "equals", 2**63, "bad_filter", "does not match age", "give a number"),
    "too large as text": ("age", "equals", "9" * 30, "bad_filter", "does not match age", "give a number"),
    "half": ("age", "equals", 1.5, "bad_filter", "1.5 does not match age", "give a number"),
    "bool for int64": ("age", "equals", True, "bad_filter", "True does not match age", "give a number"),
    "text for double": ("balance", ">", "1", "bad_filter", "does not match balance, which is double", "give a number"),
    "too large for double": ("balance", ">", 10**400, "bad_filter", "does not match balance", "give a number"),
    "number for bool": ("active", "equals", 1, "bad_filter", "1 does not match active", "give true or false"),
    "number for text": ("name", "contains", 1, "bad_filter", "1 does not match name", "give text"),
    "no text": ("name", "equals", "\ud800", "bad_filter", "does not match name", "give text"),
    "no time": ("ts", "equals", "noon", "bad_filter", "'noon' does not match ts", "ISO-8601"),
    "time out of range": ("ts", ">", "0001-01-01T00:00:00+23:00", "bad_filter", "does not match ts", "ISO-8601"),
    "contains in a number": ("age", "contains", 1, "bad_filter", "contains needs a string column", "use equals or"),
    "null": ("name", "equals", None, "bad_filter", "equals on name needs one value", "give one value as `value`"),
    "list": ("name", "equals", ["x"], "bad_filter", "equals on name needs one value", "give one value"),
    "no list": ("name", "in", "x", "bad_filter", "in on name needs a list", "give a list as `value`"),
    "half a range": ("age", "between", [1], "bad_filter", "between on age needs two values", "give [lowest, highest]"),
    "in nothing": ("age", "in", [], "limit", "in on age has 0 values", "give 1 to 1000 values"),
    "in too much": ("age", "in", [1] * (MAX_IN_VALUES + 1), "limit", "has 1001 values", "give 1 to 1000 values"),
    "long text": ("name", "equals", "x" * (MAX_TEXT_CHARACTERS + 1), "limit", "too long", "at most 1000 characters"),
    "value for is_null": ("name", "is_null", "x", "bad_filter", "takes no value", "leave `value` out"),
}


@pytest.mark.usefixtures("people")
@pytest.mark.parametrize(("options", "code", "problem", "cure"), BAD.values(), ids=BAD)
def test_a_bad_view_is_an_error_with_its_cure(
    store: Store, options: dict[str, Any], code: str, problem: str, cure: str
) -> None:
    assert_refused(store, ViewOptions(**options), code, problem, cure)


@pytest.mark.usefixtures("people")
@pytest.mark.parametrize(("column", "op", "value", "code", "problem", "cure"), BAD_FILTERS.values(), ids=BAD_FILTERS)
def test_a_bad_filter_is_an_error_with_its_cure(
    store: Store, column: str, op: Any, value: Any, code: str, problem: str, cure: str
) -> None:
    assert_refused(store, ViewOptions(filters=[Filter(column=column, op=op, value=value)]), code, problem, cure)


def assert_refused(store: Store, options: ViewOptions, code: str, problem: str, cure: str) -> None:
    with pytest.raises(RequestError) as caught:
        store.reader.window("appends", options)
    assert caught.value.code == code
    assert problem in caught.value.problem
    assert cure in caught.value.cure


@pytest.mark.parametrize(
    "options",
    [
        {"offset": -1},
        {"offset": 2**62 + 1},
        {"size": 10_002},
        {"size": "3"},
        {"quick": "x" * 1001},
        {"quick": "\ud800"},
        {"sort": [{"column": "a"}] * 9},
        {"filters": [{"column": "a", "op": "is_null"}] * 33},
        {"filters": [{"column": "a", "op": "like", "value": "x"}]},
        {"filters": [{"column": "a", "op": "equals", "value": float("nan")}]},
        {"unknown": 1},
    ],
)
def test_options_beyond_their_limits_are_no_options(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ViewOptions.model_validate(options)


# Patches


def rows(*ids: int, **cells: Any) -> Rows:
    """Rows of three cells; `cells` gives the middle one of a row by its id, as r2="x"."""
    return [(row_id, (row_id * 10, cells.get(f"r{row_id}", "-"), None)) for row_id in ids]


def test_rows_that_come_on_top_push_others_out() -> None:
    change = patch(rows(1, 2, 3, 4), rows(9, 1, 2, 3))
    assert change == Patch((3,), ((0, 9, (90, "-", None)),), ())


def test_a_row_added_at_the_end_is_one_insert() -> None:
    assert patch(rows(1, 2), rows(1, 2, 3)) == Patch((), ((2, 3, (30, "-", None)),), ())


def test_a_changed_cell_is_one_cell() -> None:
    assert patch(rows(1, 2, 3), rows(1, 2, 3, r2="x")) == Patch((), (), ((1, 1, "x"),))


def test_a_removed_row_is_one_position() -> None:
    assert patch(rows(1, 2, 3), rows(1, 3)) == Patch((1,), (), ())


def test_a_moved_row_is_removed_and_inserted() -> None:
    change = patch(rows(1, 2, 3, 4, 5), rows(5, 1, 2, 3, 4, r5="x"))
    assert change == Patch((4,), ((0, 5, (50, "x", None)),), ())


def test_nothing_changed_is_an_empty_patch() -> None:
    assert patch(rows(1, 2), rows(1, 2)) == Patch((), (), ())
    assert patch([], []) == Patch((), (), ())


def test_a_window_of_other_rows_is_sent_whole() -> None:
    assert patch(rows(1, 2, 3), rows(4, 5, 6)) is None
    assert patch(rows(1, 2, 3), []) is None
    assert patch([], rows(1)) is None


@given(st.permutations(range(7)))
def test_as_many_rows_stay_as_can_keep_their_order(order: list[int]) -> None:
    wide = 100  # so wide that what stays is far smaller than the window
    old: Rows = [(row_id, (0,) * wide) for row_id in range(7)]
    change = patch(old, [(row_id, (0,) * wide) for row_id in order])
    longest = max(
        size for size in range(8) for chosen in combinations(order, size) if list(chosen) == sorted(chosen)
    )  # brute force: the longest of all subsequences that ascend
    if change is None:
        assert 7 - longest >= 6
    else:
        assert (len(change.removed), len(change.inserted)) == (7 - longest, 7 - longest)


CELLS = st.sampled_from([None, True, False, 0, 1, 0.0, -0.0, 1.0, "", "1", float("nan")])
WINDOWS = st.lists(st.integers(0, 12), unique=True, max_size=9).flatmap(
    lambda ids: st.tuples(*(st.tuples(st.just(row_id), st.tuples(CELLS, CELLS)) for row_id in ids)).map(list)
)


@given(WINDOWS, WINDOWS)
def test_a_patch_leads_to_the_new_window(old: Rows, new: Rows) -> None:
    change = patch(old, new)
    assert change is None or repr(patched(old, change)) == repr(new)


@given(WINDOWS, WINDOWS)
def test_a_patch_names_only_what_changed(old: Rows, new: Rows) -> None:
    change = patch(old, new)
    if change is None:
        return
    before = dict(old)
    assert not {row_id for position, (row_id, _) in enumerate(old) if position in change.removed} - before.keys()
    for position, column, value in change.updated:
        row_id = new[position][0]
        assert not same(before[row_id][column], value)


@pytest.mark.parametrize(
    ("value", "other"), [(1, 1.0), (1, True), (0, False), (0.0, -0.0), ("1", 1), (None, "None"), ("a", "b"), (None, 0)]
)
def test_values_that_look_different_on_the_wire_are_not_the_same(value: object, other: object) -> None:
    assert not same(value, other)
    assert not same((value, 1), (other, 1))


@pytest.mark.parametrize("value", [None, True, 1, 1.5, -0.0, "É", EPOCH, (1, "a", None)])
def test_equal_values_are_the_same(value: object) -> None:
    assert same(value, value)


def test_not_a_number_is_the_same_as_itself() -> None:
    assert same(float("nan"), float("nan"))
    assert same((float("nan"),), (float("nan"),))


@given(
    rows_before=st.integers(0, 200),
    rows_after=st.integers(0, 220),
    places=st.lists(st.integers(0, 150), max_size=12),
)
def test_rows_that_come_are_found_as_any_other_change_is(rows_before: int, rows_after: int, places: list[int]) -> None:
    kept: Rows = [(row_id, (row_id, "a", None)) for row_id in range(rows_before)]
    new = list(kept)
    for row_id, place in enumerate(places, 1000):
        new.insert(place, (row_id, (row_id, "b", None)))
    new = new[:rows_after]
    as_objects, as_values = patch(kept, new), patch([(row_id, tuple(list(values))) for row_id, values in kept], new)
    assert as_objects == as_values
    if as_objects is not None:
        assert patched(kept, as_objects) == new


@given(
    changes=st.lists(
        st.tuples(st.sampled_from(["come", "go", "move", "change"]), *[st.integers(0, 179)] * 2), max_size=8
    ),
    rows_after=st.integers(100, 190),
)
def test_rows_that_come_go_move_and_change_in_a_long_window_are_found(
    changes: list[tuple[str, int, int]], rows_after: int
) -> None:
    kept: Rows = [(row_id, (row_id, "a", None)) for row_id in range(180)]
    new = list(kept)
    for number, (kind, place, other) in enumerate(changes):
        row = new[place % len(new)]
        match kind:
            case "come":
                new.insert(place, (1000 + number, (0, "b", None)))
            case "go":
                new.remove(row)
            case "move":
                new.remove(row)
                new.insert(other, row)
            case "change":
                new[place % len(new)] = (row[0], (row[0], f"c{number}", None))
    new = new[:rows_after]
    change = patch(kept, new)
    assert change is not None
    assert patched(kept, change) == new
