"""The pre-shared keys of every endpoint with the roles that they give, and what becomes of who presents another."""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from starlette.types import Scope

from livetables.log import Throttle
from livetables.model.errors import RequestError
from livetables.model.roles import Right, Role, RoleKey, has_right, refusal
from livetables.server.access.logins import Logins, Peer
from livetables.server.health.metrics import Metrics

log = logging.getLogger(__name__)
throttles: defaultdict[str, Throttle] = defaultdict(Throttle)  # by endpoint: a flood at one hides nothing at another


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
    """Compares what a client presents with the keys, in a time that reveals nothing about them."""

    def __init__(self, *keys: str | RoleKey, clock: Callable[[], float] = time.monotonic) -> None:
        """A key that is given as text alone is an operator's."""
        self._logins = Logins(clock)
        self._keys: tuple[tuple[bytes, Role], ...] = ()
        self.change(keys)

    def __repr__(self) -> str:
        return "Key(<redacted>)"

    def change(self, keys: Sequence[str | RoleKey]) -> bool:
        """From now on these are the keys; whether they were others before."""
        given = [RoleKey(key) if isinstance(key, str) else key for key in keys]
        assert given, "without a key nobody could come in"
        assert all(key.token for key in given), "an empty key would let everybody in"
        before, self._keys = self._keys, tuple((_digest(key.token), key.role) for key in given)
        return before != self._keys

    def role_of(self, presented: str | None) -> Role | None:
        """The role of who presents a key; None if it is not a key. All keys are compared, by digests of one length."""
        if presented is None:
            return None
        given = _digest(presented)
        found = [role for digest, role in self._keys if hmac.compare_digest(given, digest)]
        return found[0] if found else None

    def fits(self, presented: str | None) -> bool:
        return self.role_of(presented) is not None

    def check(self, peer: Peer, presented: str | None) -> Role:
        """The role of the peer; a RequestError has the reason why it has none. To present no key is not to guess."""
        if not presented:
            raise RequestError("unauthorized", "the key is missing", "send the server's key")
        role = self.role_of(presented)
        if role is not None:
            return role
        wait_seconds = self._logins.failed(peer, presented)
        if wait_seconds is not None:
            raise TooManyLoginsError(wait_seconds)
        raise RequestError("unauthorized", "the key is wrong", "send the key that the server has now")

    def check_right(self, role: Role, right: Right) -> None:
        """Return if the role has the right; a RequestError names the role that is needed."""
        if not has_right(role, right, [each for _, each in self._keys]):
            raise refusal(role, right)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()


def let_in(key: Key, metrics: Metrics, endpoint: str, peer: Peer, presented: str | None, right: Right) -> Role:
    """The role of a peer that may do what it asks for at an endpoint.

    Others are counted and logged, and a RequestError has the reason.
    """
    try:
        role = key.check(peer, presented)
    except RequestError as problem:
        metrics.login_failed(endpoint, problem)
        throttles[endpoint].log_event(log, "login_failed", logging.WARNING, door=endpoint, address=peer.address or None)
        raise
    try:
        key.check_right(role, right)
    except RequestError:
        throttles[endpoint].log_event(
            log, "role_refused", logging.WARNING, door=endpoint, address=peer.address or None, role=role, right=right
        )
        raise
    return role


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
