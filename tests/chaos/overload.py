"""Many times more records than can be taken: memory stays flat, the status says so, and in the end all are there.

What can be taken is bounded by a link between pipeline and server that is slow, so that a producer on the same machine
can send five times as much.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from livetables.local.broker import HOST
from tests.chaos.links import Link
from tests.chaos.soak import check_rows, loaded
from tests.chaos.subject import PIPELINE_HOST
from tests.chaos.usage import Sample, grown, sample
from tests.support.system import System

SETTINGS = {
    "LIVETABLES_GENERATIONS_SWITCH_AFTER_SECONDS": "600",
    "LIVETABLES_PIPELINE_BATCH_SECONDS": "30",
    "LIVETABLES_PIPELINE_MAX_RECORDS_PER_BATCH": "20000",
}
SERVER_SETTINGS = {"LIVETABLES_SERVER_MEMORY_MEGABYTES": "512"}  # so that tables that grow soon take no more
TIMES = 5
SLOW_BYTES = 24 * 1024  # twenty times a second
MEASURE_SECONDS = 20.0
SAMPLE_SECONDS = 5.0
FIRST_RATE = 20_000  # while it is measured what can be taken: more than that
CATCH_UP_SECONDS = 1800.0


def run_overload(seed: int, *, minutes: float, notify: Callable[[str], None]) -> dict[str, Any]:
    """Send five times what can be taken for so long, then let everything be taken."""
    samples: list[Sample] = []
    messages: list[str] = []
    with loaded(seed, 100, SETTINGS, SERVER_SETTINGS) as (system, load):
        server = system.server
        link = Link((PIPELINE_HOST, server.port), (HOST, server.port))
        flight = Link((PIPELINE_HOST, server.flight_port), (HOST, server.flight_port))
        link.slow_bytes = SLOW_BYTES
        with link, flight:
            system.pipeline.stop()
            system.pipeline.start(LIVETABLES_PIPELINE_SERVER=f"grpc://{PIPELINE_HOST}:{server.flight_port}")
            check_moving(system)
            with link.broken("slow"):
                load.rate = FIRST_RATE
                time.sleep(MEASURE_SECONDS / 2)  # not a wait: until buffers are full
                start = shown(system)
                time.sleep(MEASURE_SECONDS)  # nor is this: it is measured
                taken = (shown(system) - start) / MEASURE_SECONDS
                load.rate = max(1000.0, TIMES * taken)
                notify(f"{taken:,.0f} records a second can be taken; sending {load.rate:,.0f}")
                started, sent = time.monotonic(), load.sent
                while (passed := time.monotonic() - started) < minutes * 60:
                    time.sleep(SAMPLE_SECONDS)
                    status = system.status()
                    samples.append({"minutes": round(passed / 60, 2), "lag": status["lag"], **sample(system)})
                    messages.append(str(status["message"]))
                    notify(
                        f"{passed:5.0f} s: JVM {samples[-1]['jvm_megabytes']:,.0f} MB, server "
                        f"{samples[-1]['server_megabytes']:,.0f} MB; {messages[-1]}"
                    )
                rate = (load.sent - sent) / (time.monotonic() - started)
                load.stop()
            ended = time.monotonic()
            check_rows(system, load.pair, CATCH_UP_SECONDS)
    found = grown(samples)
    overloaded = [each for each in messages if each.startswith("overloaded") and "caught up about" in each]
    notify(
        f"overload: {rate:,.0f} records a second sent for {minutes:g} min, {taken:,.0f} taken; "
        f"all {load.sent:,} were there {time.monotonic() - ended:.0f} s after the last; grown: {found}"
    )
    assert overloaded, f"the status never said that there is too much: {messages[-5:]}"
    assert not found, found
    return {
        "seed": seed,
        "taken_per_second": round(taken),
        "sent_per_second": round(rate),
        "records": load.sent,
        "samples": samples,
        "status": messages,
        "grown": found,
    }


def shown(system: System) -> int:
    """How many records the server has."""
    sink = system.server.sink()
    try:
        return sum(sum(each.records.values()) for each in sink.generations() if not each.name.startswith("status-"))
    finally:
        sink.close()


def check_moving(system: System) -> None:
    before = shown(system)
    system.wait(lambda: shown(system) > before, "records come again", system.status)
