"""Every error a user can meet. Each says what is wrong and what mends it.

LivetablesError
├── ConfigError      a setting is missing, unknown or does not fit; names its key
├── SetupError       something this machine must have is not there (Java, a jar, a port)
├── BrokerError      the embedded Kafka broker did not start, or stopped by itself
├── TopicError       a topic cannot be used: it is not there, not allowed, or its broker cannot be reached
│   └── PassingTopicError   … and may be usable later, though nobody changes a topic or a setting
├── SinkError        a batch was refused: out of order, or for a generation that was not begun
├── StoreError       the store cannot be used until the server is started again
│   └── DamagedError        … and not then either: its files are damaged
└── RequestError     a client asked for what is not there, not allowed or too much; carries a code for programs
"""

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


class LivetablesError(Exception):
    """Root of all errors that livetables raises on purpose: `problem`, and the `cure` that mends it."""

    def __init__(self, problem: str, cure: str) -> None:
        super().__init__(f"{problem}\n  cure: {cure}")
        self.problem = problem
        self.cure = cure


class ConfigError(LivetablesError):
    """A setting is missing, unknown or does not fit."""


class SetupError(LivetablesError):
    """Something this machine must have is not there."""


class BrokerError(LivetablesError):
    """The embedded Kafka broker did not start, or stopped by itself."""


class TopicError(LivetablesError):
    """A topic cannot be used: it is not there, not allowed, or its broker cannot be reached."""


class PassingTopicError(TopicError):
    """A topic cannot be used now, but perhaps later, though nobody changes a topic or a setting."""


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
        self.code = code
