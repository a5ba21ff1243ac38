"""Why a record is a dead letter: the parser decides that it is one, this module names the field and the error.

The parser is Java (`Parser` in `jvm/java/MatchOperator.java`). Both have the rules of docs/CONFIGURATION.md: a value
that the parser accepts has no error here, and one that it rejects has one.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from livetables.model.columns import INT64_MAX, INT64_MIN
from livetables.model.spec import Column, Table

INT64_DIGITS = 19
EXPONENT_DIGITS_MAX = 9  # with more, every number but 0 is far out of the range of any type
NESTING_MAX = 500  # of objects and arrays
SHOWN_CHARACTERS = 60
NUMBER = re.compile(
    r"(?P<sign>-?)(?P<whole>0|[1-9][0-9]*)(?:\.(?P<fraction>[0-9]+))?"
    r"(?:[eE](?P<exponent_sign>[+-]?)0*(?P<exponent>[0-9]+))?"
)


def reason(raw: bytes | None, table: Table) -> str:
    """Return the reason of a dead letter, in one sentence."""
    return fault(raw, table) or "the record does not match the table: it is JSON, but Spark could not read it"


def fault(raw: bytes | None, table: Table) -> str | None:
    """Return what is wrong with a record; None if nothing is found."""
    if raw is None:
        return "the value is null: a record needs a JSON object as its value"
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"the value is not UTF-8: byte {error.start} is 0x{raw[error.start]:02x}"
    if not text.strip():
        return "the value is empty: a record needs a JSON object as its value"
    try:
        record = json.loads(text, parse_constant=_refuse_constant, parse_int=_Number, parse_float=_Number)
    except RecursionError:
        return f"malformed JSON: nested too deeply, more than {NESTING_MAX} levels"
    except ValueError as error:
        return f"malformed JSON: {error}"
    if _is_too_deep(record):
        return f"malformed JSON: nested too deeply, more than {NESTING_MAX} levels"
    if not isinstance(record, dict):
        return f"not a JSON object but {_describe(record)}"
    faults = (_fault(column, record.get(column.name), table.strict) for column in table.columns)
    return "; ".join(filter(None, faults)) or None


def readable(raw: bytes | None) -> str | None:
    """Return the raw value as text; bytes that are not UTF-8 are shown as escapes, so that nothing is lost."""
    return None if raw is None else raw.decode("utf-8", errors="backslashreplace")


@dataclass(frozen=True)
class _Number:
    """A number as it is written: as a number of Python, some would be rounded, or take very long to create."""

    text: str

    @property
    def is_integer(self) -> bool:
        """Whether it is written as a whole number."""
        return not set(self.text) & set(".eE")

    def whole(self) -> int | None:
        """Return the whole number that it is, however it is written; None if it is not one, or far beyond an int64."""
        match = NUMBER.fullmatch(self.text)
        assert match, "json has found it to be a number"
        fraction = match["fraction"] or ""
        digits = (match["whole"] + fraction).lstrip("0")
        significant = digits.rstrip("0")
        if not significant:
            return 0
        exponent = match["exponent"] or "0"
        if len(exponent) > EXPONENT_DIGITS_MAX:
            return None
        power = int(f"{match['exponent_sign'] or ''}{exponent}") - len(fraction)
        zeros = power + len(digits) - len(significant)
        if zeros < 0 or len(significant) + zeros > INT64_DIGITS:
            return None
        return int(match["sign"] + significant + "0" * zeros)

    def shown(self) -> int | float:
        """Return about the same number, to be shown among others."""
        return int(self.text) if self.is_integer and len(self.text) <= INT64_DIGITS else float(self.text)


def _fault(column: Column, value: Any, strict: bool) -> str | None:
    if value is None:
        return None
    number = value if isinstance(value, _Number) else None
    if not strict and isinstance(value, str) and NUMBER.fullmatch(value):
        number = _Number(value)
    is_taken = False
    match column.type:
        case "string":
            is_taken = isinstance(value, str) or (not strict and isinstance(value, _Number | bool))
        case "bool":
            is_taken = isinstance(value, bool) or (not strict and value in ("true", "false"))
        case "int64" if number and (number.is_integer or not strict):
            whole = number.whole()
            is_taken = whole is not None and INT64_MIN <= whole <= INT64_MAX
            if not is_taken and (whole is not None or _is_whole(number)):
                return f"{column.name}: {_describe(value)} does not fit int64"
        case "double" if number:
            is_taken = math.isfinite(float(number.text))
            if not is_taken:
                return f"{column.name}: the number does not fit double"
    return None if is_taken else f"{column.name}: expected {column.type}, found {_describe(value)}"


def _is_whole(number: _Number) -> bool:
    """Whether a number that is far beyond an int64 is a whole one: only for the wording of the reason."""
    return number.is_integer or abs(float(number.text)) > INT64_MAX


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(NESTING_MAX):
        level = [inner for each in level if isinstance(each, dict | list) for inner in _inner(each)]
        if not level:
            return False
    return any(isinstance(each, dict | list) for each in level)


def _inner(value: dict[str, Any] | list[Any]) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def _describe(value: Any) -> str:
    if value is None:
        return "null"
    kinds = {dict: "the object", list: "the array", str: "the string", bool: "the boolean"}
    is_number = isinstance(value, _Number)
    text = value.text if is_number else json.dumps(value, ensure_ascii=False, default=_Number.shown)
    # A lone surrogate can be written in JSON, but not in UTF-8.
    text = text.encode("utf-8", errors="backslashreplace").decode("utf-8")
    shown = text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"
    return f"{kinds.get(type(value), 'the number')} {shown}"
