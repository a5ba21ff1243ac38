"""The tickets of readers: which rows a Flight client asks for."""

from __future__ import annotations

import json
from typing import Any, Literal

import pyarrow as pa
from pyarrow import flight
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import from_json

from livetables.model.change import TableShape
from livetables.model.columns import kind_of
from livetables.model.errors import RequestError
from livetables.model.wire import NO_BATCH, Place
from livetables.server.api.flight_errors import limited, reason
from livetables.server.viewports.viewport import Selection, ViewOptions, chosen_columns

CHANGES_WAIT_SECONDS_MAX = 20.0


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class TableTicket(Selection):
    """All rows of a selection."""

    table: str


class WindowTicket(ViewOptions):
    """The rows of a window."""

    table: str


class SqlTicket(_Value):
    """The answer to a SELECT over the stable names."""

    sql: str


class ChangesTicket(_Value):
    """What changed in a table after a place: at once if something has, else when it does, or when time is up.

    Without a place, or with one that is not known any more: the whole table if `snapshot`. Without either, where the
    table is now.
    """

    changes: str
    generation: str | None = None
    begun: str | None = None
    after: int | None = Field(default=None, ge=NO_BATCH)
    snapshot: bool = True
    seconds_max: float = Field(default=CHANGES_WAIT_SECONDS_MAX, ge=0)
    checksum: bool = False  # whether changes since a place are to have one
    reason: Literal["checksum"] | None = None  # why the same is asked for again: it came with another checksum

    @model_validator(mode="after")
    def _has_a_whole_place(self) -> ChangesTicket:
        if (self.generation is None) != (self.after is None):
            raise ValueError("generation and after go together")
        return self

    @property
    def place(self) -> Place | None:
        if self.generation is None or self.after is None:
            return None
        return Place(self.generation, self.after, self.begun)


Ticket = TableTicket | WindowTicket | SqlTicket | ChangesTicket


def parsed_ticket(data: bytes) -> Ticket:
    try:
        fields = from_json(limited(data), allow_inf_nan=False)
        if not isinstance(fields, dict):
            raise ValueError("it is not a JSON object")
        if "changes" in fields:
            return ChangesTicket.model_validate_json(data)
        if "sql" in fields:
            return SqlTicket.model_validate_json(data)
        if "offset" in fields or "size" in fields:
            return WindowTicket.model_validate_json(data)
        return TableTicket.model_validate_json(data)
    except ValueError as error:
        raise RequestError(
            "bad_frame",
            f"the ticket cannot be read: {reason(error)}",
            'send JSON: {"table": …} with columns, sort, filters, quick, offset or size as needed; {"sql": …}; '
            'or {"changes": …} with generation, after, snapshot, seconds_max or checksum as needed',
        ) from None


def described(descriptor: Any) -> bytes:
    """The ticket for what a descriptor means: a table by its path, or a ticket by its command."""
    if descriptor.descriptor_type == flight.DescriptorType.CMD:
        command: bytes = descriptor.command
        return command
    path = descriptor.path or []
    if len(path) != 1:
        raise RequestError("bad_frame", f"a path of {len(path)} names is not a table", "give the table's name alone")
    return table_ticket(path[0].decode(errors="replace"))


def table_ticket(name: str) -> bytes:
    return json.dumps({"table": name}).encode()


def schema_of(shape: TableShape, selection: Selection) -> pa.Schema:
    """The schema of a table's rows as they are sent."""
    columns = chosen_columns(shape.schema, selection)
    return pa.schema([(name, kind_of(shape.schema.field(name).type).arrow) for name in columns])
