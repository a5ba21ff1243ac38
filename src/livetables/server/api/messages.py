"""The requests and answers of HTTP, as the OpenAPI describes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from livetables.model.control_message import (
    DISCARD_FIELD,
    JOIN_FIELD,
    JOIN_SUFFIX,
    ROLLBACK_FIELD,
    TOPIC_SUFFIX,
    Unreadable,
    check,
)
from livetables.model.errors import RequestError
from livetables.model.joins import NATURAL
from livetables.model.roles import Role
from livetables.server.health.freshness import Status
from livetables.server.storage.sql import MAX_SQL_CHARACTERS
from livetables.server.viewports.encoding import Time
from livetables.server.viewports.viewport import (
    MAX_OFFSET,
    MAX_TEXT_CHARACTERS,
    MAX_WINDOW_ROWS,
    Filter,
    Selection,
    Sort,
    ViewOptions,
)

WINDOW_ROWS = 300
MAX_SQL_ROWS = 10_000

FILTERS = TypeAdapter(list[Filter])


class Problem(BaseModel):
    """What went wrong, and how to fix it."""

    code: str = Field(description="for programs: unauthorized, forbidden, unknown_table, bad_filter, ...")
    problem: str
    cure: str


class Health(BaseModel):
    status: Literal["ok"] = "ok"


class Readiness(BaseModel):
    ready: Literal[True] = True
    generation: str = Field(description="the generation with data that was published last")


class Column(BaseModel):
    name: str
    type: str = Field(description="string, int64, double, bool or timestamp; in SQL answers, any Arrow type")


class Table(BaseModel):
    name: str
    columns: list[Column]
    generation: str
    rows: int
    newest: Time | None = Field(description="the latest event time in it")
    alias_of: str | None = None


class Tables(BaseModel):
    tables: list[Table]


class Rows(BaseModel):
    """A window. An integer beyond 2**53 - 1, NaN and the infinities are strings; times are ISO-8601 in UTC."""

    rows: list[dict[str, bool | int | float | str | None]]
    total: int = Field(description="rows that pass the filters in the whole table")
    generation: str


class GenerationStatus(BaseModel):
    name: str
    begun: Time
    published: Time | None = Field(description="when it took over the stable names, while it has them")
    last_batch_id: int | None
    rows: dict[str, int] = Field(description="rows by table")


class UnknownField(BaseModel):
    table: str
    field: str
    records: int = Field(description="that had it, since the server started")


class ServerStatus(Status):
    generations: list[GenerationStatus]
    unknown_fields: list[UnknownField] = Field(description="fields of records that are no columns, and are ignored")
    clients: int
    subscriptions: int
    viewports: int
    version: str
    started: Time
    time: Time = Field(description="the server's clock when it answered")
    role: Role = Field(description="of the key that asked: what it may do")
    flight_port: int = Field(description="where Arrow Flight is served, for Python clients")


class ControlFields(BaseModel):
    """Topics and joins to switch to, what is left out staying as it is; or `rollback` or `discard` alone.

    `livetables/model/control_message.py` has the rules.
    """

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "minProperties": 1,
            "properties": {
                JOIN_FIELD: {"type": "string", "maxLength": MAX_TEXT_CHARACTERS},
                ROLLBACK_FIELD: {"const": True},
                DISCARD_FIELD: {"type": "string", "maxLength": MAX_TEXT_CHARACTERS},
            },
            "patternProperties": {
                f"^[A-Za-z_][A-Za-z0-9_]*({TOPIC_SUFFIX}|{JOIN_SUFFIX})$": {
                    "type": "string",
                    "maxLength": MAX_TEXT_CHARACTERS,
                }
            },
            "additionalProperties": False,
            "not": {"anyOf": [{"required": [ROLLBACK_FIELD]}, {"required": [DISCARD_FIELD]}], "minProperties": 2},
            "examples": [
                {"usersTopic": "users_2", "joinType": "left"},
                {"orders_by_cityJoin": NATURAL.name},
                {"rollback": True},
            ],
        },
    )
    __pydantic_extra__: dict[str, Annotated[str, Field(max_length=MAX_TEXT_CHARACTERS)] | Literal[True]] = Field(
        init=False
    )

    @model_validator(mode="after")
    def _can_be_sent(self) -> ControlFields:
        message = check(self.__pydantic_extra__)
        if isinstance(message, Unreadable):
            raise ValueError(message.reason)
        return self

    @property
    def fields(self) -> dict[str, str | bool]:
        return dict(self.__pydantic_extra__)


class ControlReceipt(BaseModel):
    """Where on the control topic the message is."""

    topic: str
    partition: int
    offset: int


class SqlQuestion(BaseModel):
    model_config = ConfigDict(extra="forbid")

    sql: str = Field(
        max_length=MAX_SQL_CHARACTERS, description="one SELECT, SHOW TABLES, DESCRIBE or SUMMARIZE over the tables"
    )


class SqlAnswer(BaseModel):
    columns: list[Column]
    rows: list[list[Any]]
    truncated: bool = Field(description=f"whether there are more than these {MAX_SQL_ROWS:,} rows")


class RowsQuestion(BaseModel):
    """Which rows of a table are wanted."""

    model_config = ConfigDict(extra="forbid")

    offset: int = Field(0, ge=0, le=MAX_OFFSET)
    limit: int | None = Field(
        None, ge=0, le=MAX_WINDOW_ROWS, description=f"{WINDOW_ROWS} unless given; in CSV and Arrow, all unless given"
    )
    sort: list[str] = Field([], description="column, or column:asc or column:desc; several, by commas or repeated")
    q: str = Field("", max_length=MAX_TEXT_CHARACTERS, description="text to be found in any column")
    filter: str = Field("", description='a JSON list, like [{"column": "age", "op": ">", "value": 30}]')
    columns: list[str] | None = Field(None, description="the columns wanted, in order, by commas or repeated")

    def selection(self) -> Selection:
        columns = None if self.columns is None else _split(self.columns)
        sort = [_sort(text) for text in _split(self.sort)]
        try:
            return Selection(columns=columns, sort=sort, filters=_filters(self.filter), quick=self.q)
        except ValidationError as error:
            raise RequestError("limit", first_problem(error.errors()), "ask for fewer sorts or filters") from None

    def window(self) -> ViewOptions:
        size = WINDOW_ROWS if self.limit is None else self.limit
        return ViewOptions(**dict(self.selection()), offset=self.offset, size=size)


def first_problem(errors: Sequence[Any]) -> str:
    """What a validation found first, without the value that it found it in."""
    first = errors[0]
    place = ".".join(str(part) for part in first["loc"])
    message = str(first["msg"]).removeprefix("Value error, ")
    return f"{place[:100]}: {message}" if place else message


def _split(texts: Sequence[str]) -> list[str]:
    return [piece for text in texts for piece in text.split(",") if piece]


def _sort(text: str) -> Sort:
    column, _, direction = text.partition(":")
    if direction not in ("", "asc", "desc"):
        raise RequestError("bad_frame", f"{direction!a} is not a direction to sort in", "use column:asc or column:desc")
    return Sort(column=column, descending=direction == "desc")


def _filters(text: str) -> list[Filter]:
    try:
        return FILTERS.validate_json(text) if text else []
    except ValidationError as error:
        raise RequestError(
            "bad_filter",
            f"the filter is not understood: {first_problem(error.errors())}",
            'give a JSON list, like [{"column": "age", "op": ">", "value": 30}]',
        ) from None
