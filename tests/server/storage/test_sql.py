"""Which SQL clients may run: honest questions are answered, hostile ones get an error, and the server serves on."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from livetables.model.errors import RequestError
from livetables.server.storage import reader as reader_module
from livetables.server.storage import sql
from livetables.server.storage.store import Store
from livetables.server.viewports.viewport import ViewOptions
from tests.support.tables import APPENDS, batch, numbered

USERS = replace(APPENDS, name="users", aliases=("user",))
BIG = replace(APPENDS, name="big")
ROWS = 20_000
MEMORY_MEGABYTES = 256


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    served = Store(tmp_path_factory.mktemp("sql") / "store.duckdb", memory_megabytes=MEMORY_MEGABYTES)
    served.begin("g1", [USERS, BIG])
    served.put(batch("g1", 0, {USERS: (numbered(0, 100), []), BIG: (numbered(0, ROWS), [])}))
    served.publish("g1")
    yield served
    served.close()


def answer(served: Store, text: str, seconds_max: float = 10) -> list[tuple[Any, ...]]:
    with served.reader.sql(text, seconds_max) as reader:
        return [tuple(row.values()) for row in reader.read_all().to_pylist()]


def refusal(served: Store, text: str, seconds_max: float = 0.5) -> RequestError:
    with pytest.raises(RequestError) as caught:
        answer(served, text, seconds_max)
    return caught.value


def resident_megabytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20


# Honest questions

HONEST = [
    "SELECT 1",
    "FROM users",
    "TABLE users",
    "SELECT * FROM main.users LIMIT 5 OFFSET 2",
    "select COUNT(*), sum(age), avg(balance), min(ts), max(ts) from USERS",
    "SELECT active, median(balance), quantile_cont(balance, 0.9), stddev(balance) FROM users GROUP BY active",
    "SELECT active, count(*) FILTER (WHERE age > 30), count(DISTINCT age) FROM users GROUP BY ALL ORDER BY ALL",
    "SELECT arg_max(name, balance), string_agg(name, ', ' ORDER BY name), list(age), mode(age) FROM users",
    "SELECT name, row_number() OVER (PARTITION BY active ORDER BY age DESC NULLS LAST) AS n FROM users QUALIFY n <= 3",
    "SELECT lag(balance) OVER w, lead(balance) OVER w, first_value(name) OVER w FROM users WINDOW w AS (ORDER BY ts)",
    "SELECT avg(balance) OVER (ORDER BY ts ROWS BETWEEN 5 PRECEDING AND CURRENT ROW) FROM users",
    "SELECT date_trunc('hour', ts), extract(year FROM ts), strftime(ts, '%Y-%m'), epoch_ms(ts) FROM users",
    "SELECT time_bucket(INTERVAL 15 MINUTE, ts) AS t, count(*) FROM users GROUP BY t ORDER BY t",
    "SELECT * FROM users WHERE ts > now() - INTERVAL 1 DAY AND ts < current_date",
    "SELECT ts AT TIME ZONE 'Europe/Berlin', date_diff('day', ts, now()), ts::date, DATE '2026-01-31' FROM users",
    "SELECT lower(name), upper(name), length(name), name[1:2], trim(name), left(name, 1) FROM user",
    "SELECT name LIKE 'u%', name ILIKE '%R', name ~ '^u.*[0-9]{1,3}$', name SIMILAR TO 'u.*' FROM users",
    "SELECT regexp_matches(name, 'user [0-9]+'), regexp_extract(name, '[0-9]+'), split_part(name, ' ', 2) FROM users",
    "SELECT regexp_replace(name, '[0-9]', '', 'g'), replace(name, 'user', 'u'), replace(name, ' ', '_') FROM users",
    "SELECT name || ' ' || age::varchar || '!', concat(name, age), concat_ws('-', name, age) FROM users",
    "SELECT CASE WHEN age > 30 THEN 'old' ELSE 'young' END, coalesce(age, 0), nullif(age, 1), ifnull(age, 0) FROM user",
    "SELECT if(age > 30, 1, 2), greatest(age, 1), age IS NULL, age IN (1, 2), age BETWEEN 1 AND 2 FROM users",
    "SELECT -age, age + 1, age - 1, age * 2, age / 2, age // 2, age % 2, age ** 2, age ^ 2, age & 1 FROM users",
    "SELECT round(balance, 1), floor(balance), ceil(balance), abs(balance), sqrt(age), ln(age + 1) FROM users",
    "SELECT CAST(age AS DOUBLE), TRY_CAST(name AS INTEGER), age::DECIMAL(10, 2), ['1']::INTEGER[] FROM users",
    "SELECT s.a, s['b'][1] FROM (SELECT {'a': age, 'b': [age, 1]} AS s FROM users)",
    "SELECT unnest(list(age)) FROM users",
    "SELECT * FROM unnest([1, 2, 3])",
    "SELECT name.upper() FROM users",
    "SELECT u.name, b.age FROM users u JOIN big b ON u._id = b._id LEFT JOIN user x ON x._id = b._id WHERE u.age > 3",
    "SELECT * FROM users u ASOF JOIN big b ON u.ts >= b.ts",
    "SELECT * FROM users WHERE age > (SELECT avg(age) FROM users) AND _id IN (SELECT _id FROM big)",
    "SELECT * FROM users u WHERE EXISTS (SELECT 1 FROM big b WHERE b._id = u._id + 1)",
    "WITH a AS (SELECT age, count(*) AS n FROM users GROUP BY age), b AS (FROM a WHERE n > 0) SELECT * FROM b, a AS c",
    "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 10) SELECT * FROM r",
    "SELECT age FROM users UNION SELECT age FROM big EXCEPT SELECT 1 ORDER BY 1",
    "SELECT DISTINCT ON (age) age, name FROM users ORDER BY age, name",
    "SELECT active, age, sum(balance), grouping(age) FROM users GROUP BY ROLLUP (active, age)",
    "SELECT * EXCLUDE (ts) REPLACE (age + 1 AS age) FROM users",
    "SELECT min(COLUMNS(*)) FROM users",
    "SELECT * FROM users USING SAMPLE 10 ROWS",
    "SELECT * FROM (VALUES (1, 'a'), (2, 'b')) AS v(n, t)",
    "SELECT 'semicolon; and -- comment' -- really\n;",
    "SELECT upper(string_agg(name, ', ')) || '!', array_to_string(list(name), ', ') || string_agg(name, '') FROM users",
    f"SELECT {'||'.join(['name'] * 60)}, concat({', '.join(['name'] * 900)}), {'+'.join(['age'] * 400)} FROM users",
    f"SELECT {', '.join(f'lower(trim(name)) || {n}' for n in range(250))} FROM users",
    "WITH RECURSIVE p AS (SELECT _id, name AS path FROM users UNION ALL "
    "SELECT u._id, p.path || '/' || u.name FROM p JOIN users u ON u._id = p._id + 50) SELECT path || '.' FROM p",
    "SHOW TABLES",
    "DESCRIBE users",
    "DESCRIBE SELECT age FROM users",
    "SHOW users",
    "SUMMARIZE users",
    "SELECT column_name, approx_unique FROM (SUMMARIZE users)",
]


@pytest.mark.parametrize("text", HONEST)
def test_an_honest_question_is_answered(served: Store, text: str) -> None:
    assert answer(served, text) or "now()" in text or "EXCEPT" in text


def test_every_function_on_the_lists_is_one_of_duckdbs() -> None:
    known = duckdb.execute("SELECT DISTINCT function_name FROM duckdb_functions()").fetchall()
    assert {*sql.AGGREGATES, *sql.SCALARS, *sql.WINDOW_FUNCTIONS} - {name for (name,) in known} == set()


def test_show_tables_lists_the_stable_names_and_nothing_else(served: Store) -> None:
    assert answer(served, "SHOW TABLES") == [("big",), ("user",), ("users",)]


# Hostile ones

FUNCTIONS = [
    "SELECT range(1000000000)",
    "SELECT * FROM range(1000000000)",
    "SELECT * FROM generate_series(1, 1000000000)",
    "SELECT unnest(generate_series(1, 1000000000))",
    "SELECT repeat('x', 2000000000)",
    "SELECT * FROM repeat('x', 2000000000)",
    "SELECT lpad('x', 2000000000, 'y')",
    "SELECT rpad(name, 2000000000, 'y') FROM users",
    "SELECT printf('%2000000000d', 1)",
    "SELECT format('{:2000000000d}', 1)",
    "SELECT list_resize([1], 2000000000)",
    "SELECT array_resize([1], 2000000000)",
    "SELECT bar(1, 0, 10, 2000000000)",
    "SELECT bitstring('1', 2000000000)",
    "SELECT levenshtein(name, name) FROM users",
    "SELECT list_transform([1, 2], x -> x + 1)",
    "SELECT list_aggregate([1, 2], 'sum')",
    "SELECT sleep_ms(100000)",
    "SELECT pg_sleep(100)",
    "SELECT write_log('x')",
    "SELECT * FROM checkpoint()",
    "SELECT * FROM force_checkpoint()",
    "SELECT * FROM duckdb_logs()",
    "SELECT * FROM truncate_duckdb_logs()",
    "SELECT * FROM enable_logging()",
    "SELECT * FROM pragma_storage_info('users')",
    "SELECT * FROM pragma_table_info('g1.users')",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM glob('/*')",
    "SELECT * FROM parquet_scan('x')",
    "SELECT * FROM query('SELECT * FROM g1.users')",
    "SELECT * FROM query_table('g1.users')",
    "SELECT * FROM seq_scan('users')",
    "SELECT * FROM json_execute_serialized_sql('{}')",
    "SELECT json_serialize_plan('SELECT 1')",
    "SELECT current_setting('memory_limit')",
    "SELECT getvariable('x')",
    "SELECT nextval('x')",
    "SELECT setseed(0.5)",
    "SELECT error('x')",
    "SELECT main.repeat('x', 2000000000)",
    "SELECT 'x'.repeat(2000000000)",
    "SELECT system.main.repeat('x', 2000000000)",
    "SELECT \"RePeAt\"('x', 2000000000)",
    "SELECT max(repeat('x', 2000000000)) OVER () FROM users",
    "SELECT count(*) FILTER (WHERE repeat('x', 2000000000) = '') FROM users",
    "SELECT count(*) FROM users GROUP BY repeat('x', 2000000000)",
    "SELECT 1 FROM users ORDER BY repeat('x', 2000000000)",
    "SELECT 1 FROM users LIMIT len(repeat('x', 2000000000))",
    "SELECT 1 FROM users HAVING repeat('x', 2000000000) = ''",
    "SELECT 1 FROM users u JOIN users x ON repeat(u.name, 2000000000) = x.name",
    "SELECT * REPLACE (repeat(name, 2000000000) AS name) FROM users",
    "SELECT CASE WHEN true THEN repeat('x', 2000000000) END",
    "SELECT (SELECT repeat('x', 2000000000))",
    "SELECT * FROM (VALUES (repeat('x', 2000000000)))",
    "SELECT 1 UNION SELECT length(repeat('x', 2000000000))",
    "WITH a AS (SELECT repeat('x', 2000000000)) SELECT 1 FROM a",
    "WITH RECURSIVE a AS (SELECT 'x' AS s UNION ALL SELECT repeat(s, 2000) FROM a) SELECT * FROM a",
    "DESCRIBE SELECT repeat('x', 2000000000)",
    "SUMMARIZE SELECT repeat('x', 2000000000)",
    "SELECT string_agg(name, ',' ORDER BY repeat(name, 2000000000)) FROM users",
    "SELECT {'a': repeat('x', 2000000000)}",
    "SELECT name[len(repeat('x', 2000000000))] FROM users",
    "SELECT sum(age) OVER (ROWS BETWEEN length(repeat('x', 2000000000)) PRECEDING AND CURRENT ROW) FROM users",
]


@pytest.mark.parametrize("text", FUNCTIONS)
def test_a_function_off_the_list_is_refused_by_name(served: Store, text: str) -> None:
    error = refusal(served, text)
    assert error.code == "bad_sql"
    assert "is not available here" in error.problem
    assert error.cure


FORBIDDEN = {
    "INSERT INTO users VALUES (1)": "only one SELECT",
    "DROP TABLE g1.users": "only one SELECT",
    "CREATE TABLE x (i INT)": "only one SELECT",
    "CREATE MACRO f(x) AS x": "only one SELECT",
    "COPY users TO '/tmp/x'": "only one SELECT",
    "ATTACH '/tmp/x'": "only one SELECT",
    "SET memory_limit = '100GB'": "only one SELECT",
    "PRAGMA database_size": "only one SELECT",
    "CALL checkpoint()": "only one SELECT",
    "CHECKPOINT": "only one SELECT",
    "EXPLAIN ANALYZE SELECT 1": "only one SELECT",
    "COMMIT": "only one SELECT",
    "SELECT 1; DROP VIEW users": "only one SELECT",
    "SELECT 1; SELECT 2": "only one SELECT",
    "PIVOT users ON active USING sum(age)": "only one SELECT",
    "": "only one SELECT",
    ";": "only one SELECT",
    "SELEC 1": "syntax error",
    "SELECT 'x": "unterminated",
    "SELECT \ud800": "not valid text",
    "SELECT nothing FROM users": "nothing",
    "SELECT age + name + ts FROM users": "",
    "SELECT ?": "PARAMETER is not available here",
    "SELECT $a": "PARAMETER is not available here",
    "SELECT name COLLATE nocase FROM users": "COLLATE is not available here",
    "SELECT * FROM users AT (VERSION => 1)": "AT is not available here",
    "FROM users UNPIVOT (v FOR k IN (age))": "PIVOT is not available here",
    "SHOW ALL TABLES": "this SHOW is not available here",
    "SHOW DATABASES": "this SHOW is not available here",
    "SHOW TABLES FROM g1": "",
    "SELECT NULL::INTEGER[100000][100000] FROM users": "the type array is not available here",
    "SELECT mad(age) OVER (ORDER BY ts) FROM big": "the function mad with OVER is not available here",
    "SELECT list(name) OVER (ORDER BY ts) FROM big": "the function list with OVER is not available here",
    "WITH a AS NOT MATERIALIZED (SELECT 1) SELECT * FROM a, a AS b": "NOT MATERIALIZED is not available here",
    "SELECT * FROM g1.users": "the schema g1 is not available here",
    "SELECT g1.users.age FROM g1.users": "the schema g1 is not available here",
    "SELECT * FROM livetables.generations": "the schema livetables is not available here",
    "SELECT * FROM store.main.users": "the schema store.main is not available here",
    "SELECT * FROM information_schema.tables": "the schema information_schema is not available here",
    "SELECT * FROM pg_catalog.pg_class": "the schema pg_catalog is not available here",
    "DESCRIBE g1.users": "the schema g1 is not available here",
    "SELECT regexp_matches(name, name) FROM users": "needs a constant pattern",
    "SELECT name ~ lower('A') FROM users": "needs a constant pattern",
    f"SELECT name ~ '{'a?' * 150}' FROM users": "needs a constant pattern",
    "SELECT name ~ '(a?a?){50}' FROM users": "a pattern that repeats too much",
    "SELECT name ~ 'a{0,60}b{50}' FROM users": "a pattern that repeats too much",
    "SELECT regexp_replace(name, '', 'xxxx', 'g') FROM users": "regexp_replace can only remove here",
    "SELECT replace(name, 'a', 'aaaa') FROM users": "replace can only put in a constant",
    "SELECT replace(name, '', 'a') FROM users": "replace can only put in a constant",
    "SELECT replace(name, name, name) FROM users": "replace can only put in a constant",
}
UNKNOWN_TABLES = [
    "SELECT * FROM userz",
    "SELECT * FROM duckdb_tables",
    "SELECT * FROM sqlite_master",
    "SELECT * FROM pg_class",
    "SELECT * FROM main.duckdb_views",
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM 'https://example.com/x.parquet'",
    "SELECT * FROM served",
    "SHOW memory_limit",
    "DESCRIBE duckdb_tables",
    # a name of WITH is known only where it can be seen
    "SELECT * FROM (WITH duckdb_tables AS (SELECT 1) SELECT 1), duckdb_tables",
    "WITH a AS (SELECT * FROM duckdb_tables), duckdb_tables AS (SELECT 1) SELECT * FROM a",
    "WITH duckdb_tables AS (SELECT * FROM duckdb_tables) SELECT * FROM duckdb_tables",
    "WITH duckdb_tables AS (SELECT 1) SELECT * FROM main.duckdb_tables",
]
TOO_LARGE = {
    "text": "SELECT 1 --" + "x" * 10_000,
    "literal": f"SELECT '{'x' * 1_001}'",
    "tables": "SELECT 1 FROM " + ", ".join(f"users u{number}" for number in range(100)),
    "unions": "SELECT 1" + " UNION ALL SELECT 1" * 100,
    "columns": "SELECT " + ", ".join(["*"] * 200) + " FROM users",
}
DEEP = {
    "parentheses": "SELECT " + "(" * 4_000 + "1" + ")" * 4_000,
    "signs": "SELECT " + "- " * 4_500 + "1",
    "not": "SELECT " + "NOT " * 2_000 + "true",
    "sums": "SELECT 1" + "+1" * 4_500,
    "lists": "SELECT " + "[" * 4_000 + "]" * 4_000,
    "cases": "SELECT " + "CASE WHEN " * 400 + "true" + " THEN true END" * 400,
    "subqueries": "SELECT " + "(SELECT " * 900 + "1" + ")" * 900,
    "tables": "SELECT * FROM " + "(FROM " * 1_000 + "users" + ")" * 1_000,
    "functions": "SELECT " + "lower(" * 900 + "'x'" + ")" * 900,
}


@pytest.mark.parametrize(("text", "problem"), FORBIDDEN.items())
def test_what_is_not_allowed_is_an_error_with_its_cure(served: Store, text: str, problem: str) -> None:
    error = refusal(served, text)
    assert error.code == "bad_sql"
    assert problem in error.problem
    assert error.cure


@pytest.mark.parametrize("text", UNKNOWN_TABLES)
def test_what_is_no_stable_name_is_an_unknown_table(served: Store, text: str) -> None:
    error = refusal(served, text)
    assert error.code == "unknown_table"
    assert error.cure


@pytest.mark.parametrize("text", TOO_LARGE.values(), ids=TOO_LARGE)
def test_what_is_too_large_is_an_error_with_its_limit(served: Store, text: str) -> None:
    error = refusal(served, text)
    assert (error.code, "at most" in error.cure) == ("limit", True)


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
def test_deep_nesting_ends_in_an_answer_or_an_error(served: Store, text: str) -> None:
    with contextlib.suppress(RequestError):
        answer(served, text, 2)
    assert answer(served, "SELECT count(*) FROM big") == [(ROWS,)]


def test_a_mistake_is_an_error_of_one_line(served: Store) -> None:
    error = refusal(served, "SELECT nme FROM users")
    assert "nme" in error.problem
    assert "\n" not in error.problem


# Limits

SLOW = {
    "cross join": "SELECT count(*) FROM big a, big b, big c WHERE (a._id * b._id + c._id) % 7 = 3",
    "recursion": "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r",
    "correlated": "SELECT sum((SELECT count(*) FROM big b WHERE b.age * a._id < a.age * b._id)) FROM big a",
    "streamed": "SELECT a.name FROM big a, big b, big c",
}
HUNGRY = {
    "sort": "SELECT a.name || b.name AS n, a.ts FROM big a, big b ORDER BY n DESC, a.ts",
    "groups": "SELECT a._id, b._id, count(*) FROM big a, big b GROUP BY ALL",
    "list": "SELECT list(a.name || b.name) FROM big a, big b",
    "text": "SELECT string_agg(a.name, '') FROM big a, big b",
    "doubling": "WITH a0 AS (SELECT name AS s FROM big)"
    + "".join(f", a{n + 1} AS (SELECT s || s || s || s AS s FROM a{n})" for n in range(12))
    + " SELECT max(length(s)) FROM a12",
    "recursion": "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r, big) SELECT count(*) FROM r",
    "window": "SELECT sum(a.age) OVER (PARTITION BY a.age ORDER BY b.ts) FROM big a, big b",
}


# What is made inside of an expression, for 2,048 rows at a time, is counted by nobody: the first took 2 GB.
HOT = {
    "texts": f"SELECT max(length({'||'.join(['name'] * 300)})) FROM big",
    "texts in texts": f"SELECT max(length({'concat(name, ' * 190}'x'{')' * 190})) FROM big",
    "texts of texts": "SELECT max(length(s)) FROM ("
    + "SELECT s||s||s||s AS s FROM (" * 9
    + "SELECT name AS s FROM big"
    + ")" * 10,
    "aliases": "SELECT name||name||name AS a"
    + "".join(f", {n}||{n}||{n} AS {n}a" for n in ("a" * length for length in range(1, 9)))
    + " FROM big",
    "lists": f"SELECT max(len({'list_sort(' * 190}[{','.join(['name'] * 40)}]{')' * 190})) FROM big",
    "parts": "SELECT array_to_string(string_split("
    f"array_to_string(string_split(name, ''), '{'x' * 999}'), ''), 'xx') FROM big",
    "by WITH": "WITH a AS (SELECT name||name||name||name AS s FROM big)"
    + "".join(f", a{n}a AS (SELECT s||s||s||s AS s FROM {'a' if n == 0 else f'a{n - 1}a'})" for n in range(8))
    + " SELECT max(length(s)) FROM a7a",
    "of many rows": "SELECT length(s||s||s||s||s||s) FROM (SELECT string_agg(name, '') AS s FROM big)",
}


@pytest.mark.parametrize("text", HOT.values(), ids=HOT)
def test_what_makes_too_much_of_each_row_is_refused(served: Store, text: str) -> None:
    before = resident_megabytes()
    error = refusal(served, text)
    assert error.code == "limit"
    assert "too large" in error.problem
    assert resident_megabytes() - before < MEMORY_MEGABYTES


@pytest.mark.parametrize("text", SLOW.values(), ids=SLOW)
def test_a_slow_query_ends_in_time(served: Store, text: str) -> None:
    started = time.monotonic()
    error = refusal(served, text, 0.3)
    assert error.code == "timeout"
    assert error.problem == "the query took longer than 0.3 s"
    assert time.monotonic() - started < 30, "left alone, it would take hours"


def test_a_query_interrupted_between_two_chunks_is_a_timeout(served: Store) -> None:
    with served.reader.sql("SELECT a.name FROM big a, big b", 0.2) as reader:
        reader.read_next_batch()
        threading.Event().wait(0.5)
        with pytest.raises(RequestError) as caught:
            reader.read_all()
    assert caught.value.code == "timeout"


@pytest.mark.parametrize("text", HUNGRY.values(), ids=HUNGRY)
def test_a_hungry_query_ends_and_the_tables_go_on(served: Store, text: str) -> None:
    before = resident_megabytes()
    peak = [before]
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.01):
            peak[0] = max(peak[0], resident_megabytes())

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        error = refusal(served, text, 1)
    finally:
        ended.set()
        watching.join()
    assert error.code in ("limit", "timeout")
    assert peak[0] - before < 3 * MEMORY_MEGABYTES
    last = served.generations()["g1"].last_batch_id
    assert last is not None
    assert served.put(batch("g1", last + 1, {USERS: (numbered(1_000 + last, 1), [])}))


def test_a_batch_and_a_window_go_before_a_hungry_query(served: Store) -> None:
    outcomes: list[RequestError] = []

    def hunger() -> None:
        with pytest.raises(RequestError) as caught:
            answer(served, HUNGRY["groups"], 2)
        outcomes.append(caught.value)

    hungry = [threading.Thread(target=hunger) for _ in range(2)]
    for each in hungry:
        each.start()
    while any(each.is_alive() for each in hungry):
        last = served.generations()["g1"].last_batch_id
        assert last is not None
        served.put(batch("g1", last + 1, {USERS: (numbered(2_000 + last, 50), [])}))
        assert served.reader.window("big", ViewOptions(quick="user 19"))[1].total > 0
    for each in hungry:
        each.join()
    assert {error.code for error in outcomes} <= {"limit", "busy", "timeout"}


def test_only_so_many_queries_run_at_once(served: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "SQL_WAIT_SECONDS", 0.1)
    with served.reader.sql("SELECT 1"), served.reader.sql("SELECT 2"):
        error = refusal(served, "SELECT 3")
        assert (error.code, error.cure) == ("busy", "send it again later")
    assert answer(served, "SELECT 3") == [(3,)]


def test_a_refused_query_frees_its_place(served: Store) -> None:
    for _ in range(10):
        refusal(served, "SELECT repeat('x', 9)")
        refusal(served, "SELECT nothing FROM users")
    assert answer(served, "SELECT 1") == [(1,)]


def test_an_answer_is_of_one_moment(served: Store) -> None:
    with served.reader.sql("SELECT _id FROM users") as reader:
        last = served.generations()["g1"].last_batch_id
        assert last is not None
        before = served.reader.row_counts()["g1"]["users"]
        served.put(batch("g1", last + 1, {USERS: (numbered(5_000 + last, 3), [])}))
        assert reader.read_all().num_rows == before


def test_a_query_left_unread_holds_nothing(served: Store) -> None:
    for _ in range(5):
        with served.reader.sql("SELECT a.name FROM big a, big b") as reader:
            reader.read_next_batch()
    assert answer(served, "SELECT count(*) FROM big") == [(ROWS,)]


# What is refused before it is parsed

DEEP = {
    "parentheses": "SELECT " + "(" * 3000 + "1" + ")" * 3000,
    "one too many": "SELECT " + "(" * 201 + "1" + ")" * 201,
    "not closed": "SELECT " + "(" * 201,
    "brackets": "SELECT " + "[" * 201 + "1" + "]" * 201,
    "braces": "SELECT " + "{a:" * 201 + "1" + "}" * 201,
    "signs": "SELECT " + "- " * 201,
    "signs around others": "SELECT " + "- ~ + @ " * 101 + "1",
    "signs before parentheses": "SELECT " + "- -(" * 70 + "1" + ")" * 70,
    "functions": "SELECT " + "abs(" * 201 + "1" + ")" * 201,
    "closed in texts only": "SELECT " + "(')' || " * 201 + "''" + ")" * 201,
    "closed in names only": "SELECT " + '(")" + ' * 201 + "1" + ")" * 201,
    "closed in texts with a backslash": "SELECT " + "(E'\\')' || " * 201 + "''" + ")" * 201,
    "closed in texts between dollars": "SELECT " + "($$)$$ || " * 201 + "''" + ")" * 201,
    "closed in comments": "SELECT " + "( /* ) */ " * 201 + "1" + ")" * 201,
    "closed at the ends of lines": "SELECT " + "( -- )\n" * 201 + "1" + ")" * 201,
    "unusual spaces": "SELECT " + "-\u200b" * 201 + "1",
}


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP.keys())
def test_what_nests_too_deeply_is_refused_before_it_is_parsed(text: str) -> None:
    with pytest.raises(RequestError, match="too many parentheses or signs") as refused:
        sql.check_size(text)
    assert refused.value.code == "limit"


SHALLOW = [
    "SELECT " + "(" * 190 + "1" + ")" * 190,
    "SELECT " + ", ".join(["(1)"] * 400),
    "SELECT 1" + " - 1" * 250,
    "SELECT " + ", ".join(["-1"] * 400),
    f"SELECT '{'(' * 900}'",
    "SELECT 1 -- (one)\n + 2 /* (two) */",
]


@pytest.mark.parametrize("text", SHALLOW)
def test_what_is_long_but_not_deep_is_answered(served: Store, text: str) -> None:
    assert len(answer(served, text)) == 1
