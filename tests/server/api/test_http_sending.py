"""Responses leave in pieces, and only so much of them waits for clients that take nothing.

A client that reads nothing is a `send` here that does not return: how much the buffers between it and the server hold
is the system's choice, and here it has to be nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from livetables.server.api import http_sending
from livetables.server.api.http_sending import PIECE_BYTES, Sending

SCOPE: Scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "asgi": {"spec_version": "2.3"}}


async def stay() -> Message:
    """A client that does not leave."""
    await asyncio.Event().wait()
    raise AssertionError


def window(body: bytes) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(body, headers={"X-Generation": "g1"})(scope, receive, send)

    return app


def taking(count: int, sent: list[Message]) -> Callable[[Message], Coroutine[Any, Any, None]]:
    """A client that takes so many messages, and then no more."""

    async def send(message: Message) -> None:
        if len(sent) == count:
            await asyncio.Event().wait()  # as a connection whose buffers are full does
        sent.append(message)

    return send


def body_of(sent: list[Message]) -> bytes:
    return b"".join(message.get("body", b"") for message in sent)


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, PIECE_BYTES * 3])
def test_a_response_comes_in_pieces_and_whole(size: int) -> None:
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    sent: list[Message] = []
    asyncio.run(Sending(window(body))(SCOPE, stay, taking(-1, sent)))
    start, *pieces = sent
    assert (start["type"], start["status"]) == ("http.response.start", 200)
    assert body_of(pieces) == body
    assert max(len(piece["body"]) for piece in pieces) <= PIECE_BYTES
    assert [bool(piece.get("more_body")) for piece in pieces] == [True] * (len(pieces) - 1) + [False]


def test_while_too_much_waits_a_large_response_is_an_error_and_a_small_one_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_sending, "WAITING_BYTES_MAX", PIECE_BYTES * 8)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        pieces = int(Request(scope).query_params["pieces"])
        await window(b"x" * PIECE_BYTES * pieces)(scope, receive, send)

    async def answered(sending: Sending, pieces: int) -> list[Message]:
        sent: list[Message] = []
        asked = {**SCOPE, "query_string": f"pieces={pieces}".encode()}
        await sending(asked, stay, taking(-1, sent))
        return sent

    async def run() -> None:
        sending = Sending(app)
        unread: list[Message] = []
        asked = {**SCOPE, "query_string": b"pieces=6"}
        waiting = asyncio.create_task(sending(asked, stay, taking(1, unread)))
        while not unread:
            await asyncio.sleep(0)
        start, body = await answered(sending, 3)
        assert start["status"] == 429
        headers = dict(start["headers"])
        assert headers[b"x-generation"] == b"g1"
        assert int(headers[b"content-length"]) == len(body["body"])
        assert json.loads(body["body"])["code"] == "busy"
        assert (await answered(sending, 1))[0]["status"] == 200
        assert (await answered(sending, 2))[0]["status"] == 200
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert (await answered(sending, 3))[0]["status"] == 200
        assert (await answered(sending, 20))[0]["status"] == 200, "alone, a response may be of any size"

    asyncio.run(run())


def test_an_error_before_the_body_is_still_one() -> None:
    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ZeroDivisionError

    sent: list[Message] = []
    with pytest.raises(ZeroDivisionError):
        asyncio.run(Sending(app)(SCOPE, stay, taking(-1, sent)))
    assert sent == []
