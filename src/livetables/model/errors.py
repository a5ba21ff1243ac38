"""Every error a user can meet, with what is wrong and how to fix it; and what the codes of errors mean to programs.

LivetablesError
├── ConfigError      a setting is missing, unknown or invalid; names its key
├── SetupError       something this machine must have is not there (Java, a jar, a port)
├── BrokerError      the embedded Kafka broker did not start, or stopped by itself
├── TopicError       a topic cannot be used: it is not there, not allowed, or its broker cannot be reached
│   └── PassingTopicError   … and may be usable later, though nobody changes a topic or a setting
├── CheckpointError  the storage of checkpoints cannot be used now
├── SinkError        a batch was refused: out of order, or for a generation that was not begun
├── StoreError       the store cannot be used until the server is started again
│   └── DamagedError        … and not then either: its files are damaged
└── RequestError     a client asked for what is not there, not allowed or too much; has a code for programs
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

ErrorCode = Literal[
    "bad_frame",
    "unauthorized",
    "forbidden",
    "unsupported_protocol",
    "unknown_subscription",
    "unknown_table",
    "unknown_column",
    "bad_filter",
    "bad_sql",
    "limit",
    "busy",
    "timeout",
    "unavailable",
    "internal",
]


@dataclass(frozen=True)
class ErrorKind:
    """What an error code means for HTTP, for a WebSocket and for the client."""

    status: int  # of the HTTP response
    close_code: int = 4400  # of a WebSocket that is closed because of it
    is_retryable: bool = False  # whether the same request may succeed later, though nobody changes anything


# The TypeScript client has the close codes after which it does not reconnect in `web/core/src/connection-state.ts`.
ERROR_KINDS: Mapping[ErrorCode, ErrorKind] = {
    "bad_frame": ErrorKind(400),
    "unauthorized": ErrorKind(401, 4401),
    "forbidden": ErrorKind(403, 4403),
    "unsupported_protocol": ErrorKind(400),
    "unknown_subscription": ErrorKind(404),
    "unknown_table": ErrorKind(404),
    "unknown_column": ErrorKind(400),
    "bad_filter": ErrorKind(400),
    "bad_sql": ErrorKind(400),
    "limit": ErrorKind(413),
    "busy": ErrorKind(429, 4429, is_retryable=True),
    "timeout": ErrorKind(504, 4408, is_retryable=True),
    "unavailable": ErrorKind(503, is_retryable=True),
    "internal": ErrorKind(500),
}
RETRYABLE: frozenset[ErrorCode] = frozenset(code for code, kind in ERROR_KINDS.items() if kind.is_retryable)


class LivetablesError(Exception):
    """Root of all errors that livetables raises on purpose: the `problem`, and the `cure` that fixes it."""

    def __init__(self, problem: str, cure: str) -> None:
        super().__init__(f"{problem}\n  cure: {cure}")
        self.problem = problem
        self.cure = cure


class ConfigError(LivetablesError):
    """A setting is missing, unknown or invalid."""


class SetupError(LivetablesError):
    """Something this machine must have is not there."""


class BrokerError(LivetablesError):
    """The embedded Kafka broker did not start, or stopped by itself."""


class TopicError(LivetablesError):
    """A topic cannot be used: it is not there, not allowed, or its broker cannot be reached."""


class PassingTopicError(TopicError):
    """A topic cannot be used now, but perhaps later, though nobody changes a topic or a setting."""


class CheckpointError(LivetablesError):
    """The storage of checkpoints cannot be used now."""


class SinkError(LivetablesError):
    """A batch was refused: out of order, or for a generation that was not begun."""


class StoreError(LivetablesError):
    """The store cannot be used until the server is started again."""


class DamagedError(StoreError):
    """The store's files are damaged: they cannot be read, whatever is tried."""


class RequestError(LivetablesError):
    """A client asked for what is not there, not allowed or too much. Its code is for programs."""

    def __init__(self, code: ErrorCode, problem: str, cure: str) -> None:
        super().__init__(problem, cure)
        self.code = code  # a newer server may have others

    @property
    def is_retryable(self) -> bool:
        return self.code in RETRYABLE
