"""Recent rows: which are forgotten, and which never."""

from __future__ import annotations

from random import Random

import pytest

from livetables.server.storage import recent
from livetables.server.storage.recent import ROW_BYTES, Recent, RecentRows
from livetables.server.viewports.row import Row


def row(number: int, letters: int = 0) -> Row:
    return Row(number, ("x" * letters,))


def ids(rows: RecentRows) -> list[int]:
    return [number for number in range(100) if number in rows]


def test_the_oldest_rows_are_forgotten_beyond_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "ROWS_MAX", 3)
    rows = RecentRows()
    for number in range(5):
        rows[number] = row(number)
    rows.trim(1_000_000, lambda *_: True)
    assert ids(rows) == [2, 3, 4]


def test_the_oldest_rows_are_forgotten_beyond_so_many_bytes() -> None:
    rows = RecentRows()
    for number in range(5):
        rows[number] = row(number, 1_000)
    rows[0] = row(0, 10)  # a row that is replaced counts once
    rows[1] = None
    rows.trim(5 * ROW_BYTES + 3 * 1_100, lambda *_: True)
    assert ids(rows) == [0, 1, 2, 3, 4]
    rows.trim(4 * ROW_BYTES, lambda *_: True)
    assert ids(rows) == [4]


def test_what_is_not_on_disk_is_never_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "ROWS_MAX", 5)
    chance = Random(1)
    rows, stored = RecentRows(), set[int]()
    for _ in range(1_000):
        number = chance.randrange(100)
        rows[number] = chance.choice([None, row(number, chance.randrange(2_000))])
        stored = {each for each in range(100) if chance.random() < 0.7}
        kept = [each for each in ids(rows) if each not in stored]
        rows.trim(chance.randrange(20_000), lambda each, _: each in stored)  # noqa: B023
        assert set(kept) <= set(ids(rows))
        assert len(ids(rows)) <= max(5, len(kept))
    for number in range(100):
        rows[number] = None
    rows.trim(ROW_BYTES, lambda *_: True)
    assert len(ids(rows)) == 1, "all sizes were counted back"


def test_all_views_share_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "BYTES_MAX", 8 * ROW_BYTES)
    views = Recent()
    for generation in ("g1", "g2"):
        for number in range(10):
            views.of(generation, "final_ui")[number] = None
    views.trim(lambda *_: lambda *_: True)
    assert [len(ids(views.of(generation, "final_ui"))) for generation in ("g1", "g2")] == [4, 4]
    views.forget("g1")
    views.trim(lambda *_: lambda *_: True)
    assert ids(views.of("g1", "final_ui")) == []
    assert len(ids(views.of("g2", "final_ui"))) == 4
