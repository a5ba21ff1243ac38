"""An export whose client takes nothing: it ends in time, so that the database can write its file again."""

from __future__ import annotations

import asyncio
import logging

import pytest
from starlette.types import Message, Scope

from livetables.server.api import http_tables
from livetables.server.api.http_tables import Chunks
from livetables.server.viewports.encoding import CSV

SECONDS = 0.05
SCOPE: Scope = {"type": "http", "client": ("192.0.2.7", 4711), "asgi": {"spec_version": "2.3"}}


async def stay() -> Message:
    """A client that does not leave."""
    await asyncio.Event().wait()
    raise AssertionError


@pytest.mark.parametrize("version", ["2.3", "2.4"])
def test_an_export_that_nobody_reads_is_given_up_and_lets_go_of_its_rows(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, version: str
) -> None:
    monkeypatch.setattr(http_tables, "STALLED_SECONDS_MAX", SECONDS)
    sent: list[Message] = []
    closed: list[bool] = []

    async def send(message: Message) -> None:
        if len(sent) == 3:
            await asyncio.Event().wait()  # as a connection whose buffers are full does
        sent.append(message)

    async def export() -> None:
        chunks = Chunks(iter([b"x" * http_tables.PIECE_BYTES * 5]), lambda: closed.append(True), CSV)
        await asyncio.wait_for(chunks({**SCOPE, "asgi": {"spec_version": version}}, stay, send), 10)

    with caplog.at_level(logging.WARNING):
        asyncio.run(export())
    assert closed == [True]
    assert [message["type"] for message in sent] == ["http.response.start", *["http.response.body"] * 2]
    assert "event=export_stalled" in caplog.text
    assert "192.0.2.7" in caplog.text


def test_an_export_that_is_read_slowly_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_tables, "STALLED_SECONDS_MAX", SECONDS * 4)
    body = bytes(range(256)) * 256 * 12
    taken: list[bytes] = []

    async def send(message: Message) -> None:
        await asyncio.sleep(SECONDS)  # all of it takes three times as long as a client may take nothing
        taken.append(message.get("body", b""))

    async def export() -> None:
        await Chunks(iter([body]), lambda: None, CSV)(SCOPE, stay, send)

    asyncio.run(export())
    assert b"".join(taken) == body
