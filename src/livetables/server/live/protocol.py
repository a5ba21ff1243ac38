"""What goes over the WebSocket, as values and text: frames from clients are checked, frames to them are made.

docs/PROTOCOL.md describes it for people; tests/golden has an example of every frame. A frame about a subscription
begins with `sub` and `revision`, which are the client's own: the rest is made once for all that share a viewport.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import to_json

from livetables.model.errors import LivetablesError, RequestError
from livetables.model.roles import Role
from livetables.server.health.freshness import Status
from livetables.server.viewports.encoding import encoded_time
from livetables.server.viewports.viewport import (
    MAX_FILTERS,
    MAX_IN_VALUES,
    MAX_OFFSET,
    MAX_SORTS,
    MAX_TEXT_CHARACTERS,
    MAX_WINDOW_ROWS,
    ROW,
    Filter,
    Patch,
    Sort,
    ViewOptions,
)

PROTOCOL = 1
MAX_FRAME_BYTES = 64 * 1024
MAX_SUBSCRIPTIONS = 64
MAX_INTEGER = 2**53 - 1
HEARTBEAT_SECONDS = 10
IDLE_SECONDS = 180
TEXT = 0x81  # a text message in a single WebSocket frame; frames to clients are not masked

Format = Literal["json", "arrow"]


class _Frame(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


Number = Annotated[int, Field(ge=0, le=MAX_INTEGER)]


class Hello(_Frame):
    """The first frame: which protocol the client speaks, and the key."""

    type: Literal["hello"]
    protocol: int
    token: str


class Subscribe(_Frame):
    """Look at a table. The client chooses `sub`, and `revision`, which is another after each `set`."""

    type: Literal["subscribe"]
    sub: Number
    table: str
    view: ViewOptions = ViewOptions()
    revision: Number = 0
    format: Format = "json"
    checksum: bool = False  # whether each data frame is to have one


class Change(_Frame):
    """Look elsewhere in the same table; what is left out stays as it is."""

    type: Literal["set"]
    sub: Number
    revision: Number
    columns: list[str] | None = None
    sort: list[Sort] | None = Field(default=None, max_length=MAX_SORTS)
    filters: list[Filter] | None = Field(default=None, max_length=MAX_FILTERS)
    quick: str | None = Field(default=None, max_length=MAX_TEXT_CHARACTERS)
    offset: int | None = Field(default=None, ge=0, le=MAX_OFFSET)
    size: int | None = Field(default=None, ge=0, le=MAX_WINDOW_ROWS)

    def applied_to(self, view: ViewOptions) -> ViewOptions:
        given = self.model_fields_set - {"type", "sub", "revision"}
        columns = {"columns": self.columns} if "columns" in given else {}  # null means all columns there
        return view.model_copy(
            update=columns | {name: value for name in given if (value := getattr(self, name)) is not None}
        )


class Unsubscribe(_Frame):
    """Look no more."""

    type: Literal["unsubscribe"]
    sub: Number


class Resync(_Frame):
    """Send the whole window again: the client missed a frame, or its window is another than the server's."""

    type: Literal["resync"]
    sub: Number
    reason: Literal["gap", "checksum"] = "gap"


class Heartbeat(_Frame):
    """The client lives; the server answers with its own."""

    type: Literal["heartbeat"]


ClientFrame = Hello | Subscribe | Change | Unsubscribe | Resync | Heartbeat

_CLIENT_FRAME: TypeAdapter[ClientFrame] = TypeAdapter(Annotated[ClientFrame, Field(discriminator="type")])


def client_frame(text: str) -> ClientFrame:
    """A frame from a client; what is wrong with it is a RequestError."""
    if len(text) > MAX_FRAME_BYTES:
        raise RequestError("limit", "the frame is too long", f"send at most {MAX_FRAME_BYTES} bytes")
    try:
        return _CLIENT_FRAME.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the frame"
        over = first["type"] in ("too_long", "string_too_long", "less_than_equal")
        raise RequestError(
            "limit" if over else "bad_frame", f"{where}: {first['msg']}"[:300], "docs/PROTOCOL.md shows every frame"
        ) from None
    except (ValueError, RecursionError):
        raise RequestError("bad_frame", "the frame is not JSON", "docs/PROTOCOL.md shows every frame") from None


def sub_of(text: str) -> int | None:
    """The subscription that a frame is about, valid or not; None if it names none."""
    try:
        frame = json.loads(text)
    except (ValueError, RecursionError):
        return None
    sub = frame.get("sub") if isinstance(frame, dict) else None
    return sub if type(sub) is int and 0 <= sub <= MAX_INTEGER else None


def about(sub: int, revision: int, rest: str) -> str:
    """A frame about one client's subscription."""
    return f'{{"sub":{sub},"revision":{revision},{rest}'


