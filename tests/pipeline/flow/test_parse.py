"""What is a row and what a dead letter, value by value: the parser beside Python's json."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from livetables.formats.json import fault
from livetables.model.spec import Column, Table
from livetables.pipeline.flow.parse import Parsed, parser
from tests.pipeline.flow.test_bad_input import BROKEN, BYTES, GOOD
from tests.support.oracle import FIELDS
from tests.support.oracle import parse as expected
from tests.support.pipeline import ACCOUNT_COLUMNS, USER_COLUMNS

pytestmark = pytest.mark.spark

USERS = Table("users", "user", USER_COLUMNS, "users_ui")
ACCOUNTS = Table("accounts", "account", ACCOUNT_COLUMNS, "accounts_ui")
FLAGS = Table("flags", "flag", (Column("isSet", "bool"),), "flags_ui")

names = st.sampled_from(["userId", "name", "email", "age", "accountType", "balance"]) | st.text(max_size=3)
scalars = st.none() | st.booleans() | st.integers(-(2**64), 2**64) | st.floats(allow_nan=False) | st.text(max_size=5)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=2))
documents = st.dictionaries(names, values, max_size=6).map(lambda document: json.dumps(document).encode())
pieces = st.sampled_from([b"{", b"}", b'"', b",", b":", b"\\", b"\\ud800", b"\xff", b"\x00", b" ", b"0", b"-", b"null"])


@st.composite
def broken(draw: st.DrawFn) -> bytes:
    """A document with something put into it, or cut out of it."""
    document = draw(documents)
    start = draw(st.integers(0, len(document)))
    end = draw(st.integers(start, min(len(document), start + 2)))
    return document[:start] + draw(pieces | st.just(b"")) + document[end:]


@pytest.mark.parametrize("value", [*(value for value, _ in BROKEN), *(value for value, _ in GOOD), *BYTES])
def test_a_value_is_a_row_where_pythons_json_makes_one_of_it(spark: SparkSession, value: bytes | None) -> None:
    for table in (USERS, ACCOUNTS):
        check(spark, table, value)


@settings(deadline=None)
@given(documents | broken() | st.binary(max_size=20))
def test_any_value_is_a_row_where_pythons_json_makes_one_of_it(value: bytes) -> None:
    spark = SparkSession.getActiveSession()
    assert spark
    for table in (USERS, ACCOUNTS):
        check(spark, table, value)


def check(spark: SparkSession, table: Table, value: bytes | None) -> None:
    fields = FIELDS["users" if table is USERS else "accounts"]
    for strict in (False, True):
        judged = replace(table, strict=strict)
        found = parser(spark, judged)(value)
        assert (list(found.fields.values()) if found else None) == expected(value, fields, strict=strict)
        assert (fault(value, judged) is None) == (found is not None)
    if found and value is not None:
        others = [name for name in json.loads(value) if name not in fields]
        assert list(found.unknown) == [name.encode(errors="replace").decode() for name in others]


@pytest.mark.parametrize(
    ("value", "row"),
    [
        (b'{"isSet":true}', Parsed({"isSet": True}, ())),
        (b'{"isSet":false}', Parsed({"isSet": False}, ())),
        (b'{"isSet":null}', Parsed({"isSet": None}, ())),
        (b'{"isSet":0}', None),
        (b'{"isSet":"true"}', Parsed({"isSet": True}, ())),
        (b'{"isSet":"True"}', None),
    ],
)
def test_a_flag_is_true_or_false(spark: SparkSession, value: bytes, row: Parsed | None) -> None:
    assert parser(spark, FLAGS)(value) == row


def test_of_a_field_that_comes_twice_the_last_value_counts(spark: SparkSession) -> None:
    parse = parser(spark, USERS)
    row = parse(b'{"name":[],"x":1,"age":"x","age":7,"name":"a","x":2}')
    assert row
    assert (row.fields["name"], row.fields["age"], row.unknown) == ("a", 7, ("x",))
    assert parse(b'{"name":"a","name":[]}') is None


def test_in_a_strict_table_a_number_in_a_column_of_text_is_a_dead_letter(spark: SparkSession) -> None:
    assert parser(spark, replace(USERS, strict=True))(b'{"name":1e999,"email":"\\ud800"}') is None
