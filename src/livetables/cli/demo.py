"""`livetables demo`: Kafka, demo records and the pipeline on this machine, and the joined rows as they change."""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table as ScreenTable

from livetables.change import Batch, TableShape
from livetables.cli.demo_data import produce, stopped_by_signals
from livetables.config import Config, load_config
from livetables.demo_records import DemoOptions
from livetables.errors import LivetablesError
from livetables.pipeline.query import start_generation
from livetables.pipeline.session import start_session
from livetables.spec import JOIN_ALIASES, GenerationSpec
from livetables.up.broker import Broker

VIEW = "final_ui"
ROWS_SHOWN = 15
SHOW_SECONDS = 0.5
COLUMNS = ("userId", "name", "email", "age", "accountType", "balance", "accounts_ts")
EXAMPLES = """examples:
  livetables demo                      rows of final_ui as they change, until Ctrl-C
  livetables demo --join natural       one row per user record, with its latest account
  livetables demo --rate 50            slow enough to read
"""


class TickerSink:
    """Counts changes and remembers the last rows of the view. Keeps no tables, so it can run for days."""

    def __init__(self) -> None:
        self.rows: deque[dict[str, Any]] = deque(maxlen=ROWS_SHOWN)
        self.changes: Counter[str] = Counter()
        self.latest_delay_ms = 0.0

    def begin(self, generation: str, shapes: Sequence[TableShape]) -> None:
        """Nothing to make room for."""

    def put(self, batch: Batch) -> None:
        now = datetime.now(tz=UTC)
        for changes in batch.changes:
            self.changes[changes.table] += changes.upserts.num_rows
            if changes.table == VIEW:
                self._remember(changes.upserts, now)

    def _remember(self, upserts: pa.Table, now: datetime) -> None:
        """The last joined rows of a batch, or of rows without a match where there are no others."""
        joined = upserts.filter(pc.is_valid(upserts["accounts_ts"]))
        shown = joined if joined.num_rows else upserts
        self.rows.extendleft(shown.slice(max(0, shown.num_rows - ROWS_SHOWN)).to_pylist())
        if joined.num_rows:
            self.latest_delay_ms = (now - pc.max(joined["accounts_ts"]).as_py()).total_seconds() * 1000

    def publish(self, generation: str) -> None:
        """There is one generation only."""

    def drop(self, generation: str) -> None:
        """Nothing was kept."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `livetables demo`."""
    parser.epilog = EXAMPLES
    parser.add_argument("--join", default="left", choices=sorted(JOIN_ALIASES), help="default: %(default)s")
    parser.add_argument("--rate", type=float, default=200.0, metavar="N", help="records a second; default: %(default)g")
    parser.add_argument("--seconds", type=float, metavar="S", help="end after S seconds of rows; default: at Ctrl-C")


def run(arguments: argparse.Namespace) -> int:
    """Starts everything, shows rows until told to stop, and leaves nothing behind."""
    console = Console()
    config = load_config(None, {})
    views = tuple(replace(view, join=JOIN_ALIASES[arguments.join]) for view in config.spec.views)
    spec = GenerationSpec(config.spec.tables, views)
    with stopped_by_signals() as stop, Broker() as broker, tempfile.TemporaryDirectory() as directory:
        console.print(f"Kafka is up at {broker.bootstrap_servers}", highlight=False)
        feeding = _Feeding(broker.bootstrap_servers, arguments.rate, stop)
        console.print("starting Spark; the first rows come in about twenty seconds …")
        query, sink = _start_pipeline(config, spec, broker.bootstrap_servers, Path(directory))
        try:
            _show(console, query, sink, feeding, arguments.seconds, stop)
        finally:
            stop.set()
            query.stop()
            SparkSession.active().stop()
            feeding.join()
    console.print("stopped; nothing is left running", highlight=False)
    return 0


class _Feeding(threading.Thread):
    """Sends demo records in the background; an error is kept for whoever looks."""

    def __init__(self, bootstrap_servers: str, rate: float, stop: threading.Event) -> None:
        super().__init__(name="demo-data", daemon=True)
        self.error: LivetablesError | None = None
        self._arguments = bootstrap_servers, rate, stop
        self.start()

    def run(self) -> None:
        bootstrap_servers, rate, stop = self._arguments
        try:
            produce(bootstrap_servers, DemoOptions(), stop=stop, console=Console(quiet=True), rate=rate)
        except LivetablesError as error:
            self.error = error


def _start_pipeline(
    config: Config, spec: GenerationSpec, bootstrap_servers: str, directory: Path
) -> tuple[StreamingQuery, TickerSink]:
    pipeline = config.pipeline
    spark = start_session(
        master=pipeline.master,
        driver_memory_megabytes=pipeline.driver_memory_megabytes,
        shuffle_partitions=pipeline.shuffle_partitions,
        extra={**pipeline.spark, "spark.local.dir": str(directory / "spark")},
    )
    sink = TickerSink()
    query = start_generation(
        spark,
        spec,
        generation="demo",
        kafka_properties={**config.kafka.client_properties(), "bootstrap.servers": bootstrap_servers},
        checkpoint=directory / "checkpoint",
        sink=sink,
        max_records_per_batch=pipeline.max_records_per_batch,
    )
    return query, sink


def _show(
    console: Console,
    query: StreamingQuery,
    sink: TickerSink,
    feeding: _Feeding,
    seconds: float | None,
    stop: threading.Event,
) -> None:
    """Shows the newest rows in place; where the output is no terminal, one line for each look."""
    begin: float | None = None
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while not stop.wait(SHOW_SECONDS):
            if feeding.error is not None:
                raise feeding.error
            if (failure := query.exception()) is not None:
                raise failure
            if not sink.rows:
                continue
            begin = begin or time.monotonic()
            if console.is_terminal:
                live.update(Group(_headline(sink), _screen(sink)), refresh=True)
            else:
                newest = sink.rows[0]
                row = "  ".join(f"{column}={_text(newest[column])}" for column in COLUMNS)
                console.print(f"{_headline(sink)}\n  {row}", highlight=False, soft_wrap=True)
            if seconds is not None and time.monotonic() - begin >= seconds:
                return


def _headline(sink: TickerSink) -> str:
    counts = "  ".join(f"{table} {count:,}" for table, count in sorted(sink.changes.items()))
    return f"changes so far: {counts}  |  newest account shown after {sink.latest_delay_ms:,.0f} ms"


def _screen(sink: TickerSink) -> ScreenTable:
    table = ScreenTable(title=f"{VIEW}: the rows that changed last", title_justify="left", expand=True)
    for column in COLUMNS:
        table.add_column(column, justify="right" if column in ("age", "balance") else "left", no_wrap=True)
    for row in list(sink.rows):
        table.add_row(*(_text(row[column]) for column in COLUMNS))
    return table


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.strftime("%H:%M:%S.%f")[:-3]
    return f"{value:,.2f}" if isinstance(value, float) else str(value)
