"""The process in which SQL is checked and planned before the server runs it: it may be killed, the server may not.

DuckDB can be stopped neither while it parses nor while it plans, and counts none of the memory that this takes: a few
hundred characters are enough for hours and gigabytes. So it is tried here first, over tables that are made like the
server's, with a limit of processor time and one of memory. A statement that exceeds one of them ends this process.

Lines of JSON come in and go out: a `Setup` first, which is answered by an empty `Answer`, and then one `Question` after
another. The process ends when its input does.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, TypedDict

import duckdb

from livetables.model.errors import ErrorCode, RequestError
from livetables.server.storage.sql import check_sql, is_shortage, wrong_query

try:
    import resource
except ModuleNotFoundError:  # Windows, which has no such limits
    resource = None  # type: ignore[assignment]

PROCESSOR_SECONDS_MAX = 1.0  # on a machine that is busy it may take longer
MEMORY_BYTES_MAX = 128 * 1024**2  # beside what the process has at its start
PAGE_BYTES = mmap.PAGESIZE
COLUMNS_MAX = 500
RECURSION_MAX = 20_000  # 10,000 characters can nest deeper than Python follows otherwise
WARM_UP = "SELECT count(*) FROM (SHOW TABLES)"


class Setup(TypedDict):
    """The tables that there are, and how to make them."""

    tables: Sequence[str]
    statements: Sequence[str]


class Question(TypedDict):
    """A statement of somebody from whom some tables are hidden."""

    text: str
    hidden: Sequence[str]


class Problem(TypedDict):
    """The parts of a RequestError."""

    code: ErrorCode
    problem: str
    cure: str


class Answer(TypedDict):
    """Why a statement is not to be run, if it is not; and whether this process is no good for another one."""

    problem: Problem | None
    is_last: bool
    trace: str | None  # of a mistake of ours


def main() -> None:
    sys.setrecursionlimit(RECURSION_MAX)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    questions = iter(sys.stdin)
    setup: Setup = json.loads(next(questions))
    connection = _database(setup)
    _plan(connection, WARM_UP)
    memory = _size()
    _limit_memory(memory)
    # What dies here says so by its end; what it prints on its way is of no use in the server's log.
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, sys.stdout.fileno())
    os.dup2(silence, sys.stderr.fileno())
    _send(answers, Answer(problem=None, is_last=False, trace=None))
    for line in questions:
        question: Question = json.loads(line)
        is_broken = False
        problem: Problem | None = None
        trace: str | None = None
        try:
            with _limited_time():
                check_sql(connection, question["text"], setup["tables"], question["hidden"])
                _plan(connection, question["text"])
        except RequestError as error:
            problem = Problem(code=error.code, problem=error.problem, cure=error.cure)
            is_broken = isinstance(error.__context__, duckdb.FatalException | duckdb.InternalException)
        except MemoryError:
            break
        except Exception:
            trace = traceback.format_exc()
        # Memory that stays with the allocator is missing for the next statement.
        is_last = is_broken or _size() > memory + MEMORY_BYTES_MAX // 4
        _send(answers, Answer(problem=problem, is_last=is_last, trace=trace))
    os._exit(0)


def _send(answers: TextIO, answer: Answer) -> None:
    print(json.dumps(answer), file=answers, flush=True)


def _plan(connection: duckdb.DuckDBPyConnection, text: str) -> None:
    """Do with a statement what the server does, up to where its rows are read."""
    try:
        relation = connection.sql(text)
        if len(relation.columns) > COLUMNS_MAX:
            raise RequestError("limit", "the answer has too many columns", f"select at most {COLUMNS_MAX}")
        relation.explain()
    except duckdb.Error as error:
        if is_shortage(error):
            raise MemoryError from None
        raise wrong_query(error) from None


def _database(setup: Setup) -> duckdb.DuckDBPyConnection:
    """A database in memory, closed as the server's is."""
    connection = duckdb.connect(
        config={
            "threads": 1,
            "async_threads": 0,  # each takes 64 MB of addresses when it first runs, which may be after the limit is set
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
    )
    connection.execute("SET GLOBAL enable_external_access = false")
    connection.execute("SET GLOBAL TimeZone = 'UTC'")
    connection.execute("SET GLOBAL python_enable_replacements = false")
    for statement in setup["statements"]:
        connection.execute(statement)
    connection.execute("SET GLOBAL lock_configuration = true")
    return connection


def _size() -> int:
    """The memory that this process has asked the system for; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * PAGE_BYTES
    except OSError:
        return 0


def _limit_memory(size: int) -> None:
    """Let this process have only so much more memory than it has, and leave no file of it behind."""
    if resource is None:
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if size:
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY_BYTES_MAX, size + MEMORY_BYTES_MAX))


@contextmanager
def _limited_time() -> Iterator[None]:
    """Be killed by the system, in whatever this process is then, when its time is up."""
    timer: Any = getattr(signal, "setitimer", None)  # Windows has none: there the server's patience decides
    if timer is None:
        yield
        return
    timer(signal.ITIMER_PROF, PROCESSOR_SECONDS_MAX)
    try:
        yield
    finally:
        timer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    main()
