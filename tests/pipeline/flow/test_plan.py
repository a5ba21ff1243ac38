"""The plan for the operator and the writer, and the shapes for the server."""

from __future__ import annotations

import json
from typing import Any

from livetables.model.joins import JoinType
from livetables.model.spec import Column, GenerationSpec, Table, View
from livetables.pipeline.flow.plan import plan_json, scopes, scopes_of, shapes

ORDERS = Table(
    "orders", "o", (Column("orderId", "int64"), Column("customer", "string"), Column("note", "string")), "orders_ui"
)
CUSTOMERS = Table("customers", "c", (Column("note", "string"), Column("customer", "string")), "customers_ui")
PAYMENTS = Table("payments", "p", (Column("amount", "double"), Column("orderId", "int64")), "payments_ui")
AUDIT = Table("audit", "a", (Column("line", "string"),), "audit")
VIEWS = (
    View("order_customer", "natural", "orders", "customers", "customer"),
    View("order_payment", "left", "orders", "payments", "orderId"),
    View("payment_order", "asof", "orders", "payments", "orderId", lookback_seconds=60),
    View("pairs", "inner", "orders", "payments", "orderId"),
    View("order_customer_all", "left", "orders", "customers", "customer"),
)
SPEC = GenerationSpec((ORDERS, CUSTOMERS, PAYMENTS, AUDIT), VIEWS)


def planned_views(spec: GenerationSpec = SPEC) -> dict[str, dict[str, Any]]:
    return {view["name"]: view for view in json.loads(plan_json(spec))["views"]}


def test_a_scope_is_a_column_that_views_join_on_whatever_their_tables() -> None:
    assert scopes(SPEC) == ["customer", "orderId"]


def test_a_table_has_the_scopes_of_its_views_once_each() -> None:
    assert scopes_of(ORDERS, SPEC) == ["customer", "orderId"]
    assert scopes_of(CUSTOMERS, SPEC) == ["customer"]
    assert scopes_of(PAYMENTS, SPEC) == ["orderId"]
    assert scopes_of(AUDIT, SPEC) == []


def test_a_record_is_known_by_the_marks_of_the_first_scope_of_its_table() -> None:
    found = {shape.name: shape.scope for shape in shapes(SPEC)}
    assert (found["orders_ui"], found["customers_ui"], found["payments_ui"]) == ("customer", "customer", "orderId")
    assert found["audit"] == "customer", "a table without a view has the first of all, as the operator emits it"
    (alone,) = (shape for shape in shapes(GenerationSpec((AUDIT,), ())) if shape.name == "audit")
    assert alone.scope == "", "where there is none"


def test_a_view_is_known_by_the_marks_of_the_column_that_it_joins_on() -> None:
    found = {shape.name: shape.scope for shape in shapes(SPEC)}
    assert {view.name: found[view.name] for view in VIEWS} == {view.name: view.on for view in VIEWS}


def test_a_view_refers_to_its_scope_and_tables_by_their_places() -> None:
    found = {name: (view["scope"], view["left"], view["right"]) for name, view in planned_views().items()}
    assert found == {
        "order_customer": (0, 0, 1),
        "order_payment": (1, 0, 2),
        "payment_order": (1, 0, 2),
        "pairs": (1, 0, 2),
        "order_customer_all": (0, 0, 1),
    }


def test_every_left_join_has_a_bit_of_its_own_and_other_joins_have_none() -> None:
    bits = {name: view["bit"] for name, view in planned_views().items()}
    assert bits == {"order_customer": 0, "order_payment": 1, "payment_order": 0, "pairs": 0, "order_customer_all": 2}


def test_a_lookback_is_in_milliseconds_and_minus_one_if_there_is_none() -> None:
    found = {name: view["lookback_ms"] for name, view in planned_views().items()}
    assert found["payment_order"] == 60_000
    assert found["pairs"] == -1


def test_every_column_of_a_view_comes_from_the_place_of_its_value() -> None:
    columns = {column["name"]: column for column in planned_views()["order_customer"]["columns"]}
    assert list(columns) == [
        "_left_id",
        "_right_id",
        "orderId",
        "customer",
        "note",
        "customers_note",
        "orders_ts",
        "customers_ts",
    ]
    found = {name: (each["side"], each["kind"], each["column"]) for name, each in columns.items()}
    assert found == {
        "_left_id": ("left", "i", -1),
        "_right_id": ("right", "i", -1),
        "orderId": ("left", "v", 0),
        "customer": ("left", "v", 1),
        "note": ("left", "v", 2),
        "customers_note": ("right", "v", 0),
        "orders_ts": ("left", "t", -1),
        "customers_ts": ("right", "t", -1),
    }


def test_only_the_key_can_be_taken_from_the_other_side() -> None:
    others = {
        (view["name"], column["name"]): column["other"]
        for view in planned_views().values()
        for column in view["columns"]
        if column["other"] >= 0
    }
    assert others == {
        ("order_customer", "customer"): 1,
        ("order_payment", "orderId"): 1,
        ("payment_order", "orderId"): 1,
        ("pairs", "orderId"): 1,
        ("order_customer_all", "customer"): 1,
    }


def test_a_row_is_found_by_what_its_join_keeps() -> None:
    keys: dict[JoinType, tuple[str, ...]] = {
        "inner": ("_left_id", "_right_id"),
        "left": ("_left_id", "_right_id"),
        "natural": ("_left_id",),
        "asof": ("_right_id",),
    }
    found = {shape.name: shape for shape in shapes(SPEC)}
    for view in VIEWS:
        assert found[view.name].key == keys[view.join]
        assert found[view.name].appends == (view.join in ("inner", "left"))


def test_what_may_change_is_newer_by_the_side_that_it_follows() -> None:
    found = {shape.name: shape.version for shape in shapes(SPEC)}
    assert found["order_customer"] == ("customers_ts", "_right_id")
    assert found["payment_order"] == ("orders_ts", "_left_id")
    assert found["pairs"] == found["orders_ui"] == ()
