"""Tables and joins from records: every record that could be a row is one, whatever its fields are."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from livetables.config.load import load_config
from livetables.formats.json import fault
from livetables.init.document import Contents, document
from livetables.init.inference import Proposal, proposed_joins, proposed_tables, table_names
from livetables.model.spec import Column, Table

NAMES = st.one_of(st.sampled_from(["id", "Id", "ts", "_x", "a b", "", "n\x7f\n"]), st.text(max_size=5))
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.text(max_size=5),
    st.integers(),
    st.integers(min_value=2**62, max_value=2**70),
    st.just(10**400),
    st.floats(allow_nan=False, allow_infinity=False),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=1),
)
RECORDS = st.lists(st.dictionaries(NAMES, VALUES, max_size=5), max_size=8)


def encoded(records: list[dict[str, Any]]) -> list[bytes | None]:
    return [json.dumps(record).encode() for record in records]


def proposed(*records: dict[str, Any]) -> Proposal:
    return proposed_tables({"topic": encoded(list(records))})[0]


def columns(*records: dict[str, Any]) -> dict[str, str]:
    return {column.name: column.type for column in proposed(*records).table.columns}


def reasons(*records: dict[str, Any]) -> dict[str, str]:
    return {field.name: field.why for field in proposed(*records).left_out}


@settings(deadline=None)
@given(RECORDS)
def test_the_columns_take_every_record_and_every_field_is_named(records: list[dict[str, Any]]) -> None:
    proposal = proposed(*records)
    assert [fault(raw, proposal.table) for raw in encoded(records)] == [None] * len(records)
    named = {column.name for column in proposal.table.columns} | {field.name for field in proposal.left_out}
    assert named == {name for record in records for name in record}


@settings(deadline=None)
@given(st.lists(RECORDS, min_size=1, max_size=3))
def test_what_is_written_can_be_read_and_has_these_tables(
    tmp_path_factory: pytest.TempPathFactory, samples: list[list[dict[str, Any]]]
) -> None:
    # One record with a column in each, for a table needs one.
    topics = {f"topic-{number}": encoded([{"key": "k", "n": 1}, *records]) for number, records in enumerate(samples)}
    proposals = proposed_tables(topics)
    joins = proposed_joins(proposals)
    path = tmp_path_factory.getbasetemp() / "livetables.toml"
    written = document(Contents("localhost:9092", proposals=proposals, join=joins[0] if joins else None))
    path.write_text(written)
    spec = load_config(path, {}).spec
    assert [table for table in spec.tables] == [proposal.table for proposal in proposals if proposal.table.columns]
    assert len(spec.views) == (1 if joins else 0)


def test_a_number_is_a_double_as_soon_as_one_has_a_fraction() -> None:
    assert columns({"a": 1, "b": 1}, {"a": 2, "b": 2.5}) == {"a": "int64", "b": "double"}


def test_a_number_beyond_int64_makes_a_double() -> None:
    assert columns({"a": 1}, {"a": 2**63}) == {"a": "double"}


def test_values_of_several_types_make_text() -> None:
    assert columns({"a": 1, "b": "x", "c": True}, {"a": "1", "b": 2.5, "c": 1}) == dict.fromkeys("abc", "string")


def test_what_no_type_takes_is_left_out_with_the_reason() -> None:
    found = reasons(
        {"nested": {}, "null": None, "ts": 5, "_id": 1, "two words": 1, "huge": 10**400},
        {"nested": None, "null": None},
    )
    assert found["nested"] == "an object or array, which no column takes"
    assert found["null"] == "null in all records that were looked at"
    assert found["huge"] == "some numbers are too large for any type of number"
    assert set(found) == {"nested", "null", "ts", "_id", "two words", "huge"}


def test_records_that_are_no_objects_are_counted_and_spoil_nothing() -> None:
    raw = [b'{"a":1}', None, b"", b"[1]", b'{"a":', b'{"a":NaN}', b"\xff"]
    proposal = proposed_tables({"topic": raw})[0]
    assert (proposal.table.columns, proposal.unreadable) == ((Column("a", "int64"),), 6)


def test_names_of_tables_are_legal_and_different() -> None:
    names = table_names(["shop.orders", "shop-orders", "Shop_Orders", "2024", "...", "final"])
    assert names == {
        "shop.orders": "shop_orders",
        "shop-orders": "shop_orders_2",
        "Shop_Orders": "Shop_Orders_3",
        "2024": "t_2024",
        "...": "table",
        "final": "final_2",
    }
    assert table_names(["shop.eu.orders", "shop.eu.orders_2"]) == {
        "shop.eu.orders": "orders",
        "shop.eu.orders_2": "orders_2",
    }
    assert table_names(["shop.orders"]) == {"shop.orders": "shop_orders"}


def test_the_join_is_on_what_both_have_with_the_unique_side_on_the_left() -> None:
    accounts = [{"userId": f"u{number % 3}", "type": "savings", "n": number} for number in range(9)]
    users = [{"userId": f"u{number}", "type": "person", "n": -number - 1} for number in range(3)]
    joins = proposed_joins(proposed_tables({"account": encoded(accounts), "user": encoded(users)}))
    best = joins[0]
    assert (best.left, best.right, best.on, best.shared) == ("user", "account", "userId", 3)
    assert [join.shared for join in joins[1:]] == [0, 0]


def test_tables_that_share_no_column_of_one_type_have_no_join() -> None:
    samples = {"a": encoded([{"id": 1}]), "b": encoded([{"id": "1"}]), "c": encoded([{"other": 1}])}
    assert proposed_joins(proposed_tables(samples)) == []


def test_every_setting_that_is_shown_exists_and_has_its_default(tmp_path: Path) -> None:
    sections = document(Contents()).partition("[control]")
    shown = "".join(
        line.removeprefix("# ") if " = " in line else line for line in "".join(sections[1:]).splitlines(keepends=True)
    )
    path = tmp_path / "livetables.toml"
    path.write_text(f'presets = ["default"]\n{shown}')
    config, default = load_config(path, {}), load_config(None, {})
    assert config.server.token_file == str(tmp_path / "livetables.key")
    assert (config.pipeline, config.generations, config.control) == (
        default.pipeline,
        default.generations,
        default.control,
    )
    assert {"server", "pipeline", "generations", "control"} <= tomllib.loads(path.read_text()).keys()


def test_a_join_without_a_common_value_is_shown_but_not_made(tmp_path: Path) -> None:
    proposals = proposed_tables({"a": encoded([{"id": 1}]), "b": encoded([{"id": 2}])})
    text = document(Contents(proposals=proposals, possible_join=proposed_joins(proposals)[0]))
    path = tmp_path / "livetables.toml"
    path.write_text(text)
    assert load_config(path, {}).spec.views == ()
    assert '# on = "id"' in text


def test_a_topic_without_records_is_there_to_be_completed(tmp_path: Path) -> None:
    proposals = proposed_tables({"a": encoded([{"id": 1}]), "empty": []})
    path = tmp_path / "livetables.toml"
    path.write_text(document(Contents(proposals=proposals)))
    assert load_config(path, {}).spec.tables == (Table("a", "a", (Column("id", "int64"),), "a_ui"),)
    assert '# topic = "empty"' in path.read_text()
