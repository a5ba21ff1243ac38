"""The socket between server and relay: what waits is the newest, and no more of it than there are keys."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from functools import partial

from livetables.server.relays.link import Outbox, received
from livetables.server.relays.messages import Unsubscribe, from_relay

LARGE = "x" * 1_000_000


def test_of_what_waits_under_one_key_only_the_newest_is_sent() -> None:
    async def sent() -> list[int]:
        ours, its = socket.socketpair()
        reader, other_writer = await asyncio.open_unix_connection(sock=its)
        _, writer = await asyncio.open_unix_connection(sock=ours)
        outbox = Outbox(writer)
        for state in range(1000):
            outbox.put("state", partial(Unsubscribe, sub=state))
        outbox.put("other", lambda: Unsubscribe(sub=100))
        outbox.put("nothing", lambda: None)
        outbox.put("gone", lambda: Unsubscribe(sub=200))
        assert outbox.take_back("gone")
        assert not outbox.take_back("gone")
        sending = asyncio.create_task(outbox.send())
        first = [from_relay.validate_json(await received(reader)) for _ in range(2)]
        outbox.put("end", lambda: Unsubscribe(sub=300))
        last = from_relay.validate_json(await received(reader))
        sending.cancel()
        for each in (writer, other_writer):
            each.close()
        return [message.sub for message in (*first, last) if isinstance(message, Unsubscribe)]

    assert asyncio.run(sent()) == [999, 100, 300]


def test_nothing_more_is_made_while_the_other_side_does_not_read() -> None:
    async def made_while_stalled() -> tuple[int, int]:
        ours, its = socket.socketpair()
        reader, other_writer = await asyncio.open_unix_connection(sock=its, limit=1024)
        _, writer = await asyncio.open_unix_connection(sock=ours)
        outbox, made = Outbox(writer), 0

        def message() -> Unsubscribe:
            nonlocal made
            made += 1
            return Unsubscribe.model_construct(type="unsubscribe", sub=LARGE)

        for key in range(50):
            outbox.put(key, message)
        sending = asyncio.create_task(outbox.send())
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(sending), 0.2)
        stalled = made
        for _ in range(50):
            await received(reader)
        sending.cancel()
        for each in (writer, other_writer):
            each.close()
        return stalled, made

    stalled, made = asyncio.run(made_while_stalled())
    assert stalled <= 3
    assert made == 50
