"""Which web pages may use the server, and which names it goes by."""

from __future__ import annotations

import pytest

from livetables.server.access.origins import may_ask, normalised

CONFIGURED = ("https://tables.example", "http://localhost:4200")
HOSTS = ("tables.lan",)


def asks(origin: str | None, host: str | None, scheme: str = "http") -> bool:
    headers = [(b"origin", origin)] if origin is not None else []
    headers += [(b"host", host)] if host is not None else []
    raw = [(name, value.encode("latin-1")) for name, value in headers]
    return may_ask({"type": "http", "scheme": scheme, "headers": raw}, CONFIGURED, HOSTS)


@pytest.mark.parametrize(
    ("origin", "host", "scheme"),
    [
        (None, "anything", "http"),  # a program
        (None, None, "ws"),
        ("http://127.0.0.1:8765", "127.0.0.1:8765", "ws"),
        ("http://localhost:8765", "localhost:8765", "http"),
        ("http://LocalHost:8765", "localhost:8765", "http"),
        ("http://[::1]:8765", "[::1]:8765", "ws"),
        ("http://192.168.1.5:8765", "192.168.1.5:8765", "ws"),
        ("http://tables.lan:8765", "Tables.lan:8765", "ws"),
        ("http://demo.localhost", "demo.localhost:80", "http"),
        ("https://any.name:8765", "any.name:8765", "wss"),  # the browser has seen the certificate for it
        ("https://any.name", "any.name:443", "https"),
        ("https://tables.example", "10.0.0.1:8765", "ws"),  # behind a proxy
        ("https://TABLES.example:443", "tables.example", "ws"),
        ("http://localhost:4200", "localhost:8765", "http"),
    ],
)
def test_these_may_ask(origin: str | None, host: str | None, scheme: str) -> None:
    assert asks(origin, host, scheme)


@pytest.mark.parametrize(
    ("origin", "host", "scheme"),
    [
        ("null", "127.0.0.1:8765", "ws"),
        ("null", "", "ws"),
        ("", "", "http"),
        ("null", None, "http"),
        ("http://evil.example", "127.0.0.1:8765", "ws"),
        ("http://127.0.0.1:3000", "127.0.0.1:8765", "ws"),  # another server of the same machine
        ("http://127.0.0.1", "127.0.0.1:8765", "ws"),
        ("http://127.0.0.1:8765", "localhost:8765", "ws"),
        ("https://127.0.0.1:8765", "127.0.0.1:8765", "ws"),
        ("http://tables.lan", "tables.lan", "wss"),  # a page that anybody on the way may have written
        ("http://evil.example:8765", "evil.example:8765", "ws"),  # a name that was made to point here
        ("https://evil.example:8765", "evil.example:8765", "ws"),
        ("http://tables.example", "tables.example", "ws"),  # configured with https only
        ("http://tables.example.evil.example", "tables.lan", "http"),
        ("http://evil.example@tables.lan", "tables.lan", "http"),
        ("http://tables.lan/", "tables.lan", "http"),
        ("http://[::1", "[::1", "http"),
        ("http://tables.lan:x", "tables.lan:x", "http"),
        ("chrome-extension://abc", "abc", "http"),
        ("http://localhost.evil.example", "localhost.evil.example", "ws"),
        ("http://127.0.0.1.evil.example", "127.0.0.1.evil.example", "ws"),
    ],
)
def test_these_may_not(origin: str, host: str | None, scheme: str) -> None:
    assert not asks(origin, host, scheme)


def test_two_origins_are_one_too_many() -> None:
    headers = [(b"origin", b"http://localhost:4200"), (b"origin", b"http://evil.example"), (b"host", b"localhost")]
    assert not may_ask({"type": "http", "scheme": "http", "headers": headers}, CONFIGURED, HOSTS)


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("HTTPS://Tables.Example:443", "https://tables.example"),
        ("http://host:443", "http://host:443"),
        ("http://[2001:DB8::1]:80", "http://[2001:db8::1]"),
        ("ftp://host", None),
        ("null", None),
    ],
)
def test_origins_are_made_alike(origin: str, expected: str | None) -> None:
    assert normalised(origin) == expected
