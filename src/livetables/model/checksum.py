"""The checksum of rows, by which a client can verify that an answer arrived as the server sent it.

It is of what the rows are, not of how Arrow stores them: chunks, padding and the bytes in the place of a missing value
do not count. docs/PROTOCOL.md defines it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

OFFSET = struct.Struct("<i")


def content_checksum(rows: pa.Table) -> str:
    """Return the CRC-32 of all columns, one after another, as 8 hex digits."""
    found = 0
    for column in rows.columns:
        for data in _canonical(column):
            found = zlib.crc32(data, found)
    return f"{found:08x}"


def _canonical(column: pa.ChunkedArray) -> Iterator[pa.Buffer]:
    """Return which rows have a value, and the values."""
    yield from _fixed(pc.is_valid(column).cast(pa.uint8()))
    if pa.types.is_string(column.type):
        texts = pc.fill_null(column, "")
        yield from _fixed(pc.binary_length(texts))
        yield from _texts(texts)
    elif pa.types.is_boolean(column.type):
        yield from _fixed(pc.fill_null(column, False).cast(pa.uint8()))
    else:
        numbers = column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        yield from _fixed(pc.fill_null(numbers, 0))


def _fixed(column: pa.ChunkedArray) -> Iterator[pa.Buffer]:
    """Return the values of a column, none of which is missing, and all of which have one width."""
    width = column.type.bit_width // 8
    for chunk in column.chunks:
        if len(chunk):
            yield chunk.buffers()[1].slice(chunk.offset * width, len(chunk) * width)


def _texts(column: pa.ChunkedArray) -> Iterator[pa.Buffer]:
    for chunk in column.chunks:
        if len(chunk):
            _, offsets, data = chunk.buffers()
            (start,) = OFFSET.unpack_from(offsets, chunk.offset * OFFSET.size)
            (end,) = OFFSET.unpack_from(offsets, (chunk.offset + len(chunk)) * OFFSET.size)
            if end > start:
                yield data.slice(start, end - start)
