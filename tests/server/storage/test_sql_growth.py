"""What a statement makes on its way is estimated from what it is made of; tests of `sql` run such statements."""

from __future__ import annotations

import json
from collections.abc import Iterator

import duckdb
import pytest

from livetables.model.errors import RequestError
from livetables.server.storage.sql import AGGREGATES, SCALARS
from livetables.server.storage.sql_growth import (
    COLLECTING,
    EXPANDING,
    HOLDING,
    UNITS_MAX,
    _Growth,
    _Scope,
    check_growth,
)


@pytest.fixture(scope="module")
def parser() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as parser:
        yield parser


def made(parser: duckdb.DuckDBPyConnection, text: str) -> tuple[int, int]:
    """What a statement makes, and the largest column of its answer."""
    ((tree,),) = parser.execute("SELECT json_serialize_sql(?)", [text]).fetchall()
    growth = _Growth()
    largest = growth.of_query(json.loads(tree)["statements"][0]["node"], _Scope())
    return growth.made, largest


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT a FROM t", (0, 1)),
        ("SELECT a || b FROM t", (2, 2)),
        ("SELECT a || b || c FROM t", (5, 3)),
        ("SELECT concat(a, b, c) FROM t", (3, 3)),
        ("SELECT lower(trim(a)) FROM t", (2, 1)),
        (f"SELECT a || '{'x' * 50}' FROM t", (4, 4)),
        ("SELECT a + b * c - 1, a = b, a LIKE 'x%' AND a IS NULL, a BETWEEN b AND c FROM t", (0, 1)),
        ("SELECT length(a) + length(a || b) FROM t", (5, 1)),
        ("SELECT CASE WHEN a || b = '' THEN a || b || c ELSE a END FROM t", (7, 3)),
        ("SELECT coalesce(a || b, c) FROM t", (2, 2)),
        ("SELECT row(a, b), {'x': a}, [a, b] FROM t", (0, 2)),
        ("SELECT row(a, b)::VARCHAR FROM t", (2, 2)),
        ("SELECT b || b FROM (SELECT a || a AS b FROM t)", (6, 4)),
        ("WITH x AS (SELECT a || a AS b FROM t), y AS (SELECT b || b AS b FROM x) SELECT b || b FROM y", (14, 8)),
        ("SELECT * FROM (SELECT a || a AS b FROM t) WHERE b || b = ''", (6, 2)),
        ("SELECT a || a AS b, b || b AS c, c || c FROM t", (14, 8)),
        ("SELECT x.b || y.b FROM t AS x JOIN (SELECT a || a AS b FROM t) AS y ON x.b || y.b = ''", (10, 4)),
        ("SELECT (SELECT b || b) FROM (SELECT a || a AS b FROM t)", (6, 4)),
        ("SELECT a || a FROM t UNION SELECT a || a || a FROM t", (7, 3)),
        ("SELECT * REPLACE (a || a AS a) FROM t", (2, 2)),
        ("SELECT string_agg(a, ', ') FROM t", (0, 500)),
        ("SELECT s || s FROM (SELECT list(a) AS s FROM t)", (1_000, 1_000)),
        ("SELECT array_to_string(list(a), ', ') FROM t", (1_000, 1_000)),
        ("SELECT string_split(a, '') FROM t", (20, 20)),
        ("WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT n FROM r", (0, 1)),
        ("WITH RECURSIVE r AS (SELECT a FROM t UNION ALL SELECT a || a FROM r) SELECT a || a FROM r", (1_002, 1_000)),
        ("SELECT max(a || b) OVER (PARTITION BY a || b ORDER BY a || b) FROM t", (6, 2)),
        ("SELECT a FROM t ORDER BY a || b LIMIT length(a || b)", (6, 1)),
        ("SELECT count(*) FILTER (WHERE a || b = '') FROM t GROUP BY a || b HAVING a || b = ''", (6, 1)),
    ],
)
def test_what_is_made_is_counted_by_way_of_subqueries_too(
    parser: duckdb.DuckDBPyConnection, text: str, expected: tuple[int, int]
) -> None:
    assert made(parser, text) == expected


@pytest.mark.parametrize(("terms", "is_refused"), [(80, False), (100, True)])
def test_too_much_is_refused(parser: duckdb.DuckDBPyConnection, terms: int, is_refused: bool) -> None:
    text = f"SELECT {'||'.join(['a'] * terms)} FROM t"
    ((tree,),) = parser.execute("SELECT json_serialize_sql(?)", [text]).fetchall()
    statement = json.loads(tree)["statements"][0]
    assert (made(parser, text)[0] > UNITS_MAX) == is_refused
    if is_refused:
        with pytest.raises(RequestError, match="concat"):
            check_growth(statement)
    else:
        check_growth(statement)


def test_the_functions_that_it_knows_are_among_those_that_are_allowed() -> None:
    assert set() == COLLECTING - AGGREGATES
    assert {*EXPANDING, *HOLDING} - SCALARS == set()
