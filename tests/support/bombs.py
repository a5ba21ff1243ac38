"""SQL of a few hundred characters that takes DuckDB hours or gigabytes before it looks at a row.

Each was let through by the list of what SQL may be made of, with a viewer's key.
"""

from __future__ import annotations

from collections.abc import Mapping

DEPTH = 24


def nested(expression: str, table: str, start: str = "age", depth: int = DEPTH) -> str:
    """An expression of itself of itself."""
    text = start
    for _ in range(depth):
        text = expression.format(text)
    return f"SELECT {text} FROM {table}"


def stacked(select: str, table: str, depth: int = DEPTH) -> str:
    """A query over a query over a query, whose innermost has a column x."""
    text = f"SELECT age AS x FROM {table}"
    for _ in range(depth):
        text = f"{select} FROM ({text}) t"
    return text


def planning_bombs(table: str, number: str = "age", text: str = "name") -> Mapping[str, str]:
    """The bombs over a table with a column of numbers and one of text."""
    bombs = {
        "simple case": "SELECT " + "CASE " * DEPTH + "1" + " WHEN 1 THEN 1 WHEN 2 THEN 2 END" * DEPTH,
        "between": nested("({} BETWEEN 1 AND 2)::INT", table),
        "in": nested("({} IN (1, 2))::INT", table),
        "row": f"SELECT count(x) FROM ({stacked('SELECT row(x, x) AS x', table)})",
        "row in the answer": stacked("SELECT row(x, x) AS x", table),
        "struct": f"SELECT count(x) FROM ({stacked('SELECT {a: x, b: x} AS x', table)})",
        "whole rows": f"SELECT count(x) FROM ({stacked('SELECT t AS x, t AS y', table)})",
        "stars": f"SELECT count(*) FROM ({stacked('SELECT *, *', table)})",
        "stars in the answer": stacked("SELECT *, *", table),
        "nullif": nested("nullif({}, 1)", table, depth=30),
        "fmod": nested("fmod({}, 7)", table),
        "split_part": nested("split_part({}, 'a', 1)", table, "name"),
        "array_to_string": nested("array_to_string([{}], 'a')", table, "name"),
        "behind a filter": f"{nested('fmod({}, 7)', table)} WHERE age > 1000000 AND name = 'nobody'",
        "aliases": f"SELECT age AS a0, {', '.join(f'a{n} + a{n} AS a{n + 1}' for n in range(DEPTH))} FROM {table}",
    }
    return {name: bomb.replace("age", number).replace("name", text) for name, bomb in bombs.items()}
