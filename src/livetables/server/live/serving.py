"""What a session needs of the process that serves it: the server itself, or one of its relays."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from livetables.model.errors import RequestError
from livetables.server.health.freshness import Status
from livetables.server.health.metrics import Metrics
from livetables.server.live.state import State
from livetables.server.viewports.viewport import ViewOptions


class Viewport(Protocol):
    """A distinct (table, options). `state` is None until it is known."""

    @property
    def table(self) -> str: ...

    @property
    def options(self) -> ViewOptions: ...

    @property
    def state(self) -> State | RequestError | None: ...


Kind = TypeVar("Kind", bound=Viewport)


class Hub(Protocol[Kind]):
    """All viewports, of the hub's own kind."""

    def subscribe(self, table: str, options: ViewOptions, subscriber: Callable[[], None]) -> Kind:
        """Look at a table. The subscriber is called whenever the viewport has a new state."""

    def unsubscribe(self, viewport: Kind, subscriber: Callable[[], None]) -> None:
        """Look no more; the last one to leave ends the viewport."""


class Tables(Protocol):
    """The names of all tables."""

    def tables(self) -> Iterable[str]: ...


class Pulse(Protocol):
    """How fresh the tables are."""

    def status(self) -> Status: ...


class Serving(Protocol):
    """One of each, for all sessions of a process."""

    @property
    def store(self) -> Tables: ...

    @property
    def pulse(self) -> Pulse: ...

    @property
    def hub(self) -> Hub[Any]: ...

    @property
    def metrics(self) -> Metrics: ...

    @property
    def hides_raw(self) -> bool: ...
