"""Relays as the server keeps them. With real ones, in test_main.py."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from livetables.server.api.services import Services
from livetables.server.relays.supervisor import Relays


def test_relays_are_stopped_also_if_one_fails_while_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The failure is a fake: a clock that is set makes the wait for a process fail, once in many runs."""

    async def stop_one() -> None:
        relays, is_running = Relays(1, cast(Services, SimpleNamespace()), [], []), asyncio.Event()

        async def run(_: int) -> str:
            is_running.set()
            try:
                await asyncio.Event().wait()
            finally:
                raise OSError("Invalid argument")

        monkeypatch.setattr(relays, "_run", run)
        keeping = asyncio.create_task(relays._keep(1))
        monkeypatch.setattr(relays, "_keeping", [keeping])
        await is_running.wait()
        async with asyncio.timeout(5):
            await relays.stop()
        assert keeping.done()
        assert not keeping.cancelled()
        assert keeping.exception() is None

    asyncio.run(stop_one())
