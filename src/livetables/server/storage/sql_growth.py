"""How large the texts and lists become that a statement makes, by what it is made of.

DuckDB counts the memory of what goes from one step of a query to the next, but not of what is made on the way inside
of an expression: `name || name || …`, 300 times, took 2 GB where it may have 256 MB. It makes that for 2,048 rows at a
time in each of its threads, and can only be stopped between.

So it is estimated before: a text of a table is one unit, and what is put together has as many units as its parts, also
by way of subqueries. The sum of all that is made has a limit. That is for texts of an ordinary size: see SECURITY.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from livetables.model.errors import RequestError

UNIT_CHARACTERS = 20
UNITS_MAX = 4_000  # 80 kB of a row, so 160 MB of 2,048 rows
COLLECTED = 500  # what has been made of texts of many rows
COLLECTING = frozenset({"array_agg", "group_concat", "histogram", "list", "listagg", "string_agg"})
# How many times larger than its arguments a result may be: a part for each character, a text for each %.
EXPANDING = {"string_split": UNIT_CHARACTERS, "split": UNIT_CHARACTERS, "strftime": 12}
HOLDING = frozenset({"list_value", "row", "struct_pack"})  # their results refer to their arguments
CONCAT = "||"

Node = Mapping[str, Any]


@dataclass(frozen=True)
class _Scope:
    """The units of what can be named at a place: of any column, and of queries of `WITH` and columns with own names."""

    column: int = 1
    queries: Mapping[str, int] = field(default_factory=dict)
    aliases: Mapping[str, int] = field(default_factory=dict)


def check_growth(statement: Node) -> None:
    """Refuse a statement that makes too much on its way."""
    growth = _Growth()
    growth.of_query(statement["node"], _Scope())
    if growth.made > UNITS_MAX:
        raise RequestError(
            "limit",
            "the query makes texts or lists that are too large",
            "put fewer of them together, and not again what was put together; concat(a, b, …) takes less than "
            "a || b || …",
        )


class _Growth:
    """Walks a statement. `made` are the units of all that its expressions make, the result of each step included."""

    def __init__(self) -> None:
        self.made = 0

    def of_query(self, node: Node, scope: _Scope) -> int:
        """The units of the largest column of an answer."""
        for entry in node.get("cte_map", {}).get("map", []):
            units = self.of_query(entry["value"]["query_node"], scope)
            scope = replace(scope, queries={**scope.queries, entry["key"].lower(): units})
        match node["type"]:
            case "SELECT_NODE":
                return self._of_select(node, scope)
            case "RECURSIVE_CTE_NODE":
                start = self.of_query(node["left"], scope)
                queries = {**scope.queries, node["cte_name"].lower(): start}
                step = self.of_query(node["right"], replace(scope, queries=queries))
                return COLLECTED if step > start else start
            case _:
                return self._largest(node, scope, but=("cte_map",))

    def _of_select(self, node: Node, scope: _Scope) -> int:
        scope = replace(scope, column=max(scope.column, self._of_source(node["from_table"], scope)))
        aliases, largest = {**scope.aliases}, 1
        scope = replace(scope, aliases=aliases)
        for item in node["select_list"]:
            aliases[item.get("alias", "").lower()] = units = self._of_expression(item, scope)
            largest = max(largest, units)
        self._largest(node, scope, but=("cte_map", "from_table", "select_list"))
        return largest

    def _of_source(self, node: Node, scope: _Scope) -> int:
        """The units of the largest column of what is read from."""
        if node["type"] == "BASE_TABLE":
            return scope.queries.get(node["qualified_name"]["path"][-1].lower(), 1)
        if node["type"] == "JOIN":
            units = max(self._of_source(node["left"], scope), self._of_source(node["right"], scope))
            self._largest(node, replace(scope, column=max(scope.column, units)), but=("left", "right"))
            return units
        return self._largest(node, scope)

    def _of_expression(self, node: Node, scope: _Scope) -> int:
        kind = node["class"]
        if kind == "COLUMN_REF":
            return max(scope.column, scope.aliases.get(node["column_names"][-1].lower(), 0))
        if kind == "CONSTANT":
            text = node["literal"].get("text", "") if node["literal"]["kind"] == "STRING" else ""
            return -(-len(text) // UNIT_CHARACTERS)
        if kind in ("STAR", "POSITIONAL_REFERENCE"):
            return max(scope.column, self._largest(node, scope))
        if kind == "FUNCTION":
            return self._of_function(node, scope)
        units = self._largest(node, scope)
        if kind in ("COMPARISON", "CONJUNCTION", "BETWEEN"):
            return 0
        if kind == "CAST":
            self.made += units
        return units

    def _of_function(self, node: Node, scope: _Scope) -> int:
        name = node["function_name"].lower()
        arguments = [self._of_expression(argument["expression"], scope) for argument in node["arguments"]]
        self._largest(node, scope, but=("arguments",))
        if not name[0].isalpha() and name != CONCAT:  # an operator: its result is a number, a time or a truth
            return 0
        first, units = (arguments or [0])[0], sum(arguments) * EXPANDING.get(name, 1)
        if name in COLLECTING:
            return first * COLLECTED  # it counts these itself
        if name == "array_to_string":  # what is between comes once for each part
            units = first * (1 + units - first)
        if name == "concat_ws":
            units += len(arguments) * first
        if name not in HOLDING:
            self.made += units
        return units

    def _largest(self, node: Node, scope: _Scope, but: tuple[str, ...] = ()) -> int:
        """The units of the largest of what a node has in it, some of it left out."""
        parts = _parts([value for key, value in node.items() if key not in but])
        return max((self._of_part(part, scope) for part in parts), default=0)

    def _of_part(self, node: Node, scope: _Scope) -> int:
        if "class" in node:
            return self._of_expression(node, scope)
        if str(node.get("type")).endswith("_NODE"):
            return self.of_query(node, scope)
        return self._largest(node, scope)


def _parts(value: object) -> Iterator[Node]:
    """The nodes in a value, without those in them."""
    if isinstance(value, dict):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _parts(each)
