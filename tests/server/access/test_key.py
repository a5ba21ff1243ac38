"""The pre-shared key: what fits, and that it shows nowhere."""

from __future__ import annotations

import pytest

from livetables.server.access.key import Key, bearer, generated_token


def test_only_the_token_itself_fits() -> None:
    key = Key("correct horse")
    assert key.fits("correct horse")
    for presented in (None, "", "correct", "correct horse ", "Correct horse", "\ud800", "korrekt Pferd ✓"):
        assert not key.fits(presented)


@pytest.mark.parametrize("header", ["Bearer s3cret", "bearer s3cret", "BEARER   s3cret  "])
def test_a_bearer_header_fits(header: str) -> None:
    assert Key("s3cret").fits(bearer(header))


@pytest.mark.parametrize("header", [None, "", "s3cret", "Bearer", "Bearer ", "Basic s3cret", "Bearer s3cret s3cret"])
def test_another_header_does_not_fit(header: str | None) -> None:
    assert not Key("s3cret").fits(bearer(header))


def test_a_token_beyond_ascii_fits() -> None:
    assert Key("klíč").fits("klíč")


def test_the_token_is_not_shown() -> None:
    assert "s3cret" not in f"{Key('s3cret')!r} {Key('s3cret')}"


def test_an_empty_token_is_no_key() -> None:
    with pytest.raises(AssertionError):
        Key("")


def test_generated_tokens_are_long_and_never_the_same() -> None:
    tokens = {generated_token() for _ in range(100)}
    assert len(tokens) == 100
    assert min(len(token) for token in tokens) >= 32
