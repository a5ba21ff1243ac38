"""Values that are hard to compare, write and lower-case: what tests of Python against DuckDB are fed with."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pyarrow as pa
from hypothesis import strategies as st

from livetables.model.columns import kind_of
from livetables.server.viewports.row import Row, rows_of
from livetables.server.viewports.viewport import ROW, quoted

SCHEMA = pa.schema(
    [
        ("_id", pa.int64()),
        ("text", pa.string()),
        ("whole", pa.int64()),
        ("number", pa.float64()),
        ("flag", pa.bool_()),
        ("moment", pa.timestamp("us", "UTC")),
        ("other", pa.string()),
    ]
)

# Letters whose cases are of several characters, depend on what is beside them, or are known to some programs only.
LETTERS = (
    "aAeEtTzZ09 -.:éÉ"
    "\u00df\u1e9e\u0130\u0131iI\u017fsKk\u03a3\u03c3\u03c2\u01c4\u01c5\u01c6\u01f0\u0149\ufb01\u00c5\u00e5\u00c5\u00b5\u03bc\u039c\u0301\u0307\U0001f600\u13a0\uab70\u13f8\U00010400\U00010428\u10a0\u2d00\u0430\u0430\u1c90\u4e2d\u00a0"
    "'\"\\%_"
)
TEXTS = st.text(LETTERS, max_size=6) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=4
)
WHOLES = st.integers(-12, 120) | st.sampled_from(
    [2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 2**62, 10**18, 1000, 100]
)
NEGATIVE_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000000))[0]
NUMBERS = (
    st.floats(width=64)
    | st.integers(-8, 8).map(lambda each: each / 2)
    | st.sampled_from(
        [
            0.0,
            -0.0,
            float("nan"),
            NEGATIVE_NAN,
            float("inf"),
            float("-inf"),
            5e-324,
            1.7976931348623157e308,
            1e15,
            1e16,
            1e17,
            123456789012345680.0,
            1e-4,
            1e-5,
            9.999e22,
            0.1,
            1 / 3,
            100.0,
            2.0**53,
        ]
    )
)
EARLIEST, LATEST = datetime(1582, 10, 15), datetime(9999, 12, 31, 23, 59, 59, 999_999)
DAYS = st.integers(0, (LATEST - EARLIEST).days - 1).map(lambda days: EARLIEST + timedelta(days=days))
MOMENTS = st.one_of(
    st.datetimes(EARLIEST, LATEST),
    st.datetimes(EARLIEST, LATEST).map(lambda moment: moment.replace(microsecond=0)),
    st.datetimes(EARLIEST, LATEST).map(lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000)),
    DAYS,
    st.integers(-3, 3).map(lambda each: datetime(2026, 1, 31, 12) + timedelta(microseconds=each * 250_000)),
    st.sampled_from([EARLIEST, LATEST, datetime(1970, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999_999)]),
).map(lambda moment: moment.replace(tzinfo=UTC))
VALUES: Mapping[str, st.SearchStrategy[Any]] = {
    "text": TEXTS,
    "whole": WHOLES,
    "number": NUMBERS,
    "flag": st.booleans(),
    "moment": MOMENTS,
    "other": st.sampled_from(["", "a", "B", "10", "x e"]) | TEXTS,
}
RECORDS = st.fixed_dictionaries({name: st.none() | values for name, values in VALUES.items()})


def numbered(records: Sequence[Mapping[str, Any]]) -> pa.Table:
    """The records as a table with their numbers, from 0 on."""
    whole = [{"_id": number, **record} for number, record in enumerate(records)]
    rows = pa.Table.from_pylist(whole, schema=SCHEMA)
    return rows.add_column(0, ROW, pa.array(range(len(records)), pa.int64()))


class Database:
    """One table in DuckDB, as the store has its tables."""

    def __init__(self) -> None:
        self.connection = duckdb.connect(":memory:")
        self.connection.execute("SET GLOBAL TimeZone = 'UTC'")
        columns = [f"{ROW} BIGINT"] + [f"{quoted(each.name)} {kind_of(each.type).sql}" for each in SCHEMA]
        self.connection.execute(f"CREATE TABLE rows_of_it ({', '.join(columns)})")

    def fill(self, table: pa.Table) -> list[Row]:
        """Have these rows and no others; the rows as viewports keep them, read from the database again."""
        self.connection.execute("DELETE FROM rows_of_it")
        self.connection.register("given", table)
        self.connection.execute("INSERT INTO rows_of_it SELECT * FROM given")
        self.connection.unregister("given")
        found = self.connection.sql(f"SELECT * FROM rows_of_it ORDER BY {ROW}").to_arrow_table()
        return rows_of(found)
