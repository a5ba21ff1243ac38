"""The OpenAPI document, and that the server keeps to it whatever it is asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import positive_data_acceptance

from livetables.model.wire import Receipt
from livetables.server.api.http import create_app
from livetables.server.storage.store import Store
from livetables.server.viewports.encoding import ARROW, JSON, MEDIA_TYPES
from tests.server.api.test_http import TOKEN, USERS, fill, services_of

pytestmark = pytest.mark.processes

INT64 = st.integers(-(2**63), 2**63 - 1).map(str)
TEXT_OPERATORS = st.sampled_from(["equals", "contains", "starts_with"])
KEY = {"Authorization": f"Bearer {TOKEN}"}
BOUNDED = settings(
    max_examples=100,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
COLUMNS = st.sampled_from(USERS.schema.names)
FILTERS = st.one_of(
    st.builds(lambda column: {"column": column, "op": "is_null"}, COLUMNS),
    st.builds(lambda op, n: {"column": "age", "op": op, "value": n}, st.sampled_from(["<", ">", "equals"]), INT64),
    st.builds(lambda op, text: {"column": "name", "op": op, "value": text}, TEXT_OPERATORS, st.text(max_size=3)),
)
QUESTIONS = st.fixed_dictionaries(
    {},
    optional={
        "offset": st.integers(0, 2**62),
        "limit": st.integers(0, 10_000),
        "sort": st.lists(st.builds(str.__add__, COLUMNS, st.sampled_from(["", ":asc", ":desc"])), max_size=8),
        "q": st.text(max_size=5),
        "filter": st.lists(FILTERS, max_size=4).map(json.dumps),
        "columns": st.lists(COLUMNS, min_size=1, unique=True).map(",".join),
    },
)
LOCKED = {"/metrics", "/api/tables", "/api/tables/{name}/rows", "/api/status", "/api/control", "/api/sql"}
OPEN = {"/healthz", "/readyz"}


# Made when this module is read: schemathesis makes a test of each operation, and its fixtures fail with pytest 9.
SERVICES = services_of(Store(None))
REJECTIONS = {"negative_data_rejection": {"expected-statuses": [400, 401, 404, 405, 406, 413, 422]}}
CONFIG = schemathesis.Config.from_dict({"checks": REJECTIONS})
API = schemathesis.openapi.from_asgi("/openapi.json", create_app(SERVICES), config=CONFIG)


@pytest.fixture(autouse=True, scope="module")
def _running() -> Iterator[None]:
    """Rows in the tables, and a pipeline that publishes every control message."""
    fill(SERVICES.store)
    is_over = threading.Event()

    def publish() -> None:
        while not is_over.is_set():
            for request in SERVICES.control.take(0.05):
                SERVICES.control.settle(request.request_id, Receipt("control", 0, request.request_id))

    pipeline = threading.Thread(target=publish)
    pipeline.start()
    yield
    is_over.set()
    pipeline.join()
    SERVICES.store.close()


@API.parametrize()
@BOUNDED
def test_every_answer_is_as_documented(case: schemathesis.Case[Any]) -> None:
    # What fits the schema may still not fit the tables: a column that is not there, a query that is no SQL.
    case.call_and_validate(headers=KEY, excluded_checks=[positive_data_acceptance])


@BOUNDED
@given(question=QUESTIONS, accept=st.sampled_from(MEDIA_TYPES))
def test_every_question_that_fits_the_table_is_answered_as_documented(question: dict[str, Any], accept: str) -> None:
    case = API["/api/tables/{name}/rows"]["GET"].Case(path_parameters={"name": "user"}, query=question)
    response = case.call_and_validate(headers={**KEY, "Accept": accept})
    assert (response.status_code, response.headers["content-type"][0].split(";")[0]) == (200, accept)


@pytest.mark.parametrize("accept", [JSON, ARROW])
@pytest.mark.parametrize("query", ["FROM user", "SHOW TABLES", "SELECT 1, [age], {'a': seen}, 0.1, NULL FROM users_ui"])
def test_every_sql_answer_is_as_documented(query: str, accept: str) -> None:
    case = API["/api/sql"]["POST"].Case(body={"sql": query}, media_type=JSON)
    response = case.call_and_validate(headers={**KEY, "Accept": accept})
    assert (response.status_code, response.headers["content-type"]) == (200, [accept])


@pytest.fixture
def document() -> dict[str, Any]:
    return dict(API.raw_schema)


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        yield from ((path, operation) for operation in methods.values())


def test_every_operation_is_documented(document: dict[str, Any]) -> None:
    assert set(document["paths"]) == LOCKED | OPEN
    assert all(operation["summary"] for _, operation in operations(document))


def test_what_needs_the_key_says_so(document: dict[str, Any]) -> None:
    (scheme,) = document["components"]["securitySchemes"]
    assert document["components"]["securitySchemes"][scheme]["scheme"] == "bearer"
    assert {path for path, operation in operations(document) if operation.get("security") == [{scheme: []}]} == LOCKED
    assert {path for path, operation in operations(document) if "401" in operation["responses"]} == LOCKED


def test_every_problem_has_the_same_three_fields(document: dict[str, Any]) -> None:
    problems = [
        response["content"]["application/json"]["schema"]
        for _, operation in operations(document)
        for status, response in operation["responses"].items()
        if int(status) >= 400
    ]
    assert problems
    assert all(problem == {"$ref": "#/components/schemas/Problem"} for problem in problems)


def test_rows_are_documented_in_all_their_media_types(document: dict[str, Any]) -> None:
    answer = document["paths"]["/api/tables/{name}/rows"]["get"]["responses"]["200"]
    assert set(answer["content"]) == {"application/json", "text/csv", "application/vnd.apache.arrow.stream"}
