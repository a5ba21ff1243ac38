"""How far a generation is, from the reports of Spark and of the server. Both are made here."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from livetables.config.load import load_config
from livetables.kafka.topics import Topic
from livetables.pipeline.generations import progress as progress_module
from livetables.pipeline.generations.progress import UNCERTAIN_SECONDS, Progress
from livetables.pipeline.table_server import StoredGeneration

SPEC = load_config(None, {}).spec
TOPICS = {"user": Topic("user", "1", {0: 10, 1: 0}, {0: 15, 1: 3}), "account": Topic("account", "2", {0: 0}, {0: 4})}
ENDS = {"users": {0: 15, 1: 3}, "accounts": {0: 4}}


def stored(positions: dict[str, dict[int, int]], **records: int) -> StoredGeneration:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    return StoredGeneration("g", None, None, moment, {"users_ui": 5, "final_ui": 7}, 0, positions, records)


def batch(number: int, *ends: dict[str, dict[str, int]]) -> Any:
    sources = [SimpleNamespace(endOffset=json.dumps(end)) for end in ends]
    return cast(Any, SimpleNamespace(batchId=number, sources=sources))


@pytest.fixture
def progress() -> Progress:
    return Progress(SPEC, TOPICS)


def test_at_first_nothing_is_read(progress: Progress) -> None:
    assert (progress.records_read, progress.records_to_read) == (0, 12)
    assert not progress.has_read_all


def test_what_spark_has_committed_is_read(progress: Progress) -> None:
    progress.batch_finished(batch(3, {"user": {"0": 12, "1": 3}}, {"account": {"0": 4}}))
    assert (progress.batch_id, progress.records_read) == (3, 9)
    progress.batch_finished(batch(4, {"user": {"0": 15, "1": 3}}, {"account": {"0": 4}}))
    assert progress.has_read_all


def emptied(progress: Progress) -> None:
    """Kafka deletes the first two records of partition 1 of users, as a look at the topics finds out."""
    progress.seen["user"] = replace(TOPICS["user"], beginnings={0: 10, 1: 2})


def test_records_that_went_before_a_batch_and_were_not_read_in_it_are_lost(progress: Progress) -> None:
    progress.query_started()
    progress.batch_finished(batch(0, {"user": {"0": 12, "1": 0}}))
    emptied(progress)
    progress.batch_finished(batch(0, {"user": {"0": 12, "1": 0}}))
    progress.batch_finished(batch(1, {"user": {"0": 13, "1": 0}}))
    assert progress.lost_unread is None, "they may have gone after that batch, or were read in it"
    progress.batch_finished(batch(2, {"user": {"0": 14, "1": 0}}))
    assert progress.lost_unread
    assert 'partition 1 of topic "user"' in progress.lost_unread


def test_records_that_went_before_a_query_started_are_lost_after_its_first_batch(progress: Progress) -> None:
    emptied(progress)
    progress.query_started()
    progress.batch_finished(batch(0, {"user": {"0": 12, "1": 0}}))
    assert progress.lost_unread


def test_records_that_were_read_before_they_went_are_not_lost(progress: Progress) -> None:
    emptied(progress)
    progress.query_started()
    progress.batch_finished(batch(0, {"user": {"0": 12, "1": 3}}))
    assert progress.lost_unread is None


def test_as_many_records_on_the_server_as_offsets_are_all_of_them(progress: Progress) -> None:
    progress.count(stored(ENDS, users_ui=8, accounts_ui=4))
    assert progress.has_read_all
    assert progress.rows == 12


def test_one_record_fewer_is_not(progress: Progress) -> None:
    progress.count(stored(ENDS, users_ui=7, accounts_ui=4))
    assert progress.records_read == 11
    assert not progress.has_read_all


def test_the_lag_is_what_the_server_does_not_have(progress: Progress) -> None:
    progress.follow({"users": {0: 14, 1: 1}, "accounts": {0: 4}})
    assert [(report.topic, report.lag_records) for report in progress.reports] == [("user", 3), ("account", 0)]
    assert progress.lag == 3


@pytest.mark.parametrize("start", ["latest", datetime(2026, 1, 1, tzinfo=UTC)])
def test_what_came_while_nobody_read_is_behind_wherever_reading_began(start: Any) -> None:
    """As after a restart: the topics are seen when they have these records already."""
    spec = replace(SPEC, tables=tuple(replace(table, start=start) for table in SPEC.tables))
    progress = Progress(spec, TOPICS)
    progress.follow({"users": {0: 11, 1: 1}, "accounts": {0: 1}})
    assert progress.lag == 4 + 2 + 3


def test_a_build_that_begins_at_the_end_is_not_behind_at_first() -> None:
    spec = replace(SPEC, tables=tuple(replace(table, start="latest") for table in SPEC.tables))
    progress = Progress(spec, TOPICS)
    progress.follow({})
    assert progress.lag == 0


def test_records_count_as_brought_when_the_server_has_more_than_at_the_start_of_the_query(progress: Progress) -> None:
    progress.query_started()
    progress.follow({"users": {0: 12}})
    assert not progress.has_brought
    progress.follow({"users": {0: 13}})
    assert progress.has_brought
    progress.query_started()
    assert not progress.has_brought


def test_near_its_end_for_a_while_a_build_in_real_time_is_uncertain(
    progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is a fake, so that nobody has to wait."""
    now = [100.0]
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    progress.follow(ENDS)
    assert not progress.is_uncertain(is_real_time=True)
    now[0] += UNCERTAIN_SECONDS
    assert progress.is_uncertain(is_real_time=True)
    assert not progress.is_uncertain(is_real_time=False), "in micro-batches Spark knows"
    assert not progress.is_uncertain(is_real_time=True), "from then on it is counted again"
