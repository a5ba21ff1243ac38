"""A generation whose query dies: why is reported in one sentence, and nothing of the query stays. And how it ages."""

from __future__ import annotations

import random
import shutil
import threading
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from livetables.config.load import load_config
from livetables.config.values import GenerationsConfig
from livetables.local.broker import Broker
from livetables.pipeline.flow.plan import shapes
from livetables.pipeline.generations import generation as running_module
from livetables.pipeline.generations.checkpoints import Checkpoints
from livetables.pipeline.generations.context import GenerationContext
from livetables.pipeline.generations.generation import LATE_SECONDS, RunningGeneration
from livetables.pipeline.generations.query_run import too_few_slots
from livetables.pipeline.generations.state import Event, to_retire
from livetables.pipeline.generations.wanted import Wanted
from livetables.pipeline.main import server_of
from tests.support.kafka import wait_until
from tests.support.pipeline import Stage, random_records
from tests.support.server import TOKEN, ServerProcess

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

GENERATION = "g1-00000000"
TRIES = 2


def test_a_clock_that_is_set_makes_no_generation_older_or_younger(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clocks are fakes: nobody can set that of the machine."""
    clock, steady = [datetime(2026, 1, 31, tzinfo=UTC)], [100.0]
    monkeypatch.setattr(running_module, "datetime", SimpleNamespace(now=lambda _: clock[0]))
    monkeypatch.setattr(running_module, "time", SimpleNamespace(monotonic=lambda: steady[0]))
    context = cast(GenerationContext, SimpleNamespace(config=load_config(None, {})))
    generation = RunningGeneration(context, GENERATION, Wanted.by(context.config.spec), {})
    clock[0], steady[0] = datetime(2016, 1, 31, tzinfo=UTC), 107.0
    assert generation.age_seconds == 7.0
    events: tuple[Event, ...] = ("query_started", "published", "replaced")
    for event in events:
        generation.move(event)
    clock[0] = datetime(2036, 1, 31, tzinfo=UTC)
    config = GenerationsConfig(linger_seconds=8)
    assert to_retire([(generation, generation.since)], steady[0] + 7.9, config) == []
    assert to_retire([(generation, generation.since)], steady[0] + 8.0, config) == [generation]


def test_a_batch_in_real_time_that_does_not_end_is_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query whose batches never end is a fake: nobody can set the clock of a cluster here."""
    now, started = [1000.0], []

    def query(*_: Any, batch_seconds: int, **__: Any) -> Any:
        started.append(now[0])
        never: dict[str, Any] = {"progress": None, "is_steady": lambda **_: False, "stop": lambda: None}
        return SimpleNamespace(batch_seconds=batch_seconds, is_active=True, **never)

    monkeypatch.setattr(running_module, "QueryRun", query)
    monkeypatch.setattr(running_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    context = cast(GenerationContext, SimpleNamespace(config=load_config(None, {})))
    generation = RunningGeneration(context, GENERATION, Wanted.by(context.config.spec), {}, "live")
    generation.follow({})
    generation.choose_mode()
    generation.start("http://server")
    assert generation.mode == "real_time"
    length = context.config.pipeline.batch_seconds
    for late, step in ((-1.0, "wait"), (1.0, "change_mode")):
        now[0] = started[-1] + 2 * length + LATE_SECONDS + late
        generation.follow({})
        assert generation.next_step() == step
    generation.change_mode()
    assert len(started) == 2
    generation.follow({})
    assert generation.next_step() == "wait"


@pytest.mark.parametrize(
    ("master", "cure"),
    [("local[*]", "run Spark on a cluster (pipeline.master)"), ("spark://host:7077", "give the cluster more cores")],
)
def test_too_few_slots_name_a_cure_that_this_master_has(master: str, cure: str) -> None:
    said = too_few_slots(master, 400, 2)
    assert said.startswith(f"{master} has too few slots: in real time each of the 400 topic partitions and 2 shuffle")
    assert f"; {cure}, or set " in said


def test_what_fails_in_a_batch_is_reported_by_its_root_cause(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    stage = Stage.open(broker.bootstrap_servers)
    stage.send(random_records(random.Random(3), 20))
    with ServerProcess(tmp_path) as server:
        settings = {
            "LIVETABLES_KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap_servers,
            "LIVETABLES_PIPELINE_SERVER": server.flight,
        }
        checkpoints = Checkpoints(spark, str(tmp_path / "checkpoints"))
        context = GenerationContext(spark, load_config(None, settings), TOKEN, checkpoints)
        generation = RunningGeneration(
            context, GENERATION, Wanted(dict(stage.topics.items()), {"final_ui": "left"}), {}
        )
        try:
            url = server_of(context).begin(GENERATION, shapes(generation.spec))
            generation.start(url)
            wait_until(generation.is_working, "the first batch")
            generation.stop()
            for part in Path(checkpoints.path(GENERATION)).glob("state/0/[0-9]*"):  # as the tasks of a batch will find
                shutil.rmtree(part)
            stage.send(random_records(random.Random(4), 20))
            threads = threading.active_count()
            for _ in range(TRIES):
                generation.start(url)
                wait_until(lambda: generation.check().query == "died", "the query dies")
                generation.record_death()
                cause = generation.health.trouble or ""
                assert "Py4J" not in cause
                assert "Traceback" not in cause
                assert "state" in cause
            wait_until(lambda: threading.active_count() <= threads, "the threads that Spark called have ended")
        finally:
            generation.stop()
