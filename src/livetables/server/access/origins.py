"""Which web pages may use the server: its own, and those of configured origins. Programs send no origin. Pure.

A page is the server's own if its origin is the address that it calls the server by. That alone could be anybody's name:
who owns a name may let it point to this machine (DNS rebinding). So the name must also be one that the server is known
by, or that a browser has seen a certificate for.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

SCHEMES = {"http": "http", "ws": "http", "https": "https", "wss": "https"}
DEFAULT_PORTS = {"http": 80, "https": 443}


def may_ask(scope: Scope, origins: Sequence[str], hosts: Sequence[str]) -> bool:
    """Whether a request is from no page, or from one of these origins, or from the server's own, on one of its hosts.

    Origins and hosts are as `normalised` makes them, and in lower case.
    """
    headers = Headers(scope=scope)
    presented = headers.getlist("origin")
    if not presented:
        return True
    origin = normalised(presented[0])
    if origin is None or len(presented) > 1:
        return False
    own = normalised(f"{SCHEMES[scope['scheme']]}://{headers.get('host', '')}")
    return origin in origins or (origin == own and _is_known(own, hosts))


def normalised(origin: str) -> str | None:
    """An origin as browsers write it, and all alike; None if it is not an origin, as `null` is."""
    try:
        parts = urlsplit(origin)
        scheme, host, port = parts.scheme, parts.hostname, parts.port
    except ValueError:
        return None
    if scheme not in DEFAULT_PORTS or not host or origin.count("/") > 2 or set("@?#") & set(origin):
        return None
    written = f"[{host}]" if ":" in host else host
    return f"{scheme}://{written}" if port in (None, DEFAULT_PORTS[scheme]) else f"{scheme}://{written}:{port}"


def _is_known(origin: str, hosts: Sequence[str]) -> bool:
    parts = urlsplit(origin)
    host = parts.hostname or ""
    return (
        parts.scheme == "https"
        or host in hosts
        or host == "localhost"
        or host.endswith(".localhost")
        or _is_address(host)  # which no name server can change
    )


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
