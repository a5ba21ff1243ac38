"""The pre-shared key that opens every door."""

from __future__ import annotations

import hmac
import secrets


class Key:
    """Compares what a client presents with the key, in a time that tells nothing about it."""

    def __init__(self, token: str) -> None:
        assert token, "an empty key would open the door to everybody"
        self._token = token.encode()

    def __repr__(self) -> str:
        return "Key(<redacted>)"

    def fits(self, presented: str | None) -> bool:
        return presented is not None and hmac.compare_digest(presented.encode(errors="surrogatepass"), self._token)

    def fits_header(self, authorization: str | None) -> bool:
        """Whether an `Authorization` header is `Bearer` and the key."""
        scheme, _, token = (authorization or "").partition(" ")
        return scheme.lower() == "bearer" and self.fits(token.strip())


def generated_token() -> str:
    return secrets.token_urlsafe(24)
