"""The tables and views that a configuration declares, over the presets that livetables ships."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any

from livetables.config.settings import Problems, Section, choice, quoted
from livetables.model.columns import COLUMN_TYPES, declared_type
from livetables.model.joins import DEFAULT_JOIN, JOIN_CURE, JOIN_KINDS, LOOKBACK_CURE, join_called
from livetables.model.spec import (
    CONTROL_TABLES,
    DEAD_LETTERS,
    NAME_PATTERN,
    TIMESTAMPS,
    TOPIC_CURE,
    Column,
    GenerationSpec,
    Retain,
    Start,
    Table,
    Timestamp,
    View,
    is_topic_name,
    joined_column_names,
)

TABLE_KEYS = ("topic", "publish", "aliases", "start", "strict", "timestamp", "columns", "retain")
RETAIN_KEYS = ("rows", "days", "megabytes")
DAY_SECONDS = 24 * 60 * 60
VIEW_KEYS = ("join", "left", "right", "on", "aliases", "lookback_seconds", "columns")
JOIN_TYPE_VIEW = "final_ui"  # `joinType` in control messages means its join, wherever it is declared
ALWAYS_ASOF_VIEW = "user_account"  # never follows `joinType`, not even where it is the only view
STATUS_TABLES = (*CONTROL_TABLES, DEAD_LETTERS)

# Where two presets declare the same key, the first one here wins.
PRESETS = {
    "default": """
        [tables.users]
        topic = "user"
        publish = "users_ui"
        aliases = ["user"]
        columns = { userId = "string", name = "string", email = "string", age = "int64" }

        [tables.accounts]
        topic = "account"
        publish = "accounts_ui"
        aliases = ["account"]
        columns = { userId = "string", accountType = "string", balance = "double" }

        [views.final_ui]
        join = "left"
        left = "users"
        right = "accounts"
        on = "userId"
    """,
    "asof": """
        [tables.users]
        topic = "user"
        publish = "user"
        columns = { userId = "string", name = "string", email = "string", age = "int64" }

        [tables.accounts]
        topic = "account"
        publish = "account"
        columns = { userId = "string", accountType = "string", balance = "double" }

        [views.user_account]
        join = "asof"
        left = "users"
        right = "accounts"
        on = "userId"

        [views.user_account.columns]
        userId = "userId"
        accountType = "accountType"
        balance = "balance"
        ts = "accounts_ts"
        name = "name"
        email = "email"
        age = "age"
    """,
}


def with_presets(document: dict[str, Any], presets: Iterable[str]) -> dict[str, Any]:
    """Return the document; keys of tables and views that it does not have come from the presets."""
    merged = dict(document)
    for preset in (tomllib.loads(text) for name, text in PRESETS.items() if name in presets):
        for kind in ("tables", "views"):
            merged[kind] = _over(preset[kind], merged[kind])
    return merged


def _over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = {**below, **above}
    for name in below.keys() & above.keys():
        if isinstance(above[name], dict):
            merged[name] = {**below[name], **above[name]}
    return merged


def read_spec(tables: Section, views: Section, default_start: Start, problems: Problems) -> GenerationSpec:
    """Return the tables and views. Relations between them are checked once each of them is valid by itself."""
    spec = GenerationSpec(
        tables=tuple(_table(name, tables.section(name), default_start) for name in tables.raw),
        views=tuple(_view(name, views.section(name)) for name in views.raw),
        join_type_view=_join_type_view(views.raw),
    )
    for section in (tables, views):
        for name in section.raw:
            _check_name(section, name, name)
    if not tables.raw:
        problems.add("tables", "none is declared", 'add a [tables.<name>] section, or use presets = ["default"]')
    if not problems:
        _check_names_unique(spec, problems)
        for view in spec.views:
            _check_view(view, spec, views.section(view.name))
    return spec


def _join_type_view(views: Collection[str]) -> str | None:
    """Return the view that `joinType` means: the default preset's, or else the only one."""
    if JOIN_TYPE_VIEW in views:
        return JOIN_TYPE_VIEW
    return next((view for view in views if view != ALWAYS_ASOF_VIEW), None) if len(views) == 1 else None


