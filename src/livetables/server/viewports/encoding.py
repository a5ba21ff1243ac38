"""Rows on their way out: the one rule for values in JSON, and whole tables as CSV or Arrow, a chunk at a time.

In JSON, null is null, and what JSON or a JavaScript number cannot hold exactly is text: an integer beyond 2**53 - 1,
NaN, Infinity, -Infinity, and a decimal of more than 15 digits. A time is ISO-8601 in UTC, to the millisecond if that
is all of it, else to the microsecond.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from io import BytesIO
from typing import Annotated, Any, Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from pydantic import PlainSerializer, WithJsonSchema

from livetables.model.errors import RequestError

MAX_EXACT_INTEGER = 2**53 - 1
MAX_EXACT_DIGITS = 15
FORMULA = r"\A([=+\-@\t\r])"  # how text begins that a spreadsheet evaluates

MediaType = Literal["application/json", "text/csv", "application/vnd.apache.arrow.stream"]
JSON, CSV, ARROW = MEDIA_TYPES = get_args(MediaType)


def encoded_rows(rows: pa.Table) -> list[list[Any]]:
    """The rows as JSON takes them, each a list of its values in the order of the columns."""
    if not rows.num_columns:
        return [[] for _ in range(rows.num_rows)]
    columns = [_encoded_column(name, column) for name, column in zip(rows.column_names, rows.columns, strict=True)]
    return [list(row) for row in zip(*columns, strict=True)]


def encoded_time(time: datetime) -> str:
    """A single time, as rows have it; one without a time zone is in UTC."""
    naive = time.astimezone(UTC).replace(tzinfo=None) if time.tzinfo else time
    return naive.isoformat(timespec="microseconds" if time.microsecond % 1000 else "milliseconds") + "Z"


Time = Annotated[
    datetime, PlainSerializer(encoded_time, return_type=str), WithJsonSchema({"type": "string", "format": "date-time"})
]


def csv_chunks(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """RFC 4180 text: a header row, then the rows. A null is empty; empty text is a pair of quotes.

    Text that a spreadsheet would take for a formula has a ' before it.
    """
    header, rows = _csv_options(include_header=True), _csv_options(include_header=False)
    yield _csv(schema.empty_table(), header)
    for batch in batches:
        yield _csv(pa.Table.from_batches([batch]), rows)


def arrow_chunks(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """An Arrow IPC stream."""
    sink = BytesIO()

    def drained() -> bytes:
        chunk = sink.getvalue()
        sink.seek(0)
        sink.truncate()
        return chunk

    with pa.ipc.new_stream(sink, schema) as stream:
        yield drained()
        for batch in batches:
            stream.write_batch(batch)
            yield drained()
    yield drained()


def after(offset: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows from a position on."""
    for batch in batches:
        skipped = min(offset, batch.num_rows)
        offset -= skipped
        if skipped < batch.num_rows:
            yield batch.slice(skipped)


def chosen_media_type(accept: str | None, offered: tuple[MediaType, ...]) -> MediaType | None:
    """What an `Accept` header likes best of what is offered; the first of equals, and None when it takes none."""
    ranges = _accepted(accept) if accept and accept.strip() else [("*/*", 1.0)]

    def liking(media_type: MediaType) -> float:
        for pattern in (media_type, media_type.split("/")[0] + "/*", "*/*"):  # the most exact one decides
            for accepted, quality in ranges:
                if accepted == pattern:
                    return quality
        return 0.0

    best = max(offered, key=liking)
    return best if liking(best) > 0 else None


def _accepted(accept: str) -> list[tuple[str, float]]:
    ranges = []
    for part in accept.split(","):
        media_type, *parameters = (piece.strip().lower() for piece in part.split(";"))
        quality = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    quality = float(parameter[2:])
                except ValueError:
                    quality = 0.0
        ranges.append((media_type, quality))
    return ranges


