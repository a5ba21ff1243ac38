"""How fast the pipeline takes a backlog, how old rows are on arrival, and how its cost grows with history.

Everything runs on this machine in one go, and what is compared is compared within the run: machines are noisy.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as ScreenTable

from bench.load import account, count_records, create_topics, send, steady_accounts, user
from bench.measure import Run
from bench.measuring_server import MeasuringServer
from livetables.config.load import load_config
from livetables.jvm.session import start_session
from livetables.local.broker import Broker
from livetables.model.joins import JoinType
from livetables.model.spec import GenerationSpec, View

WORKLOADS: dict[str, JoinType | None] = {
    "parse": None,
    "natural": "natural",
    "left": "left",
    "inner": "inner",
    "asof": "asof",
}
OTHERS = ("growth", "hot")
RATE = 1000
STEADY_USERS = 1000
SETTLE_SECONDS = 20.0  # until the JVM has compiled what real time runs
BOUNDARY_BATCH_SECONDS, BOUNDARIES = 10, 3
IDLE_SECONDS = 10.0
GROWTH_RECORDS = 200_000
HOT_RECORDS = 100_000  # of one key
console = Console()


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # with all processes
    default = load_config(None, {}).pipeline
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--users", type=int, default=100_000)
    parser.add_argument("--accounts", type=int, default=2_000_000)
    parser.add_argument("--seconds", type=float, default=30.0, help="of the steady stream, for each workload")
    parser.add_argument("--settle", type=float, default=SETTLE_SECONDS, help="seconds of the stream before those")
    parser.add_argument("--rate", type=int, default=RATE, help="accounts a second of the steady stream")
    parser.add_argument("--max-records-per-batch", type=int, default=default.max_records_per_batch)
    parser.add_argument("--only", nargs="+", choices=[*WORKLOADS, *OTHERS], default=[*WORKLOADS, *OTHERS])
    parser.add_argument("--spark", nargs="*", default=[], metavar="NAME=VALUE", help="Spark settings to try")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()

    figures: dict[str, Any] = {"cores": os.cpu_count(), "users": arguments.users, "accounts": arguments.accounts}
    with Broker(heap_megabytes=512) as broker, MeasuringServer() as server:
        bootstrap = broker.bootstrap_servers
        fill(bootstrap, "full", arguments.users, arguments.accounts)
        fill(bootstrap, "warm", arguments.users // 5, arguments.accounts // 5)
        extra = dict(setting.split("=", 1) for setting in arguments.spark)
        spark = start_session(driver_memory_megabytes=4096, extra=extra)
        try:
            for name in WORKLOADS:
                if name in arguments.only:
                    figures[name] = workload(spark, bootstrap, server, name, arguments)
            show_workloads(figures)
            if "growth" in arguments.only:
                figures["growth"] = growth(spark, bootstrap, server, arguments.max_records_per_batch)
                show_growth(figures["growth"])
            if "hot" in arguments.only:
                figures["hot"] = hot_key(spark, bootstrap, server, arguments)
                show_hot_key(figures["hot"])
        finally:
            spark.stop()
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


def preset(name: str, join: JoinType | None) -> GenerationSpec:
    """The default layout on the topics that `fill` made under this name, with one view, or none: parsing alone."""
    spec = load_config(None, {}).spec
    tables = tuple(replace(table, topic=f"{name}-{table.topic}") for table in spec.tables)
    return GenerationSpec(tables, () if join is None else (View("final_ui", join, "users", "accounts", "userId"),))


def fill(bootstrap: str, name: str, users: int, accounts: int, versions: int = 1) -> None:
    """A backlog: every version of every user, then the accounts, spread evenly over the users."""
    create_topics(bootstrap, f"{name}-user", f"{name}-account")
    with bar(f"filling Kafka: {name}", users * versions + accounts) as advance_to:
        people = (user(number, version) for version in range(versions) for number in range(users))
        send(bootstrap, f"{name}-user", people, advance_to)
        owned = (account((number * 7919) % users, number) for number in range(accounts))
        send(bootstrap, f"{name}-account", owned, lambda sent: advance_to(users * versions + sent))


def workload(
    spark: SparkSession, bootstrap: str, server: MeasuringServer, name: str, arguments: argparse.Namespace
) -> dict[str, Any]:
    join = WORKLOADS[name]
    limit = arguments.max_records_per_batch
    backlog_seconds(spark, bootstrap, server, "warm", join, limit, f"{name}: warming up")
    accounts = count_records(bootstrap, "full-account")
    with Run(spark, preset("full", join), bootstrap, limit, server) as run:
        records = accounts + count_records(bootstrap, "full-user")
        with bar(f"{name}: backlog", records) as advance_to:
            seconds = run.backlog_seconds(records, advance_to)
        switch_seconds = run.real_time()
        figures: dict[str, Any] = {"backlog_rows_per_s": round(accounts / seconds)}
        figures["switch_ms"] = round(switch_seconds * 1000)
        with steady_accounts(bootstrap, "full-account", arguments.rate, STEADY_USERS):
            console.print(f"{name}: {arguments.rate:,} rows/s for {arguments.settle + arguments.seconds:.0f} s")
            figures |= rounded(run.latency(arguments.settle, arguments.seconds))
        idle = idle_cores(jvm_of(spark))
        run.real_time(BOUNDARY_BATCH_SECONDS)
        with steady_accounts(bootstrap, "full-account", arguments.rate, STEADY_USERS):
            console.print(f"{name}: batches of {BOUNDARY_BATCH_SECONDS} s, {BOUNDARIES} boundaries")
            boundary = run.latency(arguments.settle / 2, BOUNDARY_BATCH_SECONDS * BOUNDARIES)
        return {**figures, "boundary_max_ms": round(boundary["p100_ms"]), "idle_cores": round(idle, 3)}


def rounded(figures: dict[str, Any]) -> dict[str, Any]:
    return {name: round(figures[name]) for name in ("p50_ms", "p90_ms", "p99_ms", "p100_ms", "samples")}


def jvm_of(spark: SparkSession) -> int:
    """The process of the driver's JVM."""
    jvm = spark._jvm
    assert jvm is not None
    return int(jvm.java.lang.ProcessHandle.current().pid())


