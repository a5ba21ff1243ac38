"""A long run: memory, threads, files and latency of every process, minute by minute, and whether they stay flat."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from livetables.local.broker import Broker
from tests.chaos.load import Load, Pair
from tests.chaos.plot import svg
from tests.chaos.report import percentile
from tests.chaos.usage import Sample, grown, sample
from tests.support.kafka import create_topic, unique_topic, wait_until
from tests.support.system import WAIT_SECONDS, System

SETTINGS = {
    "LIVETABLES_GENERATIONS_LINGER_SECONDS": "8",
    "LIVETABLES_GENERATIONS_SWITCH_AFTER_SECONDS": "600",
    "LIVETABLES_PIPELINE_BATCH_SECONDS": "30",
}
FIRST_RECORDS = 1000  # that a topic has before tables are pointed to it
SAMPLES_MIN = 10
PROCESSES = ("server", "driver", "jvm", "broker")


class Crowd:
    """The process of `tests.chaos.crowd`, and what it has reported."""

    def __init__(self, address: str, count: int) -> None:
        self.reports: list[dict[str, Any]] = []
        command = [sys.executable, "-m", "tests.chaos.crowd", address, str(count)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self._read, name="crowd", daemon=True).start()

    def taken(self) -> list[dict[str, Any]]:
        """The reports since the last time."""
        taken, self.reports = self.reports, []
        return taken

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self.reports.append(json.loads(line))


@contextmanager
def loaded(
    seed: int, rate: float, settings: dict[str, str], server_settings: dict[str, str] | None = None
) -> Iterator[tuple[System, Load]]:
    """A system whose tables are of a pair of topics that get so many records a second."""
    with (
        tempfile.TemporaryDirectory(prefix="livetables-soak-") as temporary,
        Broker() as broker,
        System(Path(temporary), broker, random.Random(seed), settings, server_settings) as system,
        Load(system.bootstrap, new_pair(system), rate, seed) as load,
    ):
        system.start()
        point(system, load.pair)
        yield system, load


def new_pair(system: System) -> Pair:
    pair = Pair(unique_topic("users"), unique_topic("accounts"))
    for topic in (pair.users, pair.accounts):
        create_topic(system.bootstrap, topic)
    return pair


def point(system: System, pair: Pair) -> None:
    """Have the tables be of a pair, and return when they are."""
    system.send_control({"usersTopic": pair.users, "accountsTopic": pair.accounts, "joinType": "left"})
    system.wait_decided()
    assert system.outcomes(1) == ["applied"], system.control_rows()[-1]


def check_rows(system: System, pair: Pair, seconds: float = WAIT_SECONDS) -> None:
    """Wait until the tables have exactly the rows that they must have."""
    (wanted,), found = [pair.rows], dict[str, int]()

    def are_there() -> bool:
        found.update(
            {name: json.loads(system.server.get(f"/api/tables/{name}/rows?limit=1"))["total"] for name in wanted}
        )
        return found == wanted

    try:
        wait_until(are_there, "every record is shown", seconds)
    except AssertionError as error:
        raise AssertionError(f"{error}: {found} and not {wanted}; {system.status()}") from error


def run_soak(
    seed: int,
    *,
    minutes: float,
    rate: int,
    swap_every_seconds: float,
    clients: int,
    plot: Path | None,
    notify: Callable[[str], None],
) -> dict[str, Any]:
    """Let records, swaps and clients go on for so long; everything that was measured, and what has grown."""
    samples: list[Sample] = []
    sample_seconds = min(60.0, minutes * 60 / SAMPLES_MIN)
    wrong: list[str] = []
    swaps = 0
    with loaded(seed, rate, SETTINGS) as (system, load):
        crowd = Crowd(system.server.websocket, clients)
        try:
            started = sampled = swapped = time.monotonic()
            while time.monotonic() < started + minutes * 60:
                time.sleep(0.5)
                if time.monotonic() >= swapped + swap_every_seconds:
                    swapped = time.monotonic()
                    swap(system, load)
                    swaps += 1
                if time.monotonic() >= sampled + sample_seconds:
                    sampled = time.monotonic()
                    reports = crowd.taken()
                    wrong += [each for report in reports for each in report["wrong"]]
                    samples.append(
                        {"minutes": round((sampled - started) / 60, 2), **sample(system), **seen_by(reports)}
                    )
                    notify(line(samples[-1]))
        finally:
            crowd.close()
        load.stop()
        check_rows(system, load.pair)
    assert not wrong, wrong[:5]
    found = grown(samples)
    for name, (before, after) in found.items():
        notify(f"{name} grew from {before:,.1f} to {after:,.1f}")
    title = f"{minutes:g} minutes, {rate:,} records a second, {clients} clients, {swaps} swaps"
    notify(f"soak: {title}; {load.sent:,} records, 0 frames that were wrong, {len(found)} values that grew")
    if plot:
        plot.write_text(svg(title, [each["minutes"] for each in samples], panels(samples)))
    return {"seed": seed, "records": load.sent, "swaps": swaps, "samples": samples, "grown": found}


def swap(system: System, load: Load) -> None:
    """Point to a new pair, which gets all records from now on."""
    pair = new_pair(system)
    load.point(pair)
    wait_until(
        lambda: pair.users_sent + pair.accounts_sent >= FIRST_RECORDS, "the new topics have records", WAIT_SECONDS
    )
    point(system, pair)


def seen_by(reports: list[dict[str, Any]]) -> Sample:
    """What clients saw: how many are there, frames, and the latency of those who want every row at once."""
    latencies = sorted(each for report in reports for each in report["latencies"])
    seen: Sample = {
        "clients": reports[-1]["connected"] if reports else 0,
        "frames": sum(report["frames"] for report in reports),
        "reconnects": reports[-1]["reconnects"] if reports else 0,
    }
    if latencies:
        seen |= {"p50_ms": percentile(latencies, 0.5), "p99_ms": percentile(latencies, 0.99)}
    return seen


def line(measured: Sample) -> str:
    memory = ", ".join(f"{name} {measured[f'{name}_megabytes']:,.0f} MB" for name in PROCESSES)
    p50, p99 = measured.get("p50_ms", 0), measured.get("p99_ms", 0)
    return (
        f"{measured['minutes']:6.1f} min: {memory}; {measured['clients']:.0f} clients, "
        f"{measured['frames']:,.0f} frames, p50 {p50:,.0f} ms, p99 {p99:,.0f} ms"
    )


def panels(samples: list[Sample]) -> dict[str, dict[str, list[float]]]:
    headings = {"megabytes": "memory, MB", "threads": "threads", "files": "open files"}
    drawn = {
        heading: {name: [each[f"{name}_{unit}"] for each in samples] for name in PROCESSES}
        for unit, heading in headings.items()
    }
    latency = {name: [each.get(f"{name}_ms", 0.0) for each in samples] for name in ("p50", "p99")}
    return {**drawn, "latency from Kafka to a client, ms": latency}
