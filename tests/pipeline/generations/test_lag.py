"""How far a generation has come, from what Spark and the server report. Spark's report is made here."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

from livetables.kafka.topics import Topic
from livetables.pipeline.generations.lag import committed_offsets, has_every_record, lag_of, lost_unread, records_read

USERS = Topic("user", "1", {0: 10, 1: 0}, {0: 15, 1: 3})
ACCOUNTS = Topic("account", "2", {0: 0}, {0: 4})


def progress(*sources: dict[str, dict[str, int]] | None) -> Any:
    ends = [SimpleNamespace(endOffset=None if each is None else json.dumps(each)) for each in sources]
    return cast(Any, SimpleNamespace(sources=ends))


def test_what_spark_has_committed_is_by_topic_and_partition() -> None:
    committed = committed_offsets(progress({"user": {"0": 12, "1": 0}}, {"account": {"0": 4}}))
    assert committed == {"user": {0: 12, 1: 0}, "account": {0: 4}}


def test_a_source_without_a_first_batch_has_committed_nothing() -> None:
    assert committed_offsets(progress(None, {"account": {"0": 4}})) == {"account": {0: 4}}


def test_a_topic_of_two_tables_is_committed_where_both_have_read_it() -> None:
    assert committed_offsets(progress({"account": {"0": 4}}, {"account": {"0": 1}})) == {"account": {0: 1}}


def test_a_new_partition_that_only_one_table_has_seen_counts_as_unread() -> None:
    committed = committed_offsets(progress({"account": {"0": 4}}, {"account": {"0": 4, "1": 2}}))
    assert committed["account"].get(1, 0) == 0


def test_a_partition_whose_first_records_went_before_one_was_read_has_lost_them() -> None:
    """Only there: when any was read, Spark finds out by itself, and where none has been deleted, none is lost."""
    lost = lost_unread({"user": {0: 10, 1: 0}, "account": {0: 0}}, {"user": {0: 12, 1: 0}, "account": {0: 3}})
    assert lost == 'Kafka no longer has the first records of partition 0 of topic "account", and none of them was read'
    assert lost_unread({"user": {0: 10, 1: 0}}, {"user": {0: 12, 1: 0}}) is None
    assert lost_unread({"user": {0: 0}}, {}) is None


def test_nothing_is_read_before_the_first_batch() -> None:
    assert records_read({}, {"user": USERS}) == 0


def test_what_is_read_is_counted_from_the_beginning_to_the_end_that_was_seen() -> None:
    topics = {"user": USERS, "account": ACCOUNTS}
    assert USERS.records + ACCOUNTS.records == 12
    assert records_read({"user": {0: 12, 1: 0}, "account": {0: 4}}, topics) == 6
    assert records_read({"user": {0: 99, 1: 99}, "account": {0: 99}}, topics) == 12


def test_lag_is_what_the_server_does_not_have() -> None:
    assert lag_of(USERS, {0: 12, 1: 1}, {}) == 3 + 2


def test_before_the_first_frame_all_records_from_where_reading_began_are_behind() -> None:
    assert lag_of(USERS, {}, {}) == USERS.records
    assert lag_of(USERS, {}, {}, USERS.ends) == 0


def test_where_records_have_been_read_it_does_not_count_where_reading_began() -> None:
    assert lag_of(USERS, {0: 12}, {}, USERS.ends) == 3
    assert lag_of(USERS, {}, {1: 1}, USERS.ends) == 2


def test_records_that_kafka_has_removed_before_they_were_read_are_not_behind() -> None:
    assert lag_of(USERS, {0: 4}, {}) == USERS.records


def test_what_a_transaction_leaves_at_the_end_of_a_topic_is_no_lag_after_a_batch() -> None:
    assert lag_of(USERS, {0: 14, 1: 2}, {0: 15, 1: 3}) == 0


def test_a_server_that_is_ahead_of_what_was_seen_of_the_topic_has_no_lag() -> None:
    assert lag_of(USERS, {0: 100, 1: 3}, {}) == 0


def test_records_without_a_gap_before_what_is_stored_are_every_record() -> None:
    assert has_every_record(USERS, {0: 15, 1: 3}, 8)
    assert has_every_record(USERS, {0: 12}, 2), "where another partition has none yet"
    assert has_every_record(USERS, {}, 0)


def test_a_record_that_another_writer_still_has_to_bring_is_missed() -> None:
    assert not has_every_record(USERS, {0: 15, 1: 3}, 7)


def test_what_a_transaction_leaves_between_records_is_counted_as_a_record() -> None:
    assert not has_every_record(USERS, {0: 16, 1: 3}, 8)


def test_a_partition_that_was_added_since_is_counted_from_its_first_record() -> None:
    assert has_every_record(USERS, {0: 15, 1: 3, 2: 4}, 12)
