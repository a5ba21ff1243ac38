"""From records to the tables and the join that fit them. Pure.

A column's type takes every value that was seen: what no type takes is left out, with the reason, so that no record
of the sample becomes a dead letter because of a column.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from livetables.config.declarations import JOIN_TYPE_VIEW
from livetables.formats.json import fault
from livetables.model.columns import TEXT_TYPE, ColumnType, inferred_types
from livetables.model.spec import NAME_PATTERN, Column, Table, joined_column_names

VIEW_NAME = JOIN_TYPE_VIEW


@dataclass(frozen=True)
class LeftOut:
    """A field that is no column, and why; `type` is what it could be, if somebody decides so: text takes most."""

    name: str
    why: str
    type: ColumnType = TEXT_TYPE


@dataclass(frozen=True)
class Proposal:
    """A table for a topic. Without columns, it cannot be one."""

    table: Table
    left_out: tuple[LeftOut, ...]
    records: int
    unreadable: int  # records that no table can have, for they are no JSON object
    values: Mapping[str, frozenset[Any]] = field(default_factory=dict)  # of columns that could be a key
    distinct: Mapping[str, float] = field(default_factory=dict)  # which share of a key's values differ


@dataclass(frozen=True)
class JoinProposal:
    """Two tables that share a column. `shared` is how many values were seen in both."""

    left: str
    right: str
    on: str
    shared: int


def proposed_tables(samples: Mapping[str, Sequence[bytes | None]]) -> list[Proposal]:
    """A table for each topic, given some of its records."""
    names = table_names(samples)
    return [_proposed(names[topic], topic, records) for topic, records in samples.items()]


def table_names(topics: Iterable[str]) -> dict[str, str]:
    """A legal name for each topic's table, each different, ignoring case. `final` would be published as the view is.

    What all topics begin with, as `shop.`, is left out.
    """
    topics = list(topics)
    beginning = os.path.commonprefix(topics).rpartition(".") if len(topics) > 1 else ("", "", "")  # noqa: RUF071
    taken = {VIEW_NAME.removesuffix("_ui")}
    names = {}
    for topic in topics:
        own = topic.removeprefix("".join(beginning[:2]))
        base = re.sub(r"[^A-Za-z0-9]+", "_", own).strip("_") or "table"
        base = base if base[0].isalpha() else f"t_{base}"
        candidates = (base, *(f"{base}_{number}" for number in range(2, len(taken) + 3)))
        names[topic] = next(name for name in candidates if name.lower() not in taken)
        taken.add(names[topic].lower())
    return names


def proposed_joins(proposals: Sequence[Proposal]) -> list[JoinProposal]:
    """The joins that are possible, the likeliest first: whose values are found on both sides.

    Left is the table in which the key is nearer to being unique, as a user's id is among users.
    """
    joins = []
    for place, one in enumerate(proposals):
        for other in proposals[place + 1 :]:
            for on in one.values.keys() & other.values.keys():
                left, right = (other, one) if other.distinct[on] > one.distinct[on] else (one, other)
                if _is_possible(left.table, right.table, on):
                    shared = len(one.values[on] & other.values[on])
                    joins.append(JoinProposal(left.table.name, right.table.name, on, shared))
    places = {proposal.table.name: place for place, proposal in enumerate(proposals)}

    def likelihood(join: JoinProposal) -> tuple[object, ...]:
        is_named_so = join.on.lower().endswith(("id", "key", "code"))
        return (not join.shared, not is_named_so, -join.shared, places[join.left], places[join.right], join.on)

    return sorted(joins, key=likelihood)


def _proposed(name: str, topic: str, records: Sequence[bytes | None]) -> Proposal:
    probe = Table(name, topic, (), f"{name}_ui")
    objects = [found for raw in records if (found := _object(raw, probe)) is not None]
    seen: dict[str, list[Any]] = {}
    for each in objects:
        for key, value in each.items():
            seen.setdefault(key, []).append(value)
    columns: list[Column] = []
    left_out: list[LeftOut] = []
    for key, values in seen.items():
        decided = _column(key, values, {column.name.lower() for column in columns})
        if isinstance(decided, Column):
            columns.append(decided)
        else:
            left_out.append(decided)
    keys = {
        column.name: [_as_key(value, column) for value in seen[column.name] if value is not None]
        for column in columns
        if column.kind.is_key
    }
    return Proposal(
        table=Table(name, topic, tuple(columns), f"{name}_ui"),
        left_out=tuple(left_out),
        records=len(records),
        unreadable=len(records) - len(objects),
        values={key: frozenset(values) for key, values in keys.items()},
        distinct={key: len(set(values)) / len(values) for key, values in keys.items()},
    )


def _object(raw: bytes | None, probe: Table) -> dict[str, Any] | None:
    """The record as the pipeline reads it; None for one that is a dead letter whatever the columns are."""
    if raw is None or fault(raw, probe):
        return None
    found: dict[str, Any] = json.loads(raw.decode())
    return found


def _column(name: str, values: Sequence[Any], taken: set[str]) -> Column | LeftOut:
    """The column for a field with these values, or why there is none."""
    given = [value for value in values if value is not None]
    seen = {type(value) for value in given}
    if not NAME_PATTERN.fullmatch(name):
        return LeftOut(name, "no name of a column: it may have letters, digits and _, and no digit first")
    if name.startswith("_") or name.lower() == "ts":
        return LeftOut(name, "the name is livetables' own; ts is the time of the record")
    if name.lower() in taken:
        return LeftOut(name, "differs from another column only in case")
    if not given:
        return LeftOut(name, "null in all records that were looked at")
    if seen & {dict, list}:
        return LeftOut(name, "an object or array, which no column takes")
    for column_type in inferred_types(seen):
        column = Column(name, column_type)
        if all(_fits(column, value) for value in given):
            return column
    return LeftOut(name, "some numbers are too large for any type of number")


def _as_key(value: Any, column: Column) -> Any:
    """The value in its column: text is what a number, true or false converts into."""
    return json.dumps(value) if column.kind.is_text and not isinstance(value, str) else value


def _fits(column: Column, value: Any) -> bool:
    """Whether the pipeline finds nothing wrong with the value."""
    raw = json.dumps({column.name: value}).encode()
    return fault(raw, Table("probe", "probe", (column,), "probe")) is None


def _is_possible(left: Table, right: Table, on: str) -> bool:
    types = {column.type for table in (left, right) for column in table.columns if column.name == on}
    names = [name.lower() for name in joined_column_names(left, right, on)]
    return len(types) == 1 and len(set(names)) == len(names)
