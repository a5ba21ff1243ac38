"""Who may try keys: an address that has presented too many different wrong ones has to wait. Pure but for the clock.

The same wrong key again is no further guess. The right key is never refused: any page in a person's browser can present
wrong ones from the person's own address, and must not lock the person out.
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
HASH_BYTES = 16
IPV6_PREFIX = 64  # what one subscriber has at least, to choose addresses from

Name = TypeVar("Name")
Value = TypeVar("Value")


@dataclass(frozen=True)
class Peer:
    """The other end of a connection."""

    address: str

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
    """Failed logins by address, over all endpoints. Any thread may use it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._salt = secrets.token_bytes(HASH_BYTES)
        self._lock = threading.Lock()
        self._wrong: OrderedDict[str, OrderedDict[bytes, float]] = OrderedDict()  # when each was last seen, by address

    def failed(self, peer: Peer, token: str) -> float | None:
        """Count a login with a wrong key. If there were too many before: how long the peer has to wait."""
        with self._lock:
            wrong = self._recent(peer.network)
            if len(wrong) >= WRONG_KEYS_MAX:
                return next(iter(wrong.values())) + WINDOW_SECONDS - self._clock()
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
