"""What all endpoints of one server share."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from livetables.model.roles import Role
from livetables.model.wire import PipelineReport, SourceReport
from livetables.server.access.key import Key, let_in
from livetables.server.access.logins import Peer
from livetables.server.api.control_requests import ControlQueue
from livetables.server.api.intake import Intake
from livetables.server.health.freshness import Freshness, Moment, Status
from livetables.server.health.metrics import Metrics
from livetables.server.live.hub import Hub
from livetables.server.live.sessions import Sessions
from livetables.server.storage.listeners import Changed
from livetables.server.storage.store import Store


class Pulse:
    """The pipeline's signs of life, from any thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._freshness = Freshness(Moment.now())
        self.pipeline: PipelineReport | None = None  # its last report of itself
        store.listen(self._arrived)

    def heard(self) -> None:
        with self._lock:
            self._freshness = self._freshness.heard(Moment.now())

    def reported(self, generation: str, sources: Sequence[SourceReport], problem: str | None = None) -> None:
        with self._lock:
            freshness = self._freshness.reported(Moment.now(), generation, sources, problem)
            self._freshness = freshness.only(self._store.generations())

    def status(self) -> Status:
        newest = {name: table.newest for name, table in self._store.tables().items()}
        spark_ui = self.pipeline.spark_ui if self.pipeline else None
        return self._freshness.status(Moment.now(), self._store.live(), newest, spark_ui)

    def _arrived(self, changed: Changed) -> None:
        with self._lock:
            self._freshness = self._freshness.arrived(Moment.now(), changed.names)


@dataclass(frozen=True)
class Backend:
    """What the endpoints of HTTP and of Flight work on."""

    store: Store
    key: Key
    pulse: Pulse
    control: ControlQueue
    metrics: Metrics
    hides_raw: bool = field(default=False, kw_only=True)  # from viewers: what the records of dead letters hold


@dataclass(frozen=True)
class Services(Backend):
    """One of each, for all endpoints of HTTP and the WebSocket."""

    hub: Hub
    flight_port: int
    sessions: Sessions = field(default_factory=Sessions)
    origins: tuple[str, ...] = ()  # further web origins that may connect; a server's own always may
    hosts: tuple[str, ...] = ()  # further names of the server's own
    web_directory: Path | None = None  # the built web app, served at /
    started: datetime = field(default_factory=lambda: datetime.now(UTC))

    @cached_property
    def intake(self) -> Intake:
        return Intake(self.store, self.metrics, self.pulse.heard)

    async def log_in(self, peer: Peer, token: str) -> Role:
        """Let a WebSocket's client in, or raise a RequestError with the reason."""
        return let_in(self.key, self.metrics, "websocket", peer, token, "read")
