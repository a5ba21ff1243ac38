"""Which SQL a client may run: one SELECT over the stable names, with functions whose time and memory are bounded.

DuckDB runs inside the server. It counts the memory of what it sorts, groups and joins, and stops a query between two
chunks of rows; but it can do neither inside a function that makes a gigabyte out of one row. So a statement is read as
DuckDB's own parser understands it, and everything in it must be on a list here. It can do neither while it parses and
plans, either: that happens in a process that can be killed, `plan_process`, and so does the check.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Collection, Mapping
from typing import Any

import duckdb

from livetables.config.settings import choice
from livetables.model.errors import RequestError
from livetables.server.storage.sql_growth import check_growth

MAX_SQL_CHARACTERS = 10_000
MAX_LITERAL_CHARACTERS = 1_000
MAX_PATTERN_CHARACTERS = 200
MAX_COUNTED_REPEATS = 100
MAX_NESTING = 200  # of brackets and signs: the parser's time and memory grow with the square of it
MAX_PARTS = 64  # tables and subqueries: time to plan grows faster than their number, and cannot be interrupted


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


AGGREGATES = _words(
    """
    any_value approx_count_distinct approx_quantile arg_max arg_max_null arg_min arg_min_null argmax argmin array_agg
    avg bit_and bit_or bit_xor bool_and bool_or corr count count_if count_star countif covar_pop covar_samp entropy
    favg first fsum geomean geometric_mean group_concat histogram kahan_sum kurtosis kurtosis_pop last list listagg mad
    max max_by mean median min min_by mode product quantile quantile_cont quantile_disc regr_avgx regr_avgy regr_count
    regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy sem skewness stddev stddev_pop stddev_samp string_agg
    sum sumkahan var_pop var_samp variance wavg weighted_avg
    """
)
# Without mad, mode, entropy, list and the like: over a frame that moves, they start again for every row.
WINDOW_FUNCTIONS = _words(
    """
    any_value approx_count_distinct arg_max arg_min argmax argmin avg bool_and bool_or corr count count_if count_star
    countif covar_pop covar_samp cume_dist dense_rank fill first first_value lag last last_value lead max max_by mean
    median min min_by nth_value ntile percent_rank quantile_cont quantile_disc rank rank_dense regr_slope row_number
    stddev stddev_pop stddev_samp sum var_pop var_samp variance
    """
)
# Without what makes text or a list of any size (range, repeat, lpad, format, list_resize), what compares two long texts
# letter by letter (levenshtein), what waits, writes or looks at the server itself, and lambdas.
SCALARS = _words(
    """
    !~~ !~~* % & * ** + - / // << >> @ ^ ^@ | || ~ ~~ ~~*
    abs acos acosh add age array_contains array_distinct array_extract array_has array_length array_position
    array_slice array_sort array_to_string array_unique ascii asin asinh atan atan2 atanh bit_count cbrt ceil ceiling
    century char_length character_length chr concat concat_ws contains cos cosh cot current_date
    current_localtimestamp date_add date_diff date_part date_sub date_trunc datediff datepart datesub datetrunc day
    dayname dayofmonth dayofweek dayofyear days_in_month decade degrees divide element_at ends_with epoch epoch_ms
    epoch_ns epoch_us era even exp fdiv floor fmod format_bytes gcd get_current_timestamp greatest
    greatest_common_divisor hash hour if ilike_escape instr isfinite isinf isnan isodow isoyear julian last_day lcase
    lcm least least_common_multiple left len length like_escape list_contains list_count list_distinct list_element
    list_extract list_has list_indexof list_max list_min list_position list_reverse_sort list_slice list_sort list_sum
    list_unique list_value ln log log10 log2 lower ltrim make_date make_time make_timestamp make_timestamptz md5
    microsecond millennium millisecond minute mod month monthname multiply nanosecond not_ilike_escape
    not_like_escape now nullif octet_length ord pi position pow power prefix quarter radians random regexp_extract
    regexp_full_match regexp_matches regexp_replace replace reverse right round round_even row rtrim second sha256
    sign signbit sin sinh split split_part sqrt starts_with strftime string_split strip_accents strlen strpos strptime
    struct_extract struct_pack substr substring subtract suffix tan tanh time_bucket timezone to_centuries to_days
    to_decades to_hours to_microseconds to_millennia to_milliseconds to_minutes to_months to_quarters to_seconds
    to_timestamp to_weeks to_years today transaction_timestamp translate trim trunc try_strptime typeof ucase unicode
    unnest upper week weekday weekofyear xor year yearweek
    """
)
PATTERN_FUNCTIONS = frozenset({"regexp_extract", "regexp_full_match", "regexp_matches", "regexp_replace"})
TABLE_FUNCTIONS = frozenset({"unnest"})
TYPES = _words(
    """
    bigint bool boolean char date decimal double float float4 float8 hugeint int int1 int2 int4 int8 integer interval
    list long numeric real short smallint string text time timestamp timestamp_ms timestamp_ns timestamp_s timestamptz
    tinyint ubigint uinteger usmallint utinyint uuid varchar
    """
) | {"timestamp with time zone", "timestamp without time zone", "double precision"}
EXPRESSIONS = _words(
    """
    BETWEEN CASE CAST COLUMN_REF COMPARISON CONJUNCTION CONSTANT FUNCTION OPERATOR POSITIONAL_REFERENCE STAR SUBQUERY
    TYPE WINDOW
    """
)
# Query nodes, what they read from, and their modifiers. PIVOT is not among them: it runs a query while it is planned.
PARTS = _words(
    """
    SELECT_NODE SET_OPERATION_NODE RECURSIVE_CTE_NODE BASE_TABLE SUBQUERY JOIN EMPTY EXPRESSION_LIST TABLE_FUNCTION
    SHOW_REF LIMIT_MODIFIER LIMIT_PERCENT_MODIFIER ORDER_MODIFIER DISTINCT_MODIFIER ORDER_DEFAULT ASCENDING DESCENDING
    """
)
QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
UNCLEAR = re.compile(r"\\|\$|--|/\*")  # with these, only DuckDB knows where a text or a comment ends
ENDS_SIGNS = frozenset(f"{string.ascii_letters}{string.digits}_,;)]}}")
PARSER_SHORTAGE = "Allocation failure"  # how it says that it has no memory left
COUNTED_REPEAT = re.compile(r"\{(\d*),?(\d*)\}")

Node = Mapping[str, Any]


def check_size(text: str) -> None:
    """Refuse what is too long or nests too deeply: nearly free, and before anything else is done with a text."""
    if len(text) > MAX_SQL_CHARACTERS:
        raise RequestError(
            "limit", f"the query has {len(text):,} characters", f"send at most {MAX_SQL_CHARACTERS:,} characters"
        )
    _check_nesting(text)


def check_sql(
    cursor: duckdb.DuckDBPyConnection, text: str, tables: Collection[str], hidden: Collection[str] = ()
) -> None:
    """Raise a RequestError unless the text is one SELECT, SHOW TABLES, DESCRIBE or SUMMARIZE over these tables.

    Those that are hidden are there, but not for who asks. A text that passed `check_size` may still take any time, and
    memory until there is none: a MemoryError.
    """
    (statement,) = _parsed(cursor, text)
    _Check(tables, hidden).run(statement)
    try:
        check_growth(statement)
    except RecursionError:
        raise _too_nested() from None


def _check_nesting(text: str) -> None:
    """Refuse what nests too deeply.

    What is counted may be more than there is, but never less: in a text that is not clear, nothing counts as closed.
    """
    is_clear = not UNCLEAR.search(text)
    depth = signs = 0  # signs: those right before here, like in - - -1
    opened: list[int] = []  # for each open bracket, the signs before it
    for character in QUOTED.sub("x", text) if is_clear else text:
        if character in "([{":
            opened.append(signs)
            depth, signs = depth + 1, 0
        elif character in "+-":
            depth, signs = depth + 1, signs + 1
        elif is_clear and character in ENDS_SIGNS:
            depth, signs = depth - signs, 0
            if character in ")]}" and opened:
                depth -= 1 + opened.pop()
        if depth > MAX_NESTING:
            aside = "" if is_clear else "; without comments, $ and backslashes it may have more of them"
            raise RequestError(
                "limit",
                "the query has too many parentheses or signs in each other",
                f"nest at most {MAX_NESTING} deep{aside}",
            )


def _parsed(cursor: duckdb.DuckDBPyConnection, text: str) -> list[Node]:
    """The one statement in the text, as DuckDB's parser understands it."""
    try:
        text.encode()
        ((tree,),) = cursor.execute("SELECT json_serialize_sql(?)", [text]).fetchall()
        parsed = json.loads(tree)
    except duckdb.Error as error:
        if is_shortage(error):
            raise MemoryError from None
        raise wrong_query(error) from None
    except UnicodeEncodeError:
        raise RequestError("bad_sql", "the query is not valid text", "send whole characters") from None
    except RecursionError:
        raise _too_nested() from None
    if parsed["error"] and parsed["error_type"] != "not implemented":
        problem = str(parsed["error_message"]).split("\n")[0]
        if problem == PARSER_SHORTAGE:
            raise MemoryError
        raise RequestError("bad_sql", problem, "correct the query; it is DuckDB's SQL")
    if parsed["error"] or len(parsed["statements"]) != 1:
        raise RequestError(
            "bad_sql",
            "only one SELECT at a time is answered",
            "send a single SELECT, SHOW TABLES, DESCRIBE or SUMMARIZE",
        )
    statements: list[Node] = parsed["statements"]
    return statements


