"""The checksum of a window as a client computes it, from its definition alone."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any


def checksum(total: int, ids: Sequence[int], rows: Sequence[Sequence[Any]]) -> str:
    """As docs/PROTOCOL.md defines it, of what a client has read from JSON."""
    whole = struct.pack("<d", total)
    for row_id, values in zip(ids, rows, strict=True):
        row = struct.pack("<d", row_id)
        for value in values:
            if value is None:
                row += b"\x00"
            elif isinstance(value, bool):
                row += b"\x02" if value else b"\x01"
            elif isinstance(value, str):
                row += b"\x04" + struct.pack("<I", len(value.encode())) + value.encode()
            else:
                row += b"\x03" + struct.pack("<d", value)
        whole += struct.pack("<I", zlib.crc32(row))
    return format(zlib.crc32(whole), "08x")
