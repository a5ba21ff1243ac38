"""Frames made by hand are frames that a WebSocket client understands."""

from __future__ import annotations

import pytest
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from livetables.server.live.websocket import text_frame


@pytest.mark.parametrize("length", [0, 1, 125, 126, 127, 65_535, 65_536, 300_000])
def test_a_frame_of_any_length_is_understood(length: int) -> None:
    client = ClientProtocol(parse_uri("ws://localhost/ws"), state=State.OPEN, max_size=None)
    text = "é" * (length // 2) + "x" * (length % 2)
    client.receive_data(text_frame(text) * 2)
    assert client.parser_exc is None
    assert client.events_received() == [Frame(Opcode.TEXT, text.encode())] * 2