class _Check:
    """Walks a statement. Names of `WITH` are known where SQL lets them be seen, and nowhere else."""

    def __init__(self, tables: Collection[str], hidden: Collection[str]) -> None:
        self._hidden = {name.lower() for name in hidden}
        self._tables = {name.lower(): name for name in tables}
        self._parts = 0  # tables and subqueries so far
        self._left: list[tuple[object, frozenset[str]]] = []  # what is still to be walked, with the names of WITH there

    def run(self, statement: Node) -> None:
        self._left.append((statement["node"], frozenset()))
        while self._left:
            each, names = self._left.pop()
            if isinstance(each, list):
                self._left += [(item, names) for item in each]
            elif isinstance(each, dict):
                names = self._with(each, names)
                self._check(each, names)
                self._left += [(item, names) for key, item in each.items() if key != "cte_map"]

    def _with(self, node: Node, names: frozenset[str]) -> frozenset[str]:
        """The names that can be used in this node: those of its own `WITH` too, each by the ones after it."""
        for entry in node.get("cte_map", {}).get("map", []):
            name, query = entry["key"].lower(), entry["value"]["query_node"]
            if entry["value"]["materialized"] == "CTE_MATERIALIZE_NEVER":
                raise _unavailable("NOT MATERIALIZED", "leave it out")  # planning would repeat it for each use
            is_recursive = query["type"] == "RECURSIVE_CTE_NODE"
            self._left.append((entry["value"], names | {name} if is_recursive else names))
            names |= {name}
        return names

    def _check(self, node: Node, names: frozenset[str]) -> None:
        if "class" in node:
            self._check_expression(node)
        elif isinstance(node.get("type"), str):
            self._check_part(node, names)
        if "literal" in node and len(str(node["literal"].get("text", ""))) > MAX_LITERAL_CHARACTERS:
            raise RequestError(
                "limit", "a text in the query is too long", f"use at most {MAX_LITERAL_CHARACTERS:,} characters in each"
            )

    def _check_expression(self, node: Node) -> None:
        kind = node["class"]
        if kind not in EXPRESSIONS:
            raise _unavailable(kind.replace("_", " "), "write the query without it")
        if kind == "FUNCTION":
            self._check_function(node)
        elif kind == "WINDOW" and node["function_name"].lower() not in WINDOW_FUNCTIONS:
            raise _unavailable(
                f"the function {_shown(node['function_name'])} with OVER",
                "use row_number, rank, lag, lead, first_value, sum, avg, min, max, count or median",
            )
        elif kind == "TYPE" and node["type_name"].lower() not in TYPES:
            raise _unavailable(
                f"the type {_shown(node['type_name'])}", "use varchar, bigint, double, boolean, date or timestamptz"
            )

    def _check_function(self, node: Node) -> None:
        name = node["function_name"].lower()
        if name not in SCALARS and name not in AGGREGATES:
            raise _unavailable(
                f"the function {_shown(node['function_name'])}", "use aggregates, and functions of one row's values"
            )
        arguments = [argument["expression"] for argument in node["arguments"]]
        if name in PATTERN_FUNCTIONS:
            _check_pattern(name, arguments)
        if name == "replace" and len(arguments) == 3:
            needle, replacement = _constant(arguments[1]), _constant(arguments[2])
            if needle is None or replacement is None or len(replacement.encode()) > len(needle.encode()):
                raise RequestError(
                    "bad_sql",
                    "replace can only put in a constant that is no longer than the one it replaces",
                    "shorten it, or take the text apart with split_part and join it with ||",
                )

    def _check_part(self, node: Node, names: frozenset[str]) -> None:
        kind = node["type"]
        if kind not in PARTS:
            raise _unavailable(kind.replace("_", " "), "write the query without it")
        if kind in ("BASE_TABLE", "TABLE_FUNCTION", "SELECT_NODE"):
            self._parts += 1
        if self._parts > MAX_PARTS:
            raise RequestError(
                "limit", "the query has too many tables and subqueries", f"use at most {MAX_PARTS} of both together"
            )
        if kind == "BASE_TABLE":
            self._check_table(node, names)
        elif kind == "TABLE_FUNCTION" and node["function"]["function_name"].lower() not in TABLE_FUNCTIONS:
            raise _unavailable(
                f"the function {_shown(node['function']['function_name'])}", "read from tables; SHOW TABLES lists them"
            )
        elif kind == "SHOW_REF" and node["query"] is None:
            if node["show_type"] == "SHOW_SPECIAL":
                if node["table_name"] != '"tables"':
                    raise _unavailable("this SHOW", "use SHOW TABLES, or DESCRIBE with a table's name")
            else:
                self._check_table(node, names)

    def _check_table(self, node: Node, names: frozenset[str]) -> None:
        *schema, table = node["qualified_name"]["path"]
        if node.get("at_clause"):
            raise _unavailable("AT", "leave it out: tables are read as they are now")
        if [name.lower() for name in schema] not in ([], ["main"]):
            raise RequestError(
                "bad_sql", f"the schema {_shown('.'.join(schema))} is not available here", "name the table alone"
            )
        if table.lower() not in self._tables and (schema or table.lower() not in names):
            cure = choice(table, self._tables.values()) if self._tables else "wait until a generation is published"
            raise RequestError("unknown_table", f"there is no table {_shown(table)}", cure)
        if table.lower() in self._hidden and (schema or table.lower() not in names):
            raise RequestError(
                "forbidden",
                f"{_shown(table)} in SQL needs the role operator: what its records hold is hidden from viewers",
                "read it as a table, or send an operator's key (LIVETABLES_TOKEN of the server)",
            )