def _table(name: str, section: Section, default_start: Start) -> Table:
    section.only(TABLE_KEYS)
    if name.startswith("_"):
        section.add("topic", f"the table's name {quoted(name)} is reserved", "do not begin a table's name with _")
    topic = section.text("topic")
    if topic and not is_topic_name(topic):
        section.add("topic", f"Kafka has no topic named {quoted(topic)}", TOPIC_CURE)
    publish = section.text("publish", f"{name}_ui")
    if publish != f"{name}_ui":
        _check_name(section, "publish", publish)
    if not section.raw.get("columns", {}):
        section.add(
            "columns", "a table needs at least one column", f'add <column> = "string" under [{section.key}.columns]'
        )
    return Table(
        name=name,
        topic=topic,
        columns=_columns(section.section("columns")),
        publish=publish,
        aliases=_aliases(section),
        start=_start(section, default_start),
        strict=section.switch("strict", False),
        timestamp=_timestamp(section),
        retain=_retain(section.section("retain")),
    )


def _retain(section: Section) -> Retain | None:
    section.only(RETAIN_KEYS)
    rows, days, megabytes = (section.count(key, None) for key in RETAIN_KEYS)
    if rows is days is megabytes is None:
        return None
    return Retain(rows, days and days * DAY_SECONDS, megabytes and megabytes * 1024**2)


def _columns(section: Section) -> tuple[Column, ...]:
    columns = []
    seen: dict[str, str] = {}
    for name, type_name in section.raw.items():
        _check_name(section, name, name)
        if name.startswith("_") or name.lower() == "ts":
            section.add(
                name, "the name is reserved", "leave it out: ts and names that start with _ are livetables' own"
            )
        if name.lower() in seen:
            section.add(name, f'differs from "{seen[name.lower()]}" only in case', "leave one of them out")
        seen[name.lower()] = name
        column_type = declared_type(type_name)
        if column_type is None:
            section.add(name, f"unknown type {quoted(type_name)}", f"use one of {', '.join(COLUMN_TYPES)}")
        else:
            columns.append(Column(name, column_type))
    return tuple(columns)


def _start(section: Section, default: Start) -> Start:
    value = section.raw.get("start", default)
    if value == "earliest" or value == "latest":
        return "earliest" if value == "earliest" else "latest"
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            cure = "use earliest, latest or a timestamp such as 2024-05-31T12:00:00Z"
            section.add("start", f"unknown start {quoted(value)}", cure)
            return default
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value
    cure = "end the timestamp with Z or an offset such as +02:00: 2024-05-31T12:00:00Z"
    section.add("start", "is not a timestamp with a time zone", cure)
    return default


def _timestamp(section: Section) -> Timestamp:
    value = section.raw.get("timestamp", "kafka")
    known = next((each for each in TIMESTAMPS if each == value), None)
    if known is None:
        section.add("timestamp", f"unknown timestamp {quoted(value)}", f"use one of {', '.join(TIMESTAMPS)}")
    return known or "kafka"


def _view(name: str, section: Section) -> View:
    section.only(VIEW_KEYS)
    join_name = section.text("join")
    join = join_called(join_name) or DEFAULT_JOIN.name
    if join_name and join_called(join_name) is None:
        section.add("join", f"unknown join {quoted(join_name)}", JOIN_CURE)
    lookback_seconds = section.count("lookback_seconds", None)
    if lookback_seconds is not None and not JOIN_KINDS[join].has_lookback:
        section.add("lookback_seconds", f"{join} joins have none", f"remove it, or use {LOOKBACK_CURE}")
    return View(
        name=name,
        join=join,
        left=section.text("left"),
        right=section.text("right"),
        on=section.text("on"),
        aliases=_aliases(section),
        lookback_seconds=lookback_seconds,
        columns=_chosen_columns(section.section("columns")) if "columns" in section.raw else None,
    )


