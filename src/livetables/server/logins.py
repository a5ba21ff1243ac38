"""Who may try a key: an address that has presented too many different wrong ones has to wait. Pure but for the clock.

The same wrong key again is no further guess: a forgotten page with an old key locks nobody out. What has logged in goes
on, whatever others at its address do, for as long as its connection lasts and brings no wrong key.
"""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

WINDOW_SECONDS = 60.0
WRONG_KEYS_MAX = 20  # different ones from one address within the window
ADDRESSES_MAX = 10_000  # remembered at a time; those that were heard of least lately are forgotten first
CONNECTIONS_MAX = 10_000
HASH_BYTES = 16
IPV6_PREFIX = 64  # what one subscriber has at least, to choose addresses from

Name = TypeVar("Name")
Value = TypeVar("Value")


@dataclass(frozen=True)
class Peer:
    """The other end of a connection. Without a port it is known by its address only, as behind a proxy."""

    address: str
    port: int | None = None

    @property
    def network(self) -> str:
        """What counts as one address."""
        try:
            address = ipaddress.ip_address(self.address.partition("%")[0])
        except ValueError:
            return self.address
        if isinstance(address, ipaddress.IPv4Address):
            return str(address)
        if address.ipv4_mapped:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, IPV6_PREFIX), strict=False))


class Logins:
    """Failed logins by address, over all doors. Any thread may use it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._salt = secrets.token_bytes(HASH_BYTES)
        self._lock = threading.Lock()
        self._wrong: OrderedDict[str, OrderedDict[bytes, float]] = OrderedDict()  # when each was last seen, by address
        self._let_in: OrderedDict[Peer, None] = OrderedDict()

    def attempt(self, peer: Peer, token: str, *, is_right: bool) -> float | None:
        """Take note of a login. If it is not to count, right or wrong: how long the peer has to wait."""
        with self._lock:
            wrong = self._recent(peer.network)
            if len(wrong) >= WRONG_KEYS_MAX and peer not in self._let_in:
                return next(iter(wrong.values())) + WINDOW_SECONDS - self._clock()
            if is_right and peer.port is not None:
                _remember(self._let_in, peer, None, CONNECTIONS_MAX)
            elif not is_right:
                self._let_in.pop(peer, None)
                _remember(wrong, self._digest(token), self._clock(), WRONG_KEYS_MAX)
                _remember(self._wrong, peer.network, wrong, ADDRESSES_MAX)
            return None

    def _digest(self, token: str) -> bytes:
        text = token.encode(errors="surrogatepass")
        return hashlib.blake2b(text, key=self._salt, digest_size=HASH_BYTES).digest()

    def _recent(self, network: str) -> OrderedDict[bytes, float]:
        """The wrong keys of the window that ends now, the longest unseen first."""
        wrong = self._wrong.get(network, OrderedDict())
        begin = self._clock() - WINDOW_SECONDS
        while wrong and next(iter(wrong.values())) <= begin:
            wrong.popitem(last=False)
        return wrong


def _remember(place: OrderedDict[Name, Value], name: Name, value: Value, most: int) -> None:
    """Set it as the latest; what is more than fits goes, the earliest first."""
    place[name] = value
    place.move_to_end(name)
    while len(place) > most:
        place.popitem(last=False)
