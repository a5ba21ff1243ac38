"""An OAuth token endpoint as an identity provider has one: client credentials in, RS256 JWTs out, its keys as JWKS."""

from __future__ import annotations

import base64
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

from livetables.local.ports import LOOPBACK, free_ports
from tests.support.certificates import modulus, signed, signing_key

AUDIENCE = "kafka"
KEY_ID = "test-key"
LIFETIME_SECONDS = 3600


class TokenEndpoint:
    """Mints tokens for one client, by default ones that the broker takes. What it answers can be changed meanwhile."""

    def __init__(self, directory: Path, client_id: str, client_secret: str) -> None:
        self.lifetime_seconds = LIFETIME_SECONDS
        self.audience = AUDIENCE
        self.failure: tuple[int, str] | None = None  # a status and an error to answer instead of a token
        self.tokens: list[str] = []  # all that it has given
        self._key = signing_key(directory / "token.key")
        self._credentials = base64.b64encode(f"{client_id}:{client_secret}".encode()).decode()
        self._client_id = client_id
        self._keys = {"keys": [_public(self._key)]}
        (self._port,) = free_ports(1)
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self._port}/token"

    @property
    def keys_url(self) -> str:
        return f"http://{LOOPBACK}:{self._port}/keys"

    def start(self) -> None:
        """Begin, or begin again, to answer at the same address."""
        self._server = _Server((LOOPBACK, self._port), _handler(self))
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name="token-endpoint", daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def __enter__(self) -> TokenEndpoint:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def answer(self, path: str, authorization: str) -> tuple[int, dict[str, Any]]:
        """Status and content of an answer."""
        if path == "/keys":
            return 200, self._keys
        if self.failure:
            status, error = self.failure
            return status, {"error": error}
        if authorization != f"Basic {self._credentials}":
            return 401, {"error": "invalid_client", "error_description": "the client or its secret is wrong"}
        self.tokens.append(self._token())
        return 200, {"access_token": self.tokens[-1], "token_type": "Bearer", "expires_in": self.lifetime_seconds}

    def _token(self) -> str:
        now = time.time()
        claims = {
            "iss": "livetables-tests",
            "sub": self._client_id,
            "aud": self.audience,
            "scope": "kafka",
            "iat": int(now),
            "exp": int(now) + self.lifetime_seconds,
        }
        header = {"alg": "RS256", "typ": "JWT", "kid": KEY_ID}
        content = f"{_encoded(json.dumps(header).encode())}.{_encoded(json.dumps(claims).encode())}"
        return f"{content}.{_encoded(signed(self._key, content.encode()))}"


class _Server(ThreadingHTTPServer):
    allow_reuse_address = True
    daemon_threads = True


def _handler(endpoint: TokenEndpoint) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self._answer()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

        def _answer(self) -> None:
            status, content = endpoint.answer(self.path, self.headers.get("Authorization", ""))
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


def _public(key: Path) -> dict[str, str]:
    number = modulus(key)
    return {
        "kty": "RSA",
        "use": "sig",
        "alg": "RS256",
        "kid": KEY_ID,
        "n": _encoded(number.to_bytes((number.bit_length() + 7) // 8, "big")),
        "e": _encoded((65537).to_bytes(3, "big")),
    }


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
