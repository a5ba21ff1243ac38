"""The pre-shared keys that open every door, and what becomes of who presents another."""

from __future__ import annotations

import hmac
import logging
import math
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from starlette.types import Scope

from livetables.errors import RequestError
from livetables.log import Throttle
from livetables.server.logins import Logins, Peer
from livetables.server.metrics import Metrics

log = logging.getLogger(__name__)
throttles: defaultdict[str, Throttle] = defaultdict(Throttle)  # by door: a flood at one hides nothing at another


class TooManyLoginsError(RequestError):
    """An address has presented one more wrong key after too many: it is to wait for a while."""

    def __init__(self, wait_seconds: float) -> None:
        self.wait_seconds = max(1, math.ceil(wait_seconds))
        super().__init__(
            "busy",
            "too many different wrong keys came from this address",
            f"send the server's key, or try again in {self.wait_seconds} s",
        )


class Key:
    """Compares what a client presents with the keys, in a time that tells nothing about them."""

    def __init__(self, *tokens: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._logins = Logins(clock)
        self._tokens: tuple[bytes, ...] = ()
        self.change(tokens)

    def __repr__(self) -> str:
        return "Key(<redacted>)"

    def change(self, tokens: Sequence[str]) -> bool:
        """From now on these are the keys; whether they were others before."""
        assert tokens, "without a key nobody could come in"
        assert all(tokens), "an empty key would open the door to everybody"
        before, self._tokens = self._tokens, tuple(token.encode() for token in tokens)
        return before != self._tokens

    def fits(self, presented: str | None) -> bool:
        if presented is None:
            return False
        given = presented.encode(errors="surrogatepass")
        return any([hmac.compare_digest(given, token) for token in self._tokens])  # a list: all are compared

    def check(self, peer: Peer, presented: str | None) -> None:
        """Return if the peer may come in; a RequestError tells why not. To present none is not to guess."""
        if not presented:
            raise RequestError("unauthorized", "the key is missing", "send the server's key")
        if self.fits(presented):
            return
        wait_seconds = self._logins.failed(peer, presented)
        if wait_seconds is not None:
            raise TooManyLoginsError(wait_seconds)
        raise RequestError("unauthorized", "the key is wrong", "send the key that the server has now")


def let_in(key: Key, metrics: Metrics, door: str, peer: Peer, presented: str | None) -> None:
    """Return if the peer may come in by a door; who may not is counted and logged, and a RequestError tells why."""
    try:
        key.check(peer, presented)
    except RequestError as problem:
        metrics.login_failed(door, problem)
        throttles[door].tell(log, "login_failed", logging.WARNING, door=door, address=peer.address or None)
        raise


def peer_of(scope: Scope) -> Peer:
    """Who sent a request, or opened a WebSocket; behind a proxy of `server.proxies`, whom the proxy names."""
    address, _ = scope.get("client") or ("", 0)
    return Peer(address)


def bearer(authorization: str | None) -> str | None:
    """The key in an `Authorization` header; None if it has none."""
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def generated_token() -> str:
    return secrets.token_urlsafe(24)
