"""What every table must hold, from nothing but the records that were sent: Python's json and plain SQL in DuckDB.

Nothing here uses the product's own code but the names of its columns.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
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

    def __init__(self, records: Iterable[Sent]) -> None:
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


def parse(value: bytes | None, fields: dict[str, type]) -> list[Any] | None:
    """The values of a record's fields, or None for a dead letter."""
    if value is None:
        return None
    try:
        record = json.loads(value.decode("utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    values: list[Any] = []
    for name, kind in fields.items():
        found: Any = record.get(name)
        if found is None:
            values.append(None)
        elif kind is float and type(found) in (int, float):
            if abs(found) > 1.7976931348623157e308:
                return None
            values.append(float(found))
        elif kind is str and type(found) is str:
            # JSON can write half of a surrogate pair, which no text has: it becomes a question mark.
            values.append(found.encode("utf-8", errors="replace").decode("utf-8"))
        elif type(found) is kind and (not isinstance(found, int) or -(2**63) <= found < 2**63):
            values.append(found)
        else:
            return None
    return values


def _refuse(constant: str) -> None:
    raise ValueError(constant)
