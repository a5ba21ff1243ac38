"""The hub by itself: whom it tells, and what it survives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from livetables.server import hub as hub_module
from livetables.server.hub import Hub, State
from livetables.server.metrics import Metrics
from livetables.server.store import Store
from livetables.server.viewport import ViewOptions
from tests.support.tables import APPENDS, batch, numbered


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


def test_a_subscriber_that_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    store = Store(None)
    store.begin("g1", [APPENDS])
    store.publish("g1")

    async def watch() -> list[int]:
        hub = Hub(store, Metrics())
        hub.start()
        seen: list[int] = []

        def bad() -> None:
            raise RuntimeError("this client is broken")

        def good() -> None:
            assert isinstance(viewport.state, State)
            seen.append(viewport.state.total)

        viewport = hub.subscribe("appends", ViewOptions(), bad)
        assert hub.subscribe("appends", ViewOptions(), good) is viewport
        for batch_id in range(3):
            await until(lambda batch_id=batch_id: seen == list(range(batch_id + 1)))  # type: ignore[misc]
            store.put(batch("g1", batch_id, {APPENDS: (numbered(batch_id, 1), [])}))
        await until(lambda: seen == [0, 1, 2, 3])
        await hub.stop()
        return seen

    assert asyncio.run(watch()) == [0, 1, 2, 3]
    assert "cannot tell a subscriber of appends" in caplog.text
    store.close()


def test_a_viewport_that_takes_long_is_told_with_its_table(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "SLOW_SECONDS", -1.0)  # every one does
    store = Store(None)
    store.begin("g1", [APPENDS])
    store.publish("g1")

    async def look() -> None:
        hub = Hub(store, Metrics())
        hub.start()
        viewport = hub.subscribe("appends", ViewOptions(), lambda: None)
        await until(lambda: viewport.state is not None)
        await hub.stop()

    asyncio.run(look())
    assert "event=slow_viewport table=appends seconds=" in caplog.text
    store.close()
