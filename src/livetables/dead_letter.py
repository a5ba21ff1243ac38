"""Why a record is no row: Spark decides that it is not, this names the field and what is wrong with it."""

from __future__ import annotations

import json
import math
from typing import Any

from livetables.spec import Column, Table

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
SHOWN_CHARACTERS = 60


def reason(raw: bytes | None, table: Table) -> str:
    """One sentence that names what is wrong with a dead record."""
    return fault(raw, table) or "the record does not fit the table: it is JSON, but Spark could not read it"


def fault(raw: bytes | None, table: Table) -> str | None:
    """What is wrong with a record; None for one in which nothing is found."""
    if raw is None:
        return "the value is null: a record needs a JSON object as its value"
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"the value is not UTF-8: byte {error.start} is 0x{raw[error.start]:02x}"
    if not text.strip():
        return "the value is empty: a record needs a JSON object as its value"
    try:
        record = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        return "malformed JSON: nested too deeply"
    except ValueError as error:
        return f"malformed JSON: {error}"
    if not isinstance(record, dict):
        return f"not a JSON object but {_describe(record)}"
    try:
        faults = [found for column in table.columns if (found := _fault(column, record.get(column.name)))]
    except RecursionError:  # to show a value takes a little more of the stack than to read it
        return "malformed JSON: nested too deeply"
    return "; ".join(faults) or None


def readable(raw: bytes | None) -> str | None:
    """The raw value as text; bytes that are no text are shown as escapes, so that nothing is lost."""
    return None if raw is None else raw.decode("utf-8", errors="backslashreplace")


def _fault(column: Column, value: Any) -> str | None:
    match column.type, value:
        case _, None:
            return None
        case "string", str():
            return None
        case "bool", bool():
            return None
        case "int64", int() if not isinstance(value, bool):
            return None if INT64_MIN <= value <= INT64_MAX else f"{column.name}: {_describe(value)} does not fit int64"
        case "double", int() | float() if not isinstance(value, bool):
            return None if _is_finite(value) else f"{column.name}: the number does not fit double"
        case _:
            return f"{column.name}: expected {column.type}, found {_describe(value)}"


def _is_finite(value: int | float) -> bool:
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def _describe(value: Any) -> str:
    if value is None:
        return "null"
    kinds = {dict: "the object", list: "the array", str: "the string", bool: "the boolean"}
    text = json.dumps(value, ensure_ascii=False)
    # A lone surrogate can be written in JSON, but not in UTF-8.
    text = text.encode("utf-8", errors="backslashreplace").decode("utf-8")
    shown = text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"
    return f"{kinds.get(type(value), 'the number')} {shown}"
