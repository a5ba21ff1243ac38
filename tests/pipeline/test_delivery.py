"""What a generation's sink remembers of its batches, and of how the server took them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from livetables.change import Batch, TableChanges
from livetables.config import load_config
from livetables.errors import SinkError
from livetables.pipeline import changelog
from livetables.pipeline.delivery import Delivered, Delivery
from tests.support.server import ServerProcess

SPEC = load_config(None, {}).spec
SHAPES = changelog.shapes(SPEC)


def batch(batch_id: int, generation: str = "g1") -> Batch:
    users = pa.Table.from_pylist([{"_id": batch_id, "userId": "u1"}], schema=SHAPES[0].schema)
    letters = [
        {"_id": batch_id, "source": "accounts_ui", "reason": reason} for reason in ("balance is text", "not JSON")
    ]
    dead = pa.Table.from_pylist(letters[:1] if batch_id else letters[1:], schema=changelog.DEAD_LETTER_SCHEMA)
    none = pa.table({})
    return Batch(
        generation, batch_id, (TableChanges("users_ui", users, none), TableChanges("dead_letters", dead, none))
    )


def test_rows_and_dead_letters_are_counted_and_a_refusal_is_kept(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        delivered = Delivered()
        delivery = Delivery(server.sink(), delivered)
        delivery.begin("g1", SHAPES)
        delivery.put(batch(0))
        delivery.put(batch(1))
        assert delivered.upserts["users_ui"] == 2
        assert delivered.dead_letters == {"accounts_ui": 2}
        assert delivered.first_reasons == {"accounts_ui": "not JSON"}
        assert delivery.refused is None
        with pytest.raises(SinkError, match="came where 2 was due"):
            delivery.put(batch(5))
        assert delivery.refused
        delivery.close()


def test_a_server_that_is_away_refuses_nothing(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        delivery = Delivery(server.sink(patience_seconds=3), Delivered())
        delivery.begin("g1", SHAPES)
        server.kill()
        with pytest.raises(SinkError):
            delivery.put(batch(0))
        assert delivery.refused is None
        assert delivery.unanswered
        server.start()
        delivery.put(batch(0))
        assert delivery.unanswered is None
        delivery.close()
        with pytest.raises(SinkError, match="closed"):
            delivery.put(batch(1))
        assert delivery.refused is None
