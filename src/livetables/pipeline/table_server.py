"""The table server, as the modules of the pipeline depend on it: a protocol, its values and its errors.

`server_client.py` has the client that implements it. A module that needs a part of the server asks for that part's
protocol only.

SinkError                       the server refuses: a retry would not help
├── FencedError                 another pipeline has taken over the server
├── NoAnswerError               no answer, or not now: it was retried until patience ended
│   └── HeldError               another pipeline holds the server, and is alive
└── ConnectionClosedError       the connection was closed on this side, by another thread
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

import pyarrow as pa

from livetables.model.change import Batch, TableShape
from livetables.model.errors import RequestError, SinkError
from livetables.model.wire import NO_BATCH, ControlRequest, PipelineReport, Receipt, SourceReport

Positions = Mapping[str, Mapping[int, int]]  # by source table and Kafka partition: the next offset to be applied


@dataclass(frozen=True)
class StoredGeneration:
    """A generation as the server has it."""

    name: str
    last_batch_id: int | None
    published: datetime | None
    begun: datetime
    rows: Mapping[str, int]  # by table
    sequence: int = NO_BATCH  # of its last commit
    positions: Positions = field(default_factory=dict)
    records: Mapping[str, int] = field(default_factory=dict)  # rows and dead letters, by what readers call their table


@dataclass(frozen=True)
class DeadLetters:
    """The dead letters of a table: how many, and the reason of the first one."""

    count: int
    reason: str


class FencedError(SinkError):
    """Another pipeline has taken over the server."""


class NoAnswerError(SinkError):
    """The server cannot be reached, or not in time, or is busy. The call may have taken effect or not."""


class HeldError(NoAnswerError):
    """Another pipeline holds the server, and is alive."""


class ConnectionClosedError(SinkError):
    """The connection was closed on this side. The call may have taken effect or not."""

    def __init__(self) -> None:
        super().__init__("the connection to the server was closed", "open another one to continue")


class GenerationsOnServer(Protocol):
    """The generations that the server has, and how far they are."""

    def begin(self, generation: str, shapes: Sequence[TableShape]) -> str:
        """Make room for a generation; return the base URL of the same server for HTTP."""

    def generations(self) -> tuple[StoredGeneration, ...]:
        """Return the generations that the server has."""

    def positions(self) -> dict[str, Positions]:
        """Return how far each generation is in its topics, by generation."""


class StatusTablesOnServer(Protocol):
    """The status tables on the server: a generation of their own, changed by batches."""

    def begin(self, generation: str, shapes: Sequence[TableShape]) -> str:
        """Make room for a generation; return the base URL of the same server for HTTP."""

    def put(self, batch: Batch) -> None:
        """Apply a batch whole and durably. One that was applied before changes nothing; a gap is a SinkError."""

    def publish(self, generation: str) -> None:
        """Make the stable names this generation's tables, all in one step."""

    def drop(self, generation: str) -> None:
        """Remove a generation and free its space. Dropping one that is missing changes nothing."""

    def generations(self) -> tuple[StoredGeneration, ...]:
        """Return the generations that the server has."""

    def table(self, name: str) -> pa.Table | None:
        """Return all rows of a published status table; None if it is missing."""


class ReportReceiver(Protocol):
    """Where the pipeline reports its health to."""

    def report(
        self,
        generation: str | None,
        sources: Sequence[SourceReport],
        problem: str | None = None,
        pipeline: PipelineReport | None = None,
    ) -> None:
        """Report how far behind its topics the shown generation is, its problem if it has one, and the pipeline's
        own figures. Best effort: the next report replaces it."""


class ControlRequests(Protocol):
    """The control messages that clients have sent to the server, to be published to the control topic."""

    def control_requests(self, seconds_max: float) -> tuple[ControlRequest, ...]:
        """Return them as soon as there is one; none if none came in time."""

    def control_settled(self, request_id: int, outcome: Receipt | RequestError) -> None:
        """Send the result of a control message."""

    def close(self) -> None:
        """End every call that another thread waits for, at once, with an error."""


class TableServer(GenerationsOnServer, StatusTablesOnServer, ReportReceiver, ControlRequests, Protocol):
    """The whole server, as the orchestrator uses it."""

    def start_pipeline(self) -> int:
        """Get a number from the server, and use it from now on: pipelines with an older one are refused.

        While another pipeline is alive, a HeldError names it.
        """

    def dead_letters(self, generation: str) -> dict[str, DeadLetters]:
        """Return the dead letters of a generation, by what readers call their table."""

    def lost_records(
        self, generation: str, successor: str, ends: Mapping[str, Mapping[int, int] | None]
    ) -> dict[str, int]:
        """Count, by topic, the records that a generation has as rows and its successor has not.

        `ends` limits what counts, by what readers call the table: only records before these offsets; None: all.
        """