def _chosen_columns(section: Section) -> tuple[tuple[str, str], ...]:
    """Return the columns that a view shows; whether its tables have them is checked when all tables are known."""
    seen: dict[str, str] = {}
    for name in section.raw:
        _check_name(section, name, name)
        if name.startswith("_"):
            section.add(name, "the name is reserved", "do not begin a column's name with _")
        if name.lower() in seen:
            section.add(name, f'differs from "{seen[name.lower()]}" only in case', "leave one of them out")
        seen[name.lower()] = name
    return tuple((name, section.text(name)) for name in section.raw)


def _aliases(section: Section) -> tuple[str, ...]:
    aliases = section.texts("aliases")
    for alias in aliases:
        _check_name(section, "aliases", alias)
    return aliases


def _check_name(section: Section, key: str, name: str) -> None:
    if name and not NAME_PATTERN.fullmatch(name):
        section.add(key, f"{quoted(name)} is not a name", "use letters, digits and _, and no digit first")


def _check_names_unique(spec: GenerationSpec, problems: Problems) -> None:
    """Check that published names, view names and aliases are unique: they are one namespace, ignoring case."""
    tables: dict[str, str] = {}
    taken = {name: "a status table" for name in STATUS_TABLES}
    for table in spec.tables:
        _claim(tables, table.name, f"tables.{table.name}", problems)
        _claim(taken, table.publish, f"tables.{table.name}.publish", problems)
        for alias in table.aliases:
            _claim(taken, alias, f"tables.{table.name}.aliases", problems)
    for view in spec.views:
        _claim(taken, view.name, f"views.{view.name}", problems)
        for alias in view.aliases:
            _claim(taken, alias, f"views.{view.name}.aliases", problems)


def _claim(taken: dict[str, str], name: str, key: str, problems: Problems) -> None:
    if name.lower() in taken:
        cure = "choose another name; case does not count"
        problems.add(key, f"the name {quoted(name)} is taken by {taken[name.lower()]}", cure)
    taken[name.lower()] = key


def _check_view(view: View, spec: GenerationSpec, section: Section) -> None:
    tables = {table.name: table for table in spec.tables}
    unknown = [side for side in ("left", "right") if getattr(view, side) not in tables]
    for side in unknown:
        name = getattr(view, side)
        section.add(side, f"there is no table {quoted(name)}", choice(name, tables))
    if unknown:
        return
    left, right = tables[view.left], tables[view.right]
    if left is right:
        section.add("right", "is the same table as left", "name another table")
        return
    key_types = []
    for table in (left, right):
        columns = {column.name: column.type for column in table.columns}
        if view.on in columns:
            key_types.append(columns[view.on])
        else:
            cure = choice(view.on, columns)
            section.add("on", f"{quoted(view.on)} is not a column of tables.{table.name}", cure)
    if len(set(key_types)) == 2:
        cure = f"give tables.{left.name}.columns and tables.{right.name}.columns the same type for it"
        section.add("on", f"{quoted(view.on)} is {key_types[0]} on the left and {key_types[1]} on the right", cure)
    names = [name.lower() for name in joined_column_names(left, right, view.on)]
    for name in sorted({name for name in names if names.count(name) > 1}):
        cure = f"leave the column out of tables.{left.name} or tables.{right.name}, or name the table otherwise"
        section.add("right", f'the joined columns would have "{name}" twice', cure)
    known = [name for name in joined_column_names(left, right, view.on) if not name.startswith("_")]
    if view.columns == ():
        section.add("columns", "a view needs at least one column", "name some, or leave columns out to have all")
    for name, source in view.columns or ():
        if source not in known:
            section.add(f"columns.{name}", f"there is no joined column {quoted(source)}", choice(source, known))