def idle_cores(pid: int) -> float:
    """How many cores a process takes while no records come."""

    def cpu_seconds() -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    time.sleep(IDLE_SECONDS / 4)
    before = cpu_seconds()
    time.sleep(IDLE_SECONDS)
    return (cpu_seconds() - before) / IDLE_SECONDS


def backlog_seconds(
    spark: SparkSession,
    bootstrap: str,
    server: MeasuringServer,
    name: str,
    join: JoinType | None,
    max_records_per_batch: int,
    title: str,
) -> float:
    records = count_records(bootstrap, f"{name}-user") + count_records(bootstrap, f"{name}-account")
    with (
        Run(spark, preset(name, join), bootstrap, max_records_per_batch, server) as run,
        bar(title, records) as advance_to,
    ):
        return run.backlog_seconds(records, advance_to)


def growth(
    spark: SparkSession, bootstrap: str, server: MeasuringServer, max_records_per_batch: int
) -> dict[str, dict[int, float]]:
    """Microseconds a record, by what the join's cost may depend on."""
    result: dict[str, dict[int, float]] = {"natural by accounts a user": {}, "asof by versions a user": {}}
    for accounts_a_user in (10, 100, 1000):
        name = f"accounts-{accounts_a_user}"
        fill(bootstrap, name, GROWTH_RECORDS // accounts_a_user, GROWTH_RECORDS)
        seconds = backlog_seconds(spark, bootstrap, server, name, "natural", max_records_per_batch, f"natural: {name}")
        result["natural by accounts a user"][accounts_a_user] = seconds / GROWTH_RECORDS * 1e6
    for versions in (1, 3, 10, 30):
        name = f"versions-{versions}"
        fill(bootstrap, name, 1000, GROWTH_RECORDS // 4, versions)
        seconds = backlog_seconds(spark, bootstrap, server, name, "asof", max_records_per_batch, f"asof: {name}")
        result["asof by versions a user"][versions] = seconds / (GROWTH_RECORDS // 4) * 1e6
    return result


def hot_key(
    spark: SparkSession, bootstrap: str, server: MeasuringServer, arguments: argparse.Namespace
) -> dict[str, Any]:
    """How old the accounts of other keys are on arrival, beside a key that has HOT_RECORDS, in a `left` join."""
    create_topics(bootstrap, "hot-user", "hot-account")
    send(bootstrap, "hot-user", (user(number) for number in range(STEADY_USERS)), lambda _: None)
    send(bootstrap, "hot-account", (account(0, number) for number in range(HOT_RECORDS)), lambda _: None)
    figures: dict[str, Any] = {}
    with Run(spark, preset("hot", "left"), bootstrap, arguments.max_records_per_batch, server) as run:
        with bar("hot: backlog", STEADY_USERS + HOT_RECORDS) as advance_to:
            run.backlog_seconds(STEADY_USERS + HOT_RECORDS, advance_to)
        run.real_time()
        streams = {"one record in a thousand is of the hot key": STEADY_USERS, "every other record is": 2}
        for title, users in streams.items():
            with steady_accounts(bootstrap, "hot-account", arguments.rate, users):
                console.print(f"hot: {title}, {arguments.rate:,} rows/s")
                figures[title] = rounded(run.latency(arguments.settle, arguments.seconds))
        with steady_accounts(bootstrap, "hot-account", arguments.rate, STEADY_USERS):
            time.sleep(arguments.settle / 4)
            send(bootstrap, "hot-user", [user(0, 1)], lambda _: None)
            console.print("hot: a user record of the hot key, whose pairs are all new")
            figures["a new user of the hot key"] = rounded(run.latency(0, arguments.seconds))
    return figures


def show_hot_key(figures: dict[str, Any]) -> None:
    shown = ScreenTable(title=f"beside a key with {HOT_RECORDS:,} records, ms", title_justify="left")
    for heading in ("stream", "p50", "p90", "p99", "max"):
        shown.add_column(heading, justify="left" if heading == "stream" else "right")
    for title, each in figures.items():
        shown.add_row(title, *(f"{each[name]:,}" for name in ("p50_ms", "p90_ms", "p99_ms", "p100_ms")))
    console.print(shown)


def show_workloads(figures: dict[str, Any]) -> None:
    shown = ScreenTable(title="pipeline alone, from Kafka's timestamp to the server", title_justify="left")
    columns = ("backlog_rows_per_s", "p50_ms", "p90_ms", "p99_ms", "p100_ms", "boundary_max_ms", "idle_cores")
    for heading in ("workload", "backlog/s", "p50 ms", "p90", "p99", "max", "max with boundaries", "idle cores"):
        shown.add_column(heading, justify="left" if heading == "workload" else "right")
    for name in WORKLOADS:
        if name in figures:
            shown.add_row(name, *(f"{figures[name][column]:,}" for column in columns))
    console.print(shown)


def show_growth(figures: dict[str, dict[int, float]]) -> None:
    for name, costs in figures.items():
        least = next(iter(costs.values()))
        console.print(name, highlight=False)
        for size, cost in costs.items():
            ratio = cost / least
            console.print(
                f"  {size:5}  {cost:8.1f} µs/account  {ratio:5.2f} times  {'█' * round(ratio * 8)}", highlight=False
            )


@contextmanager
def bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar; the function it gives sets how far it is."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(title, total=total)
        yield lambda done: progress.update(task, completed=done)
        progress.update(task, completed=total)


if __name__ == "__main__":
    main()
