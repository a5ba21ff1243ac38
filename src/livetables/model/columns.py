"""The types of columns: everything that differs between them, in Python, is described here once.

A type's name is the same everywhere: in a configuration, in the plan that Java reads, in frames and pages. What depends
on the record format is with the format: `formats/json.py` has the values of JSON that a type accepts. Java switches
over the names in the plan itself: `Type` and `Parser` in `jvm/java/MatchOperator.java` parse and pack a value, and
`jvm/java/FrameWriter.java` makes an Arrow column of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property
from math import copysign
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pyarrow as pa

ColumnType = Literal["string", "int64", "double", "bool"]  # that a table may declare
AnyColumnType = ColumnType | Literal["timestamp"]  # that a table or view has
Scalar = bool | int | float | str

EPOCH = datetime(1970, 1, 1)  # in UTC
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
NUMBER_PART = re.compile(r"[-+0-9.e]+", re.IGNORECASE)
TIME_PART = re.compile(r"[0-9T:. -]*[0-9][-:][0-9]?[0-9T:. -]*")


@dataclass(frozen=True, eq=False)
class ColumnKind:
    """A type of columns. In memory a value is a `str`, `int`, `float` or `bool`; a time is microseconds since 1970."""

    name: AnyColumnType
    arrow_type: Callable[[Any], pa.DataType]  # given the module pyarrow
    sql: str  # DuckDB's name of it
    # A filter's value, as sent, in this type: ValueError or OverflowError if it does not match, and what would.
    filter_value: Callable[[Scalar], object]
    example: str
    # What a quick filter finds: whether text may be part of a value, how it is searched for, and in which text of a
    # value, once as DuckDB makes it of a {column}, once the same in Python. OverflowError: only DuckDB can write it.
    may_contain: Callable[[str], bool]
    text_sql: str
    text: Callable[[Any], str]
    bounds: tuple[str, str]  # the least and the greatest value, as text that DuckDB takes for one
    needle: Callable[[str], str] = str
    is_text: bool = False
    has_nan: bool = False  # which is above all other values
    packed: str | None = None  # how Java packs a value, by `struct`; None: as its length and its UTF-8
    inferred_from: frozenset[type] = frozenset()  # the values of JSON, as Python reads them, that suggest this type
    is_key: bool = False  # whether views are proposed to join on it
    pandas: str | None = None  # the type of pandas that can be null; None: Arrow's own choice is right

    @cached_property
    def arrow(self) -> pa.DataType:
        """Return the Arrow type, as DuckDB returns it."""
        # Imported late: a configuration has column types too, and pyarrow takes longer to load than all that reads one.
        import pyarrow as pa

        return self.arrow_type(pa)


def _text(value: Scalar) -> str:
    if not isinstance(value, str):
        raise ValueError("not a text")
    value.encode()  # a lone surrogate is not valid text
    return value


def _whole_number(value: Scalar) -> int:
    if isinstance(value, bool) or not re.fullmatch("-?[0-9]+", str(value)):
        raise ValueError("not a whole number")
    number = int(value)
    if not INT64_MIN <= number <= INT64_MAX:
        raise OverflowError
    return number


def _number(value: Scalar) -> float:
    if isinstance(value, bool | str):
        raise ValueError("not a number")
    return float(value)


def _truth(value: Scalar) -> bool:
    if not isinstance(value, bool):
        raise ValueError("neither true nor false")
    return value


def _time(value: Scalar) -> datetime:
    if not isinstance(value, str):
        raise ValueError("not a text")
    moment = datetime.fromisoformat(value)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _double_text(value: float) -> str:
    return repr(value) if value == value else "-nan" if copysign(1, value) < 0 else "nan"


def _time_text(microseconds: int) -> str:
    text = (EPOCH + timedelta(microseconds=microseconds)).isoformat(" ")
    return text.rstrip("0") if "." in text else text


STRING = ColumnKind(
    "string",
    lambda arrow: arrow.string(),
    "VARCHAR",
    filter_value=_text,
    example="text",
    may_contain=lambda _: True,
    text_sql="{column}",
    text=str,
    bounds=("", "\U0010ffff"),
    is_text=True,
    inferred_from=frozenset({str}),
    is_key=True,
    pandas="StringDtype",
)
INT64 = ColumnKind(
    "int64",
    lambda arrow: arrow.int64(),
    "BIGINT",
    filter_value=_whole_number,
    example="a number",
    may_contain=lambda needle: NUMBER_PART.fullmatch(needle) is not None,
    text_sql="CAST({column} AS VARCHAR)",
    text=repr,
    bounds=(str(INT64_MIN), str(INT64_MAX)),
    packed=">q",
    inferred_from=frozenset({int}),
    is_key=True,
    pandas="Int64Dtype",
)
DOUBLE = ColumnKind(
    "double",
    lambda arrow: arrow.float64(),
    "DOUBLE",
    filter_value=_number,
    example="a number",
    may_contain=lambda needle: NUMBER_PART.fullmatch(needle) is not None,
    text_sql="CAST({column} AS VARCHAR)",
    text=_double_text,
    bounds=("-inf", "nan"),
    has_nan=True,
    packed=">d",
    inferred_from=frozenset({int, float}),
)
BOOL = ColumnKind(
    "bool",
    lambda arrow: arrow.bool_(),
    "BOOLEAN",
    filter_value=_truth,
    example="true or false",
    may_contain=lambda needle: any(needle.lower() in word for word in ("true", "false")),
    text_sql="CAST({column} AS VARCHAR)",
    text=lambda value: "true" if value else "false",
    bounds=("false", "true"),
    packed=">?",
    inferred_from=frozenset({bool}),
    pandas="BooleanDtype",
)
TIMESTAMP = ColumnKind(
    "timestamp",
    lambda arrow: arrow.timestamp("us", "UTC"),
    "TIMESTAMPTZ",
    filter_value=_time,
    example="ISO-8601 text, like 2026-01-31T12:00:00Z",
    may_contain=lambda needle: TIME_PART.fullmatch(needle) is not None,
    text_sql="CAST(CAST({column} AS TIMESTAMP) AS VARCHAR)",
    text=_time_text,
    bounds=("-infinity", "infinity"),
    needle=lambda needle: needle.replace("T", " "),
)

COLUMN_KINDS: Mapping[str, ColumnKind] = {kind.name: kind for kind in (STRING, INT64, DOUBLE, BOOL, TIMESTAMP)}
COLUMN_TYPES: tuple[ColumnType, ...] = tuple(kind.name for kind in COLUMN_KINDS.values() if kind.name != "timestamp")
TEXT_TYPE: ColumnType = "string"  # accepts every value of JSON but objects and arrays


def kind_of(data_type: pa.DataType) -> ColumnKind:
    """Return the kind of an Arrow type, which may be a timestamp of any unit; KeyError for a type that tables lack."""
    import pyarrow as pa  # late, see `ColumnKind.arrow`

    return TIMESTAMP if pa.types.is_timestamp(data_type) else _kinds_by_arrow_type()[data_type]


def column_type(data_type: pa.DataType) -> AnyColumnType:
    """Return the name of an Arrow type as clients know it; KeyError for a type that tables lack."""
    return kind_of(data_type).name


def declared_type(name: object) -> ColumnType | None:
    """Return the type of this name that a table may declare."""
    return next((known for known in COLUMN_TYPES if known == name), None)


def inferred_types(seen: AbstractSet[type]) -> tuple[ColumnType, ...]:
    """Return the types that may take values of JSON of these Python types, the likeliest first; text takes any mix."""
    found = tuple(name for name in COLUMN_TYPES if seen <= COLUMN_KINDS[name].inferred_from)
    return found or (TEXT_TYPE,)


@cache
def _kinds_by_arrow_type() -> Mapping[pa.DataType, ColumnKind]:
    return {kind.arrow: kind for kind in COLUMN_KINDS.values()}