def _check_pattern(name: str, arguments: list[Node]) -> None:
    """A pattern's size bounds the time a row takes: it must be known, and small."""
    pattern = _constant(arguments[1]) if len(arguments) > 1 else None
    if pattern is None or len(pattern) > MAX_PATTERN_CHARACTERS:
        raise RequestError(
            "bad_sql",
            f"{name} needs a constant pattern of at most {MAX_PATTERN_CHARACTERS} characters",
            "write it as text, and shorten it; LIKE takes any pattern",
        )
    repeats = [max(int(bound or 0) for bound in each.groups()) for each in COUNTED_REPEAT.finditer(pattern)]
    if sum(repeats) > MAX_COUNTED_REPEATS or re.search(r"\)[*+?]*\{", pattern):
        raise RequestError(
            "bad_sql",
            f"{name} has a pattern that repeats too much",
            f"count no group, and no more than {MAX_COUNTED_REPEATS} characters in all; use * or +",
        )
    if name == "regexp_replace" and (len(arguments) < 3 or _constant(arguments[2]) != ""):
        raise RequestError(
            "bad_sql", "regexp_replace can only remove here", "put '' in, or take what you want with regexp_extract"
        )


def _constant(node: Node) -> str | None:
    """The text of a constant, None of anything else."""
    if node["class"] != "CONSTANT" or node["literal"]["kind"] != "STRING":
        return None
    text: str = node["literal"]["text"]
    return text


def wrong_query(error: Exception) -> RequestError:
    """What DuckDB finds wrong with a query, for the one who sent it."""
    return RequestError("bad_sql", first_line(error), "correct the query; DESCRIBE shows a table's columns")


def is_shortage(error: Exception) -> bool:
    """Whether something failed for lack of memory."""
    return "Out of Memory" in str(error)


def first_line(error: Exception) -> str:
    return str(error).split("\n")[0]


def _too_nested() -> RequestError:
    return RequestError("bad_sql", "the query is nested too deeply", "write it with fewer parentheses")


def _unavailable(what: str, cure: str) -> RequestError:
    return RequestError("bad_sql", f"{what} is not available here", cure)


def _shown(name: str) -> str:
    return name if re.fullmatch(r"[\w.]{1,60}", name, re.ASCII) else ascii(name)[:60]
