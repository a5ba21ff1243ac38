"""Every error a user can meet. Each says what is wrong and what mends it.

LivetablesError
├── ConfigError      a setting is missing, unknown or does not fit; names its key
├── SetupError       something this machine must have is not there (Java, a jar, a port)
├── BrokerError      the embedded Kafka broker did not start, or stopped by itself
└── SinkError        a batch was refused: out of order, or for a generation that was not begun
"""


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


class SinkError(LivetablesError):
    """A batch was refused: out of order, or for a generation that was not begun."""
