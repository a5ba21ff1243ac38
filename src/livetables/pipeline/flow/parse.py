"""The parser that Spark runs for every record, for use in Python: is a value a row or a dead letter?"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from livetables.model.columns import ColumnKind
from livetables.model.spec import GenerationSpec, Table
from livetables.pipeline.flow.plan import plan_json

HEAD_BYTES = 24  # table, scope, id and time


@dataclass(frozen=True)
class Parsed:
    """A record that was parsed: the values of its columns, and the names of fields that are not columns."""

    fields: Mapping[str, Any]
    unknown: tuple[str, ...]


def parser(spark: SparkSession, table: Table) -> Callable[[bytes | None], Parsed | None]:
    """Return a function that parses the value of a record of this table; it returns None for a dead letter."""
    jvm = spark._jvm
    assert jvm is not None
    parse, plan = jvm.livetables.MatchOperator.record, plan_json(GenerationSpec((table,), ()))
    return lambda value: _unpacked(parse(value, 0, plan), table)


def _unpacked(record: bytes, table: Table) -> Parsed | None:
    reader = _Reader(record, HEAD_BYTES)
    if reader.byte():
        return None
    unknown = tuple(reader.text() for _ in range(reader.number()))
    return Parsed(
        {column.name: reader.value(column.kind) if reader.byte() else None for column in table.columns}, unknown
    )


class _Reader:
    """Reads bytes as `MatchOperator.Parser` writes them."""

    def __init__(self, data: bytes, position: int) -> None:
        self._data, self._position = data, position

    def value(self, kind: ColumnKind) -> Any:
        return self.text() if kind.packed is None else self._take(kind.packed)

    def byte(self) -> int:
        return int(self._take(">b"))

    def number(self) -> int:
        return int(self._take(">i"))

    def text(self) -> str:
        return str(self._take(f"{self.number()}s"), "utf-8")

    def _take(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self._data, self._position)
        self._position += struct.calcsize(form)
        return value
