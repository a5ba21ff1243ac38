"""A viewport: which rows of a table somebody looks at, how to query them, and what changed between two of them.

Three steps, all pure: `ViewOptions` say what is wanted, `window_query` is the SQL that finds it in the whole table, and
`patch` is the difference between what a client has and what it should have.

Every row has a number, `_row`, given in the order of arrival and kept for its life: rows that tie in a sort keep that
order, and clients know a row again by it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from operator import is_, lt
from typing import Any, Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from livetables.config.settings import choice
from livetables.model.columns import ColumnKind, Scalar, kind_of
from livetables.model.errors import RequestError

ROW = "_row"
MAX_WINDOW_ROWS = 10_001  # positions 0 to 10,000
MAX_TEXT_CHARACTERS = 1_000
MAX_FILTERS = 32
MAX_IN_VALUES = 1_000
MAX_SORTS = 8
MAX_OFFSET = 2**62
PUSHED_MAX = 1_000  # rows that are looked at to see how many were pushed out of a window
HEAD_ROWS = (32, 128)  # at the top of a window, among which all changes may be

Operator = Literal["equals", "contains", "starts_with", "<", ">", "between", "is_null", "in"]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Sort(_Value):
    """Order by a column. Nulls come last either way."""

    column: str
    descending: bool = False


class Filter(_Value):
    """Keep the rows whose column passes. A null passes `is_null` and nothing else.

    `value` is one value of the column's type; for `between` (both ends included) and `in`, a list; for `is_null`,
    nothing. A timestamp is ISO-8601 text, and an int64 may be text too, so that JavaScript can write a large one.
    """

    column: str
    op: Operator
    value: Scalar | list[Scalar] | None = None


class Selection(_Value):
    """What is wanted of a table: all filters must pass, and the quick filter finds its text in any column."""

    columns: list[str] | None = Field(default=None, description="the columns wanted, in order; all unless given")
    sort: list[Sort] = Field(default=[], max_length=MAX_SORTS)
    filters: list[Filter] = Field(default=[], max_length=MAX_FILTERS)
    quick: str = Field(default="", max_length=MAX_TEXT_CHARACTERS)
    # Set by the server alone, for a role from which it hides something: see `livetables.server.viewports.masking`.
    masked: bool = False

    @property
    def is_filtered(self) -> bool:
        return bool(self.filters or self.quick)


class ViewOptions(Selection):
    """A selection, and which of its rows are in view: `size` of them, from `offset` on."""

    offset: int = Field(default=0, ge=0, le=MAX_OFFSET)
    size: int = Field(default=300, ge=0, le=MAX_WINDOW_ROWS)
    interval_ms: int = Field(default=50, ge=10, le=10_000, description="at least, between two frames to a client")


@dataclass(frozen=True)
class Query:
    """SQL and the values of its parameters."""

    sql: str
    parameters: tuple[object, ...] = ()


@dataclass(frozen=True)
class Window:
    """The rows of a viewport at one time, with the number of rows that pass its filters in the whole table."""

    ids: tuple[int, ...]
    rows: pa.Table
    total: int


def chosen_columns(schema: pa.Schema, options: Selection) -> tuple[str, ...]:
    """The columns that a viewport shows."""
    if options.columns is None:
        return tuple(schema.names)
    if not options.columns:
        raise RequestError("unknown_column", "no column is asked for", "name at least one, or leave `columns` out")
    for name in options.columns:
        _check_column(schema, name)
    if len(set(options.columns)) < len(options.columns):
        raise RequestError("unknown_column", "a column is asked for twice", "name each column once")
    return tuple(options.columns)


def window_query(
    relation: str, schema: pa.Schema, options: ViewOptions, total: int, next_row: int, bytes_max: int | None = None
) -> Query:
    """SQL for the rows of a window, each with its `_row`, and, when the view is filtered, `_total` beside them.

    With `bytes_max` the window ends after the first row with which its text is longer than that.

    `total` is the table's number of rows and `next_row` the `_row` that its next one gets, or more. A filtered view
    that finds nothing in its window gives one row whose `_row` is null, so that its `_total` is known.
    """
    columns = ", ".join(f"t.{quoted(name)}" for name in (ROW, *chosen_columns(schema, options)))
    order = _order(schema, options.sort)
    size, offset = options.size, options.offset
    if not options.is_filtered:
        if options.sort:
            page = f"SELECT {ROW} FROM {relation} ORDER BY {order} LIMIT {size} OFFSET {offset}"  # noqa: S608
        elif total == next_row:  # no row was ever deleted: the rows are numbered from 0 without a gap
            page = f"SELECT unnest(range({offset}, {min(offset + size, total)})) AS {ROW}"
        else:  # the row at some position has at least that number, and at most as many more as were deleted
            bound = offset + size + next_row - total
            page = (
                f"SELECT {ROW} FROM {relation} WHERE {ROW} < {bound} "  # noqa: S608
                f"ORDER BY {ROW} LIMIT {size} OFFSET {offset}"
            )
        page = _fitting(relation, schema, options, page, bytes_max)
        return Query(f"SELECT {columns} FROM {relation} t WHERE {ROW} IN ({page}) ORDER BY {order}")  # noqa: S608
    condition, parameters = _condition(schema, options)
    keys = ", ".join(dict.fromkeys([ROW, *(quoted(sort.column) for sort in options.sort)]))
    fitting = _fitting(relation, schema, options, f"SELECT {ROW} FROM page", bytes_max)  # noqa: S608
    return Query(
        f"WITH matching AS MATERIALIZED (SELECT {keys} FROM {relation} WHERE {condition}), "  # noqa: S608
        f"page AS (SELECT {ROW} FROM matching ORDER BY {order} LIMIT {size} OFFSET {offset}) "
        f"SELECT {columns}, c._total FROM (SELECT count(*) AS _total FROM matching) c "
        f"LEFT JOIN (SELECT * FROM {relation} WHERE {ROW} IN ({fitting})) t ON true ORDER BY {order}",
        parameters,
    )


def _fitting(relation: str, schema: pa.Schema, options: ViewOptions, page: str, bytes_max: int | None) -> str:
    """The rows of a page, in order, until their text has so many bytes."""
    chosen = [schema.field(name) for name in chosen_columns(schema, options)]
    texts = [f"coalesce(strlen({quoted(field.name)}), 0)" for field in chosen if pa.types.is_string(field.type)]
    if bytes_max is None or not texts:
        return page
    # Lengths first: what is summed in order is kept in memory, and the texts themselves may be too large for that.
    keys = ", ".join(dict.fromkeys([ROW, *(quoted(sort.column) for sort in options.sort)]))
    sizes = f"SELECT {keys}, {' + '.join(texts)} AS _bytes FROM {relation} WHERE {ROW} IN ({page})"  # noqa: S608
    rows = f"ORDER BY {_order(schema, options.sort)} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
    return (
        f"SELECT {ROW} FROM (SELECT {ROW}, sum(_bytes) OVER ({rows}) AS _before FROM ({sizes})) "  # noqa: S608
        f"WHERE coalesce(_before, 0) <= {bytes_max}"
    )


def scan_query(relation: str, schema: pa.Schema, selection: Selection) -> Query:
    """SQL for all rows of a selection."""
    columns = ", ".join(quoted(name) for name in chosen_columns(schema, selection))
    condition, parameters = _condition(schema, selection)
    order = _order(schema, selection.sort)
    return Query(f"SELECT {columns} FROM {relation} WHERE {condition} ORDER BY {order}", parameters)  # noqa: S608


def quoted(name: str) -> str:
    """A name as SQL takes it."""
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True)
class Patch:
    """How one window becomes the next, in this order:

    1. `removed`: positions in the old window, ascending; those rows go
    2. `inserted`: (position in the new window, row id, values), ascending; those rows come
    3. `updated`: (position in the new window, column's position, value); those cells change
    """

    removed: tuple[int, ...]
    inserted: tuple[tuple[int, int, tuple[Any, ...]], ...]
    updated: tuple[tuple[int, int, Any], ...]

    @property
    def is_empty(self) -> bool:
        return not (self.removed or self.inserted or self.updated)


Rows = Sequence[tuple[int, tuple[Any, ...]]]


def patch(old: Rows, new: Rows) -> Patch | None:
    """The difference between two windows of (row id, values), or None where sending the new one whole is shorter.

    The rows that stay are as many as can keep their order; a row that moved is removed and inserted.
    """
    old_head, new_head, old_end = _heads(old, new)
    below = tuple(range(old_end, len(old)))
    if old_head == 0:  # rows have come on top, and nothing else has changed
        return _shorter(Patch(below, tuple([(place, *new[place]) for place in range(new_head)]), ()), new)
    old, window = old[:old_head], new
    new = new[:new_head]
    old_position = {row_id: position for position, (row_id, _) in enumerate(old)}
    common = [(position, old_position[row_id]) for position, (row_id, _) in enumerate(new) if row_id in old_position]
    places = [before for _, before in common]
    is_in_order = all(map(lt, places, places[1:]))  # nearly always
    staying_places = range(len(places)) if is_in_order else _longest_increasing(places)
    kept = {common[index][0]: common[index][1] for index in staying_places}
    staying = set(kept.values())
    removed = tuple(position for position in range(len(old)) if position not in staying)
    inserted = tuple(
        (position, row_id, values) for position, (row_id, values) in enumerate(new) if position not in kept
    )
    updated = tuple(
        (position, column, value)
        for position, before in kept.items()
        if new[position][1] is not old[before][1] and not same(new[position][1], old[before][1])
        for column, (value, was) in enumerate(zip(new[position][1], old[before][1], strict=True))
        if not same(value, was)
    )
    return _shorter(Patch(removed + below, inserted, updated), window)


def _shorter(change: Patch, new: Rows) -> Patch | None:
    """The patch, if it is shorter than the window that it makes."""
    width = len(new[0][1]) + 1 if new else 1
    cells = len(change.removed) + len(change.inserted) * (width + 1) + len(change.updated) * 3
    return change if cells < max(1, len(new) * width) else None


def _heads(old: Rows, new: Rows) -> tuple[int, int, int]:
    """How many rows at the top of both windows have to be compared, and where the rows end that are below them in both.

    Most often rows come at the top, or near it, and push others out: everything between is the same objects, which
    takes a fraction of the time to see.
    """
    if not old or not new:
        return len(old), len(new), len(old)
    last, top = new[-1], old[0]
    pushed = next((count for count in range(min(len(old), PUSHED_MAX)) if old[-1 - count] is last), None)
    if pushed is not None:
        end = len(old) - pushed
        on_top = next((count for count in range(min(len(new), PUSHED_MAX)) if new[count] is top), None)
        for new_head in HEAD_ROWS if on_top is None else (on_top, *HEAD_ROWS):
            old_head = end - (len(new) - new_head)
            if new_head > len(new) or old_head > end:
                break
            if old_head >= 0 and all(map(is_, islice(new, new_head, None), islice(old, old_head, end))):
                return old_head, new_head, end
    return len(old), len(new), len(old)


def same(value: object, other: object) -> bool:
    """Whether two encoded values are the same on the wire: 1, 1.0 and true are three, 0.0 and -0.0 two values."""
    return repr(value) == repr(other)


def _longest_increasing(values: Sequence[int]) -> list[int]:
    """The indices of a longest increasing subsequence."""
    tails: list[int] = []  # the smallest value that ends an increasing run of each length
    ends: list[int] = []  # its index
    before: list[int | None] = []
    for index, value in enumerate(values):
        length = bisect_left(tails, value)
        before.append(ends[length - 1] if length else None)
        if length == len(tails):
            tails.append(value)
            ends.append(index)
        else:
            tails[length], ends[length] = value, index
    chain: list[int] = []
    last = ends[-1] if ends else None
    while last is not None:
        chain.append(last)
        last = before[last]
    return chain[::-1]


def _order(schema: pa.Schema, sorts: Sequence[Sort]) -> str:
    for sort in sorts:
        _check_column(schema, sort.column)
    keys = [f"{quoted(sort.column)} {'DESC' if sort.descending else 'ASC'} NULLS LAST" for sort in sorts]
    return ", ".join([*keys, f"{ROW} ASC"])


def _check_column(schema: pa.Schema, name: str) -> ColumnKind:
    if name not in schema.names:
        raise RequestError("unknown_column", f"the table has no column {_shown(name)}", choice(name, schema.names))
    return kind_of(schema.field(name).type)


def _condition(schema: pa.Schema, options: Selection) -> tuple[str, tuple[object, ...]]:
    """The condition of all filters, with its parameters."""
    conditions: list[str] = []
    parameters: list[object] = []
    for each in options.filters:
        sql, values = _filter(each, _check_column(schema, each.column))
        conditions.append(sql)
        parameters += values
    if options.quick:
        sql, values = _quick_filter(schema, options.quick)
        conditions.append(sql)
        parameters += values
    return " AND ".join(f"({condition})" for condition in conditions) or "true", tuple(parameters)


def _filter(each: Filter, kind: ColumnKind) -> tuple[str, list[object]]:
    column, cast = quoted(each.column), f"CAST(? AS {kind.sql})"
    values = filter_values(each, kind)
    match each.op:
        case "is_null":
            return f"{column} IS NULL", []
        case "equals":
            return f"{column} = {cast}", values
        case "<" | ">":
            return f"{column} {each.op} {cast}", values
        case "between":
            return f"{column} BETWEEN {cast} AND {cast}", values
        case "in":
            return f"{column} IN ({', '.join([cast] * len(values))})", values
        case "contains" | "starts_with":
            return _finds(each.op, column, str(values[0]))


def filter_values(each: Filter, kind: ColumnKind) -> list[object]:
    """The values of a filter in its column's type."""
    values = [_typed(each, kind, value) for value in _operands(each)]
    if each.op in ("contains", "starts_with") and not kind.is_text:
        raise RequestError(
            "bad_filter", f"{each.op} needs a string column; {each.column} is {kind.name}", "use equals or between"
        )
    return values


def _operands(each: Filter) -> list[Scalar]:
    """The values of a filter, as many as its operator takes."""
    takes_list = each.op in ("between", "in")
    if each.op == "is_null":
        if each.value is not None:
            raise RequestError("bad_filter", f"is_null on {each.column} takes no value", "leave `value` out")
        return []
    if isinstance(each.value, list) != takes_list or each.value is None:
        wanted = "a list" if takes_list else "one value"
        raise RequestError("bad_filter", f"{each.op} on {each.column} needs {wanted}", f"give {wanted} as `value`")
    values = each.value if isinstance(each.value, list) else [each.value]
    if each.op == "between" and len(values) != 2:
        raise RequestError("bad_filter", f"between on {each.column} needs two values", "give [lowest, highest]")
    if each.op == "in" and not 1 <= len(values) <= MAX_IN_VALUES:
        raise RequestError(
            "limit", f"in on {each.column} has {len(values)} values", f"give 1 to {MAX_IN_VALUES} values"
        )
    return values


def _typed(each: Filter, kind: ColumnKind, value: Scalar) -> object:
    """A filter's value in its column's type."""
    if isinstance(value, str) and len(value) > MAX_TEXT_CHARACTERS:
        raise RequestError(
            "limit", f"a value for {each.column} is too long", f"give at most {MAX_TEXT_CHARACTERS} characters"
        )
    try:
        return kind.filter_value(value)
    except (ValueError, OverflowError):
        raise RequestError(
            "bad_filter",
            f"{_shown(value)} does not match {each.column}, which is {kind.name}",
            f"give {kind.example}",
        ) from None


def _finds(op: Literal["contains", "starts_with"], text: str, needle: str) -> tuple[str, list[object]]:
    """Search text whatever its case. Lower-casing costs as much as searching, so it is left out where it can be."""
    if has_case(needle):
        return f"{op}(lower({text}), lower(?))", [needle]
    return f"{op}({text}, ?)", [needle]


def has_case(text: str) -> bool:
    return text.lower() != text.upper()


def is_searched(column: str, kind: ColumnKind, needle: str) -> bool:
    """Whether a quick filter looks into a column. Columns that begin with `_` are for programs, and not searched.

    Numbers are searched for what can be part of one, and times for what looks like part of a date or time.
    """
    return not column.startswith("_") and kind.may_contain(needle)


def _quick_filter(schema: pa.Schema, needle: str) -> tuple[str, list[object]]:
    """The needle anywhere in a row's text."""
    conditions: list[str] = []
    parameters: list[object] = []
    for field in schema:
        kind = kind_of(field.type)
        if is_searched(field.name, kind, needle):
            text = kind.text_sql.format(column=quoted(field.name))
            condition, values = _finds("contains", text, kind.needle(needle))
            conditions.append(condition)
            parameters += values
    return " OR ".join(conditions) or "false", parameters


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