def hello(version: str, role: Role, tables: Sequence[str], now: datetime) -> str:
    """The answer to a hello with a key that has a role."""
    return _text(
        {
            "type": "hello",
            "protocol": PROTOCOL,
            "server": version,
            "role": role,
            "time": _time(now),
            "tables": sorted(tables),
            "heartbeat_seconds": HEARTBEAT_SECONDS,
            "idle_seconds": IDLE_SECONDS,
            "limits": {
                "frame_bytes": MAX_FRAME_BYTES,
                "subscriptions": MAX_SUBSCRIPTIONS,
                "window_rows": MAX_WINDOW_ROWS,
                "text_characters": MAX_TEXT_CHARACTERS,
                "filters": MAX_FILTERS,
                "in_values": MAX_IN_VALUES,
                "sorts": MAX_SORTS,
            },
        }
    )


def heartbeat(now: datetime) -> str:
    return _text({"type": "heartbeat", "time": _time(now)})


def status(status: Status) -> str:
    """Why data is old, or that it is not."""
    return _text({"type": "status", **status.model_dump()})


def error(problem: LivetablesError, sub: int | None = None) -> str:
    """What went wrong and how to fix it; about a subscription, or about the connection."""
    about_sub = {} if sub is None else {"sub": sub}
    code = problem.code if isinstance(problem, RequestError) else "internal"
    return _text({**about_sub, "type": "error", "code": code, "problem": problem.problem, "cure": problem.cure})


@dataclass(frozen=True, slots=True)
class Receipt:
    """When the newest record of a data frame was in Kafka, left Spark, and was applied: ms since 1970."""

    kafka: float
    spark: float
    applied: float

    def sent(self) -> dict[str, float]:
        """With the time now, at which the frame is made."""
        return {
            "kafka": self.kafka,
            "spark": self.spark,
            "applied": round(self.applied, 2),
            "sent": round(time.time() * 1000, 2),
        }


@dataclass(frozen=True, slots=True)
class Heading:
    """What every data frame has."""

    table: str
    generation: str
    sequence: int
    newest: datetime | None  # the latest event time in the table
    receipt: Receipt | None = None  # if records have caused the frame
    hint: str | None = None  # for people, while the view is limited

    def fields(self, kind: str) -> dict[str, Any]:
        return {
            "type": kind,
            "table": self.table,
            "generation": self.generation,
            "sequence": self.sequence,
            "newest": _time(self.newest),
        }

    def data_fields(self, kind: str) -> dict[str, Any]:
        hint = {} if self.hint is None else {"hint": self.hint}
        return {**self.fields(kind), "receipt": self.receipt and self.receipt.sent(), **hint}


def schema(heading: Heading, columns: Sequence[tuple[str, str]]) -> str:
    """The columns of the rows that follow."""
    return _rest(
        {**heading.fields("schema"), "columns": [{"name": name, "type": data_type} for name, data_type in columns]}
    )


def rebound(heading: Heading, before: str) -> str:
    """Another generation has taken over the table's name; its window follows."""
    return _rest({**heading.fields("rebound"), "before": before})


def snapshot(heading: Heading, offset: int, total: int, ids: Sequence[int], rows: Sequence[Sequence[Any]]) -> str:
    """A whole window."""
    return _rest({**heading.data_fields("snapshot"), "offset": offset, "total": total, "ids": ids, "rows": rows})


def patch(heading: Heading, total: int, change: Patch) -> str:
    """The change from the window of the sequence before to this one's."""
    return _rest(
        {
            **heading.data_fields("patch"),
            "total": total,
            "removed": change.removed,
            "inserted": change.inserted,
            "updated": change.updated,
        }
    )


def with_checksum(rest: str, checksum: str) -> str:
    """A data frame with the checksum of the window after it."""
    return f'{rest[:-1]},"checksum":"{checksum}"}}'


def arrow_snapshot(
    sub: int,
    revision: int,
    heading: Heading,
    offset: int,
    total: int,
    ids: Sequence[int],
    rows: pa.Table,
    checksum: str | None = None,
) -> bytes:
    """A whole window with its rows in Arrow: header's length, header in JSON, IPC stream with `_row` first."""
    fields = {**heading.data_fields("snapshot"), "offset": offset, "total": total}
    header = to_json({"sub": sub, "revision": revision, **fields, **({"checksum": checksum} if checksum else {})})
    table = rows.add_column(0, ROW, pa.array(ids, pa.int64()))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return struct.pack("<I", len(header)) + header + bytes(sink.getvalue())


def text_frame(text: str) -> bytes:
    """A WebSocket frame with this text, as the wire has it."""
    payload = text.encode()
    length = len(payload)
    if length < 126:
        return bytes((TEXT, length)) + payload
    if length < 1 << 16:
        return bytes((TEXT, 126)) + length.to_bytes(2, "big") + payload
    return bytes((TEXT, 127)) + length.to_bytes(8, "big") + payload


def _text(fields: dict[str, Any]) -> str:
    return to_json(fields).decode()


def _rest(fields: dict[str, Any]) -> str:
    """A frame but for its opening brace."""
    return to_json(fields).decode()[1:]


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else encoded_time(moment)
