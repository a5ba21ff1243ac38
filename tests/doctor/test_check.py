"""Checks in order: none holds up another, and what they found out is reported in words."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import pytest

from livetables.doctor.check import Check, Facts, Finding, examined
from livetables.doctor.sampling import FOUND_VALUE, Judged, finding_of
from livetables.formats.json import reason
from livetables.kafka.clients import Topic
from livetables.kafka.inspection import last_positions
from livetables.model.errors import SetupError
from livetables.model.spec import Column, Table

TABLE = Table("users", "user", (Column("userId", "string"), Column("age", "int64")), "users_ui")


@pytest.fixture
def facts() -> Iterator[Facts]:
    with ExitStack() as stack:
        yield Facts({}, None, 200, stack)


def finding(name: str, state: str = "ok") -> Callable[[Facts], Sequence[Finding]]:
    return lambda _: [Finding(name, state, "found")]  # type: ignore[arg-type]


def run(facts: Facts, *checks: Check) -> list[tuple[str, str]]:
    return [(found.name, found.state) for found in examined(checks, facts, lambda _: None)]


def test_what_needs_something_broken_is_skipped_and_the_rest_is_not(facts: Facts) -> None:
    checks = (
        Check("a", finding("a", "broken")),
        Check("b", finding("b"), needs=("a",)),
        Check("c", finding("c"), needs=("b",)),
        Check("d", finding("d")),
    )
    assert run(facts, *checks) == [("a", "broken"), ("b", "skipped"), ("c", "skipped"), ("d", "ok")]


def test_a_warning_is_no_reason_to_skip(facts: Facts) -> None:
    checks = (Check("a", finding("a", "warning")), Check("b", finding("b"), needs=("a",)))
    assert run(facts, *checks) == [("a", "warning"), ("b", "ok")]


def test_a_check_that_hangs_is_left_behind(facts: Facts) -> None:
    never = threading.Event()

    def hang(_: Facts) -> Sequence[Finding]:
        never.wait()
        return []

    assert run(facts, Check("a", hang, seconds_max=0.05), Check("b", finding("b"))) == [("a", "broken"), ("b", "ok")]
    never.set()


def test_an_error_is_a_finding_with_its_cure(facts: Facts) -> None:
    def fail(_: Facts) -> Sequence[Finding]:
        raise SetupError("there is no kettle", "buy one")

    assert list(examined([Check("a", fail)], facts, lambda _: None)) == [
        Finding("a", "broken", "there is no kettle", "buy one")
    ]


def test_a_check_that_fails_by_itself_does_not_end_the_others(facts: Facts) -> None:
    def fail(_: Facts) -> Sequence[Finding]:
        raise KeyError("secret")

    found = list(examined([Check("a", fail), Check("b", finding("b"))], facts, lambda _: None))
    assert [each.state for each in found] == ["broken", "ok"]
    assert "secret" not in found[0].found


def test_a_column_that_is_always_null_is_compared_with_the_other_fields() -> None:
    found = finding_of(TABLE, Judged(5, Counter(), Counter({"userid": 5, "other": 1}), ("userId",)))
    assert found.state == "warning"
    assert found.cure == 'tables.users.columns has "userId": did you mean "userid"?'


def test_fields_that_are_no_columns_are_no_problem() -> None:
    assert finding_of(TABLE, Judged(5, Counter(), Counter({"other": 1}), ())).state == "ok"


def test_a_table_without_a_single_row_is_broken() -> None:
    assert finding_of(TABLE, Judged(0, Counter({"malformed JSON": 3}), Counter(), ())).state == "broken"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (
            b'{"userId":[7],"age":"hush"}',
            "userId: expected string, found the array; age: expected int64, found the string",
        ),
        (b'{"age":12.5}', "age: expected int64, found the number"),
        (b'{"age":99999999999999999999}', "age: the number does not fit int64"),
        (b'["hush"]', "not a JSON object but the array"),
        (b'{"age":', "malformed JSON: Expecting value: line 1 column 8 (char 7)"),
    ],
)
def test_the_values_of_records_are_not_shown(raw: bytes, expected: str) -> None:
    assert FOUND_VALUE.sub(r"\1", reason(raw, TABLE)) == expected


@pytest.mark.parametrize(
    ("beginnings", "ends", "expected"),
    [
        ((0, 0), (1000, 1000), {0: 900, 1: 900}),
        ((0, 0), (1000, 10), {0: 810, 1: 0}),
        ((5, 7), (10, 7), {0: 5}),
        ((0,), (0,), {}),
    ],
)
def test_the_last_records_are_shared_out_among_the_partitions(
    beginnings: tuple[int, ...], ends: tuple[int, ...], expected: dict[int, int]
) -> None:
    topic = Topic("user", "id", dict(enumerate(beginnings)), dict(enumerate(ends)))
    assert last_positions(topic, 200) == expected