def _encoded_column(name: str, column: pa.ChunkedArray) -> list[Any]:
    kind = column.type
    if pa.types.is_timestamp(kind):
        return _listed(_iso_8601(column))
    if pa.types.is_integer(kind):
        values = _with_nulls(column)
        bounds = pc.min_max(column).as_py()
        is_exact = bounds["min"] is None or (bounds["min"] >= -MAX_EXACT_INTEGER and bounds["max"] <= MAX_EXACT_INTEGER)
        return values if is_exact else [encoded_value(value) for value in values]
    if pa.types.is_floating(kind):
        values = _with_nulls(column)
        is_finite = pc.all(pc.is_finite(column)).as_py() is not False
        return values if is_finite else [encoded_value(value) for value in values]
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _listed(column)
    if pa.types.is_boolean(kind):
        return _with_nulls(column)
    try:
        return [encoded_value(value) for value in column.to_pylist()]
    except (ValueError, OverflowError):
        raise RequestError(
            "bad_sql", f"column {name!a} has values that JSON cannot carry", "cast it to VARCHAR, or ask for Arrow"
        ) from None


def _listed(column: pa.ChunkedArray) -> list[Any]:
    """A column's values. By way of numpy, which takes a third of the time that `to_pylist` does."""
    values: list[Any] = column.to_numpy().tolist()
    return values


def _with_nulls(column: pa.ChunkedArray) -> list[Any]:
    """The values of a column that numpy would turn into floats or objects for the sake of its nulls."""
    if not column.null_count:
        return _listed(column)
    if column.null_count == len(column):
        return [None] * len(column)
    filled = pc.fill_null(column, pa.scalar(0).cast(column.type))
    nulls = _listed(pc.is_null(column))
    return [None if is_null else value for value, is_null in zip(_listed(filled), nulls, strict=True)]


def _iso_8601(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Times as text, whatever their unit; one without a time zone is in UTC."""
    exact = pc.cast(column, pa.timestamp("us", column.type.tz), safe=False).cast(pa.timestamp("us"))
    coarse = pc.cast(exact, pa.timestamp("ms"), safe=False)
    is_whole = pc.equal(pc.cast(coarse, pa.timestamp("us")), exact)
    text = pc.cast(coarse, pa.string())
    if pc.all(is_whole).as_py() is False:
        text = pc.if_else(is_whole, text, pc.cast(exact, pa.string()))
    return pc.binary_join_element_wise(pc.replace_substring(text, " ", "T", max_replacements=1), "Z", "")


def encoded_value(value: Any) -> Any:
    """One value of any type that SQL has."""
    match value:
        case None | bool() | str():
            return value
        case int():
            return value if abs(value) <= MAX_EXACT_INTEGER else str(value)
        case float() if value != value:
            return "NaN"
        case float() if value in (float("inf"), float("-inf")):
            return "Infinity" if value > 0 else "-Infinity"
        case float():
            return value
        case Decimal() if value == value.to_integral_value():
            return encoded_value(int(value))
        case Decimal():
            return float(value) if len(value.as_tuple().digits) <= MAX_EXACT_DIGITS else str(value)
        case datetime():
            return encoded_time(value)
        case date() | time():
            return value.isoformat()
        case bytes():
            return value.hex()
        case dict():
            return {str(key): encoded_value(each) for key, each in value.items()}
        case list() | tuple():
            return [encoded_value(each) for each in value]
        case _:
            return str(value)


def _csv_options(include_header: bool) -> pyarrow.csv.WriteOptions:
    return pyarrow.csv.WriteOptions(include_header=include_header, eol="\r\n")


def _csv(rows: pa.Table, options: pyarrow.csv.WriteOptions) -> bytes:
    for position, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type):
            rows = rows.set_column(position, field.name, _iso_8601(rows.column(position)))
        elif pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            harmless = pc.replace_substring_regex(rows.column(position), FORMULA, r"'\1")
            rows = rows.set_column(position, field.name, harmless)
    sink = BytesIO()
    pyarrow.csv.write_csv(rows, sink, options)
    return sink.getvalue()
