"""What this system is called in its own control messages, so that others on the same topic know whose they are."""

from __future__ import annotations

import socket

from livetables.config.values import Config


def system_of(config: Config) -> str:
    """The name that is configured, or else where the system is."""
    return config.control.system or f"{socket.gethostname()} {config.pipeline.server}"
