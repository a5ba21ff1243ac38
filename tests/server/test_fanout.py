"""A short cut of the fan-out benchmark: many real sockets on one viewport, none of them left behind."""

from __future__ import annotations

from bench.serving import LOAD_ROWS, Feeder, fanout, loaded_server, stalled


def test_a_crowd_on_one_viewport_costs_one_evaluation_a_batch_and_nobody_ends_behind() -> None:
    with loaded_server(LOAD_ROWS) as (server, sink):
        feeder = Feeder(sink, LOAD_ROWS)
        figures = fanout(server, feeder, clients=200, seconds=2, warm_seconds=0.5)
        assert (figures["viewports"], figures["behind"], figures["lost"]) == (1, 0, 0)
        assert 0 < figures["evaluations"] <= figures["batches"]
        assert stalled(server, feeder, seconds=2)["same_at_the_end"]
