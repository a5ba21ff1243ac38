"""What the server and one of its relays send each other. Pure.

A viewport's state goes to a relay as a whole window, or as the patch that clients are sent too: the relay keeps a copy
of the window for those who come late.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from livetables.model.errors import ErrorCode, RequestError
from livetables.model.roles import Role, RoleKey
from livetables.server.health.freshness import Status
from livetables.server.live.protocol import Heading
from livetables.server.viewports.viewport import ViewOptions


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True)


# From the server


class Setup(_Message):
    """The first message: what does not change."""

    type: Literal["setup"] = "setup"
    origins: tuple[str, ...]
    hosts: tuple[str, ...]
    proxies: tuple[str, ...]
    hides_raw: bool = False


class Keys(_Message):
    """The keys of the server, with their roles, from now on."""

    type: Literal["keys"] = "keys"
    keys: tuple[RoleKey, ...]


class ServerSummary(_Message):
    """What a relay sends its clients at their login and every now and then."""

    type: Literal["summary"] = "summary"
    tables: tuple[str, ...]
    status: Status
    elsewhere: int  # clients of the server's other processes


class Problem(_Message):
    """A RequestError."""

    code: ErrorCode
    problem: str
    cure: str

    @classmethod
    def of(cls, error: RequestError) -> Problem:
        return cls(code=error.code, problem=error.problem, cure=error.cure)

    def error(self) -> RequestError:
        return RequestError(self.code, self.problem, self.cure)


class LoginAnswer(_Message):
    """Whether a client may come in, and its role."""

    type: Literal["login_answer"] = "login_answer"
    login: int
    role: Role | None
    problem: Problem | None
    summary: ServerSummary


class Window(_Message):
    """All rows of a viewport, and what they are."""

    columns: tuple[tuple[str, str], ...]
    entries: list[tuple[int, tuple[Any, ...]]]


class News(_Message):
    """A viewport's new state; without a window, it is the patch that makes it of the state before."""

    type: Literal["news"] = "news"
    sub: int
    heading: Heading
    counted_as: str  # the table whose rows are counted as sent
    total: int
    patch: str | None
    patch_rows: int
    window: Window | None


class Failure(_Message):
    """Why a viewport has no rows."""

    type: Literal["failure"] = "failure"
    sub: int
    problem: Problem


ToRelay = Setup | Keys | ServerSummary | LoginAnswer | News | Failure


# From a relay


class Login(_Message):
    """A client presents a key."""

    type: Literal["login"] = "login"
    login: int
    address: str
    token: str


class Subscribe(_Message):
    """A client looks at a viewport that nobody of this relay's looked at before."""

    type: Literal["subscribe"] = "subscribe"
    sub: int
    table: str
    options: ViewOptions


class Unsubscribe(_Message):
    """Nobody of this relay's looks at it any more."""

    type: Literal["unsubscribe"] = "unsubscribe"
    sub: int


class Taken(_Message):
    """A viewport's news have gone to all clients: the next may come."""

    type: Literal["taken"] = "taken"
    sub: int


class Value(_Message):
    """A counter or gauge of the relay's, since its start."""

    metric: str  # its name in `Metrics`
    labels: tuple[str, ...]
    value: float


class Counts(_Message):
    """A sign of life every second. The first one says that the relay is ready."""

    type: Literal["counts"] = "counts"
    clients: int
    closed: int  # connections that have ended, of those that were handed over
    values: tuple[Value, ...]


FromRelay = Login | Subscribe | Unsubscribe | Taken | Counts

to_relay: TypeAdapter[ToRelay] = TypeAdapter(Annotated[ToRelay, Field(discriminator="type")])
from_relay: TypeAdapter[FromRelay] = TypeAdapter(Annotated[FromRelay, Field(discriminator="type")])
