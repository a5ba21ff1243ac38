"""What every table must hold, from nothing but the records that were sent: Python's json and plain SQL in DuckDB.

Nothing here uses the product's own code but the names of its columns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

import duckdb
import pyarrow as pa

Side = Literal["users", "accounts"]

FIELDS: dict[Side, dict[str, type]] = {
    "users": {"userId": str, "name": str, "email": str, "age": int},
    "accounts": {"userId": str, "accountType": str, "balance": float},
}
TIME_FIRST = datetime(1582, 10, 15, tzinfo=UTC)
TIME_LAST = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
SQL_TYPES = {str: "VARCHAR", int: "BIGINT", float: "DOUBLE"}
ARROW_TYPES = {str: pa.string(), int: pa.int64(), float: pa.float64()}


@dataclass(frozen=True)
class Sent:
    """A record at the place Kafka gave it."""

    side: Side
    partition: int
    offset: int
    timestamp_ms: int
    value: bytes | None


@dataclass(frozen=True)
class Limit:
    """How much of a table is kept: the newest records by (ts, p, o)."""

    rows: int
    seconds: int

    def kept(self, side: Side) -> str:
        return f"""SELECT p, o FROM {side}
            WHERE ts >= (SELECT max(ts) FROM {side}) - INTERVAL {self.seconds} SECOND
            ORDER BY ts DESC, p DESC, o DESC LIMIT {self.rows}"""


USER = "u.userId, u.name, u.email, u.age"
JOINED = f"u.p, u.o, a.p, a.o, {USER}, a.accountType, a.balance, u.ts, a.ts"
LATEST_ACCOUNTS = """(SELECT * FROM accounts WHERE userId IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY userId ORDER BY ts DESC, p DESC, o DESC) = 1)"""
JOINS = {
    "inner": f"SELECT {JOINED} FROM users u JOIN accounts a ON u.userId = a.userId",
    "left": f"SELECT {JOINED} FROM users u LEFT JOIN accounts a ON u.userId = a.userId",
    "natural": f"SELECT {JOINED} FROM users u LEFT JOIN {LATEST_ACCOUNTS} a ON u.userId = a.userId",
    "asof": f"""SELECT {JOINED.replace("u.userId", "a.userId")}
        FROM accounts a LEFT JOIN users u ON u.userId = a.userId AND u.ts <= a.ts
        QUALIFY row_number() OVER (PARTITION BY a.p, a.o ORDER BY u.ts DESC, u.p DESC, u.o DESC) = 1""",
}


class Oracle:
    """The content of every table, as sorted lists of plain tuples."""

    def __init__(self, records: Iterable[Sent], limits: Mapping[Side, Limit] | None = None) -> None:
        self.dead: dict[Side, list[Sent]] = {"users": [], "accounts": []}
        self._database = duckdb.connect()
        for side, fields in FIELDS.items():
            columns = ", ".join(f"{name} {SQL_TYPES[kind]}" for name, kind in fields.items())
            self._database.execute(f"CREATE TABLE {side} (p BIGINT, o BIGINT, ts TIMESTAMPTZ, {columns})")
        self._database.execute("SET TimeZone = 'UTC'")
        rows: dict[Side, list[dict[str, Any]]] = {"users": [], "accounts": []}
        for record in records:
            fields = FIELDS[record.side]
            parsed = parse(record.value, fields)
            if parsed is None:
                self.dead[record.side].append(record)
                continue
            ts = time_of(record.timestamp_ms)
            values = dict(zip(fields, parsed, strict=True))
            rows[record.side].append({"p": record.partition, "o": record.offset, "ts": ts, **values})
        for side, fields in FIELDS.items():
            types = {"p": ARROW_TYPES[int], "o": ARROW_TYPES[int], "ts": pa.timestamp("ms", tz="UTC")}
            types |= {name: ARROW_TYPES[kind] for name, kind in fields.items()}
            # As Arrow: row by row takes DuckDB a millisecond each.
            self._database.register("valid", pa.Table.from_pylist(rows[side], pa.schema(list(types.items()))))
            self._database.execute(f"INSERT INTO {side} SELECT * FROM valid")
        for side, limit in (limits or {}).items():
            self._database.execute(f"DELETE FROM {side} WHERE (p, o) NOT IN (SELECT p, o FROM ({limit.kept(side)}))")

    def table(self, side: Side) -> list[tuple[Any, ...]]:
        return in_order(self._database.execute(f"SELECT p, o, {', '.join(FIELDS[side])}, ts FROM {side}").fetchall())

    def join(self, kind: str) -> list[tuple[Any, ...]]:
        return in_order(self._database.execute(JOINS[kind]).fetchall())


def in_order(rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows sorted by all their values, nulls first."""
    return sorted(rows, key=lambda row: [(value is not None, value) for value in row])


def time_of(timestamp_ms: int) -> datetime:
    """The time of a record: nearest to its Kafka timestamp from the first day of the calendar to the end of 9999."""
    try:
        time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return TIME_FIRST if timestamp_ms < 0 else TIME_LAST
    return min(max(time, TIME_FIRST), TIME_LAST)


def parse(value: bytes | None, fields: dict[str, type], *, strict: bool = False) -> list[Any] | None:
    """The values of a record's fields, or None for a dead letter."""
    if value is None:
        return None
    try:
        record = json.loads(value.decode("utf-8"), parse_constant=_refuse, parse_int=Written, parse_float=Written)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    values: list[Any] = []
    for name, kind in fields.items():
        found = converted(record.get(name), kind, strict=strict)
        if found is None and record.get(name) is not None:
            return None
        values.append(found)
    return values


@dataclass(frozen=True)
class Written:
    """A number as a record has it."""

    text: str


def converted(value: Any, kind: type, *, strict: bool) -> Any:
    """What a value of a record is in a column, by docs/CONFIGURATION.md; None for a dead letter, and for null."""
    if isinstance(value, str) and kind is not str:
        # "Text converts where it would be JSON of that type without its quotes."
        if strict or not re.fullmatch(r"true|false|-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", value, re.ASCII):
            return None
        value = {"true": True, "false": False}.get(value, Written(value))
    if kind is bool:
        return value if isinstance(value, bool) else None
    if kind is str and isinstance(value, str):
        # JSON can write half of a surrogate pair, which no text has: it becomes a question mark.
        return value.encode("utf-8", errors="replace").decode("utf-8")
    if kind is str and isinstance(value, bool) and not strict:
        return "true" if value else "false"
    if not isinstance(value, Written):
        return None
    if kind is str:
        return None if strict else value.text
    if kind is float:
        return float(value.text) if abs(float(value.text)) <= 1.7976931348623157e308 else None
    return None if strict and set(value.text) & set(".eE") else _whole(value.text)


def _whole(text: str) -> int | None:
    """The whole number that is written so, if it is one from -2^63 to 2^63 - 1."""
    try:
        number = Decimal(text)
    except InvalidOperation:  # an exponent of more digits than Decimal takes
        return 0 if not set(re.split("[eE]", text)[0]) & set("123456789") else None
    fits = -(2**63) <= number < 2**63 and number == number.to_integral_value()
    return int(number) if fits else None


def _refuse(constant: str) -> None:
    raise ValueError(constant)
