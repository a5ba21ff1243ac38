"""How far a generation has come, from what Spark tells. Spark's own report is stood in for by one made here."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

from livetables.pipeline.lag import records_read
from livetables.pipeline.topics import Topic

USERS = Topic("user", "1", {0: 10, 1: 0}, {0: 15, 1: 3})
ACCOUNTS = Topic("account", "2", {0: 0}, {0: 4})


def progress(*sources: dict[str, dict[str, int]]) -> Any:
    return cast(Any, SimpleNamespace(sources=[SimpleNamespace(endOffset=json.dumps(each)) for each in sources]))


def test_nothing_is_read_before_the_first_batch() -> None:
    assert records_read(None, {"user": USERS}) == 0


def test_what_is_read_is_counted_from_the_beginning_to_the_end_that_was_seen() -> None:
    topics = {"user": USERS, "account": ACCOUNTS}
    assert USERS.records + ACCOUNTS.records == 12
    assert records_read(progress({"user": {"0": 12, "1": 0}}, {"account": {"0": 4}}), topics) == 6
    assert records_read(progress({"user": {"0": 99, "1": 99}}, {"account": {"0": 99}}), topics) == 12


def test_a_topic_of_two_tables_is_read_when_both_have_read_it() -> None:
    assert records_read(progress({"account": {"0": 4}}, {"account": {"0": 1}}), {"account": ACCOUNTS}) == 1
