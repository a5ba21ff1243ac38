"""The name of this system in its own control messages, for other systems on the same topic."""

from __future__ import annotations

import socket

from livetables.config.values import Config


def system_of(config: Config) -> str:
    """Return the configured name, or else one made of its host and server."""
    return config.control.system or f"{socket.gethostname()} {config.pipeline.server}"
