"""A short cut of the fan-out benchmark: many real sockets on one viewport, none of them left behind."""

from __future__ import annotations

import pytest

from bench.serving import LOAD_ROWS, Feeder, fanout, loaded_server, stalled

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("relays", [0, 2])
def test_a_crowd_on_one_viewport_costs_one_change_of_it_a_batch_and_nobody_ends_behind(relays: int) -> None:
    with loaded_server(LOAD_ROWS, relays) as server:
        feeder = Feeder(server, LOAD_ROWS)
        figures = fanout(server, feeder, clients=200, seconds=2, warm_seconds=0.5)
        assert (figures["relays"], figures["viewports"], figures["behind"], figures["lost"]) == (relays, 1, 0, 0)
        assert 0 < figures["advances"] <= figures["batches"]
        assert figures["asked"] == 0, "the store was asked for what the frames had brought"
        assert stalled(server, feeder, seconds=2)["same_at_the_end"]
