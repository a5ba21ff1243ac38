"""The codes of errors: one table of what they mean to HTTP, to a WebSocket, and to who sent the request."""

from __future__ import annotations

import re
from http import HTTPStatus
from pathlib import Path
from typing import get_args

import pytest

from livetables.model.errors import ERROR_KINDS, ErrorCode, RequestError

PAGE = Path(__file__).parents[2] / "web" / "core" / "src" / "connection-state.ts"


def test_every_code_has_its_meaning() -> None:
    assert tuple(ERROR_KINDS) == get_args(ErrorCode)


@pytest.mark.parametrize("code", ERROR_KINDS)
def test_a_code_is_an_http_error_and_a_close_code_of_applications(code: ErrorCode) -> None:
    assert HTTPStatus(ERROR_KINDS[code].status) >= HTTPStatus.BAD_REQUEST
    assert 4000 <= ERROR_KINDS[code].close_code < 5000


def test_only_what_passes_by_itself_is_retryable() -> None:
    retryable = {code for code in ERROR_KINDS if RequestError(code, "problem", "cure").is_retryable}
    assert retryable == {"busy", "timeout", "unavailable"}


def test_a_code_of_a_newer_server_is_not_retryable() -> None:
    assert not RequestError("of_tomorrow", "problem", "cure").is_retryable  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("constant", "code"),
    [("CLOSE_BAD_LOGIN", "bad_frame"), ("CLOSE_WRONG_KEY", "unauthorized"), ("CLOSE_WRONG_ROLE", "forbidden")],
)
def test_the_page_has_the_same_close_codes(constant: str, code: ErrorCode) -> None:
    (found,) = re.findall(rf"const {constant} = (\d+);", PAGE.read_text())
    assert int(found) == ERROR_KINDS[code].close_code
