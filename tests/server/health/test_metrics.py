"""The metrics for Prometheus: whole counts of what was put and read, and latencies of whole batches at once."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from pyarrow import flight

from livetables.model.change import Batch, TableChanges, TableShape
from livetables.model.spec import CONTROL_TABLES, DEAD_LETTERS
from livetables.model.wire import PipelineReport, SourceReport
from livetables.server.health.metrics import TableHistogram, latencies_seconds
from tests.support.kafka import wait_until
from tests.support.server import LiveClient, ServerProcess

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
TIME = pa.timestamp("us", "UTC")
USERS = TableShape("users_ui", pa.schema([("_id", pa.int64()), ("ts", TIME)]), ("_id",), aliases=("user",))
LETTERS = TableShape(DEAD_LETTERS, pa.schema([("_id", pa.int64()), ("source", pa.string()), ("ts", TIME)]), ("_id",))
STATUS = TableShape(CONTROL_TABLES[0], USERS.schema, ("_id",))
ODD = 'a "quoted"\nname\\'  # no table is called so; a label may still hold anything
REPORT = PipelineReport(
    1_700_000_000.0,
    2,
    {"live": 1, "failed": 0, "retired": 3},
    {"g1": "real_time", "g2": "micro_batch"},
    "http://127.0.0.1:4040",
)

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def rows(shape: TableShape, *values: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(values), shape.schema)


def fed(server: ServerProcess) -> None:
    """Two batches of a generation, the second after it was published; what the pipeline reports of itself; a report."""
    sink = server.sink()
    now = datetime.now(UTC)
    sink.begin("g1", [USERS, LETTERS])
    first = rows(USERS, *({"_id": number, "ts": NOW} for number in range(100)))
    sink.put(Batch("g1", 0, (TableChanges("users_ui", first, pa.table({})),), records={"users_ui": 100}))
    sink.publish("g1")
    ages = (0, 1, 100, 100)  # seconds
    second = rows(USERS, *({"_id": 200 + place, "ts": now - timedelta(seconds=age)} for place, age in enumerate(ages)))
    letters = rows(
        LETTERS,
        *({"_id": number, "source": "users_ui", "ts": now} for number in range(3)),
        {"_id": 3, "source": ODD, "ts": now},
    )
    sink.put(
        Batch(
            "g1",
            1,
            (
                TableChanges("users_ui", second, pa.table({"_id": [1, 2]})),
                TableChanges(DEAD_LETTERS, letters, pa.table({})),
            ),
            records={"users_ui": 7},
        )
    )
    sink.begin("status-1", [STATUS])
    sink.publish("status-1")
    sink.put(Batch("status-1", 0, (TableChanges(STATUS.name, rows(STATUS, {"_id": 0, "ts": NOW}), pa.table({})),)))
    for lag in (5, 50_000):
        sink.report("g1", [SourceReport("users_ui", "user", lag)], pipeline=REPORT if lag == 5 else None)
    sink.close()


def read(server: ServerProcess) -> None:
    """Rows taken from every endpoint: a window of ten and one more that came, an export, SQL."""
    with LiveClient(server.websocket) as client:
        client.subscribe(1, "user", size=10)
        client.receive_type("snapshot")
        client.subscribe(2, "users_ui", size=10, sort=[{"column": "_id", "descending": True}])
        client.receive_until(lambda frame: frame.get("sub") == 2 and frame["type"] == "snapshot", "the second window")
        sink = server.sink()
        newest = rows(USERS, {"_id": 999, "ts": datetime.now(UTC)})
        sink.put(Batch("g1", 2, (TableChanges("users_ui", newest, pa.table({})),), records={"users_ui": 1}))
        sink.close()
        client.receive_until(lambda frame: frame.get("sub") == 2 and frame["type"] == "patch", "the new row")
        wait_until(lambda: server.metric("livetables_subscriptions") == 2, "subscriptions", 10)
    server.rows("users_ui", "limit=4")
    server.get("/api/tables/users_ui/rows?columns=_id&limit=3")
    assert server.table("user").num_rows == 103
    options = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer a-key-for-tests")])
    with flight.FlightClient(server.flight) as taking:
        taking.do_get(flight.Ticket(json.dumps({"table": "user", "offset": 0, "size": 6})), options).read_all()
        taking.do_get(flight.Ticket(json.dumps({"sql": "SELECT 1 FROM users_ui LIMIT 2"})), options).read_all()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server")) as running:
        fed(running)
        read(running)
        yield running


@pytest.fixture
def samples(server: ServerProcess) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(server.get("/metrics"))
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


def test_records_rows_and_dead_letters_are_counted_as_they_were_put(samples: Samples) -> None:
    assert value(samples, "livetables_batches_total") == 4
    assert value(samples, "livetables_records_total", table="users_ui") == 108
    assert value(samples, "livetables_rows_total", table="users_ui", change="upsert") == 105
    assert value(samples, "livetables_rows_total", table="users_ui", change="delete") == 2
    assert value(samples, "livetables_dead_letters_total", table="users_ui") == 3
    assert value(samples, "livetables_table_rows", table="users_ui") == 103
    assert value(samples, "livetables_table_rows", table=DEAD_LETTERS) == 4


def test_a_label_may_hold_anything(samples: Samples) -> None:
    assert value(samples, "livetables_dead_letters_total", table=ODD) == 1


def test_only_rows_that_readers_see_have_a_latency(samples: Samples) -> None:
    def within(bound: str) -> float:
        return value(samples, "livetables_latency_seconds_bucket", table="users_ui", le=bound)

    assert value(samples, "livetables_latency_seconds_count", table="users_ui") == 5
    assert within("60.0") == 3
    assert within("300.0") == within("+Inf") == 5
    assert 200 < value(samples, "livetables_latency_seconds_sum", table="users_ui") < 500
    assert value(samples, "livetables_latency_seconds_count", table=DEAD_LETTERS) == 4
    assert ("livetables_latency_seconds_count", frozenset({("table", STATUS.name)})) not in samples


def test_rows_sent_are_counted_by_the_tables_own_name_and_endpoint(samples: Samples) -> None:
    assert value(samples, "livetables_rows_sent_total", table="users_ui", door="websocket") == 10 + 10 + 1
    assert value(samples, "livetables_rows_sent_total", table="users_ui", door="http") == 4 + 3
    assert value(samples, "livetables_rows_sent_total", table="users_ui", door="flight") == 103 + 6
    assert value(samples, "livetables_rows_sent_total", table="(sql)", door="flight") == 2


def test_what_the_pipeline_reports_is_passed_on(samples: Samples) -> None:
    assert value(samples, "livetables_lag_records", table="users_ui") == 50_000
    assert value(samples, "livetables_lag_sampled_records_count", table="users_ui") == 2
    assert value(samples, "livetables_lag_sampled_records_bucket", table="users_ui", le="1000.0") == 1
    assert value(samples, "livetables_real_time", generation="g1") == 1
    assert value(samples, "livetables_real_time", generation="g2") == 0
    assert value(samples, "livetables_query_restarts_total") == 2
    assert value(samples, "livetables_generations", state="retired") == 3
    assert value(samples, "livetables_pipeline_start_time_seconds") == REPORT.started
    assert abs(value(samples, "livetables_pipeline_seen_timestamp_seconds") - time.time()) < 600


def test_exactly_one_state_is_so(samples: Samples) -> None:
    states = [figure for (name, _), figure in samples.items() if name == "livetables_state"]
    assert (sum(states), len(states)) == (1, 6)


def test_the_server_has_metrics_of_itself(samples: Samples) -> None:
    assert any(name == "livetables_build_info" for name, _ in samples)
    assert value(samples, "process_resident_memory_bytes") > 1e6


def test_the_status_shows_where_sparks_pages_are(server: ServerProcess) -> None:
    sink = server.sink()

    def shown() -> str | None:
        sink.report("g1", [], pipeline=REPORT)
        spark_ui: str | None = json.loads(server.get("/api/status"))["spark_ui"]
        return spark_ui

    wait_until(lambda: shown() == REPORT.spark_ui, "the link", 30)  # which goes when nothing is heard for a while
    sink.close()


def test_a_row_is_as_old_as_its_newest_timestamp() -> None:
    ago = [NOW - timedelta(seconds=seconds) for seconds in (1, 2, 3)]
    table = pa.table(
        {
            "users_ts": pa.array([ago[2], ago[2], None, None, NOW + timedelta(hours=1)], TIME),
            "accounts_ts": pa.array([ago[0], None, ago[1], None, None], TIME),
            "age": [1, 2, 3, 4, 5],
        }
    )
    assert latencies_seconds(table, NOW).tolist() == [1.0, 3.0, 2.0, 0.0]
    assert latencies_seconds(table.select(["age"]), NOW).tolist() == []


def test_a_histogram_of_batches_counts_as_one_of_single_values_would() -> None:
    bounds, values = (0.1, 1, 10), [0.05, 0.1, 0.1001, 1, 5, 10, 11, 1e9]
    histogram = TableHistogram("age", "of rows", bounds)
    for part in (values[:3], [], values[3:]):
        histogram.observe("t", np.array(part, dtype=np.float64))
    registry = CollectorRegistry()
    registry.register(histogram)
    for bound, name in ((0.1, "0.1"), (1, "1.0"), (10, "10.0"), (float("inf"), "+Inf")):
        expected = sum(value <= bound for value in values)
        assert registry.get_sample_value("age_bucket", {"table": "t", "le": name}) == expected
    assert registry.get_sample_value("age_sum", {"table": "t"}) == sum(values)


def test_nothing_is_reported_of_a_pipeline_that_was_never_heard(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        names = {family.name for family in text_string_to_metric_families(server.get("/metrics"))}
        assert server.metric('livetables_state{state="pipeline_down"}') == 1
    assert "livetables_query_restarts" not in names
