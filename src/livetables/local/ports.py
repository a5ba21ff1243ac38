"""Ports that a process can come back to."""

from __future__ import annotations

import random
import socket
from itertools import islice

from livetables.model.errors import SetupError

LOOPBACK = "127.0.0.1"

# Below what systems hand out as the near end of outgoing connections (from 32768 on Linux, 49152 elsewhere). A port
# from that range is not safe to come back to: while its owner is down, a client that keeps trying to reach it can be
# given that very port for its own end, connects to itself, and from then on holds the port.
PORTS = range(20_000, 32_000)


def free_ports(count: int, host: str = LOOPBACK) -> list[int]:
    """Different ports that nobody listens on now, and that only a listener can take."""
    if count and (problem := _bound(0, host)):
        raise SetupError(f"nothing can listen at {host}: {problem}", "set server.host to an address of this machine")
    ports = list(islice((port for port in random.sample(PORTS, len(PORTS)) if is_free(port, host)), count))
    if len(ports) < count:
        raise SetupError(f"no free port between {PORTS.start} and {PORTS.stop}", "stop some of what listens there")
    return ports


def is_free(port: int, host: str = LOOPBACK) -> bool:
    return _bound(port, host) is None


def _bound(port: int, host: str) -> OSError | None:
    """Listen at an address for a moment, or return why that is impossible."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: connections of an earlier owner that are still winding down are not in the way.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error
        return None
