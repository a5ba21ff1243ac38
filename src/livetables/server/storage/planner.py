"""SQL is checked and planned in a process of its own, `plan_process`, before the server runs it: the server's side.

One process, one statement at a time. It is started when SQL is first asked for, knows the tables that were published
then, and is started again when others are, and after a statement that was its end. It has no key, no secret, no
descriptor of the server's, and ends with it.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress

from livetables.log import Throttle
from livetables.model.columns import kind_of
from livetables.model.errors import ErrorCode, RequestError
from livetables.server.storage.generation import StoredTable
from livetables.server.storage.merge import create_table, create_view
from livetables.server.storage.plan_process import Answer, Question, Setup
from livetables.server.storage.sql import check_size
from livetables.server.viewports.viewport import quoted

PATIENCE_SECONDS = 10.0  # with the process, which stops itself long before unless the machine is busy
TOO_LONG = signal.SIGPROF if hasattr(signal, "SIGPROF") else None  # what ends it when its time is up

log = logging.getLogger(__name__)
throttle = Throttle()


class Planner:
    """Decides whether SQL may be run. Any thread may ask."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._starting = threading.Lock()
        self._process: _PlanProcess | None = None
        self._is_closed = False

    def check(self, text: str, tables: Mapping[str, StoredTable], hidden: Collection[str]) -> None:
        """Raise a RequestError unless a text is allowed over these tables, and is planned quickly and with little."""
        check_size(text)
        if not self._turn.acquire(timeout=PATIENCE_SECONDS):
            raise RequestError("busy", "other queries are still being planned", "send it again later")
        try:
            process = self._process_for(setup_of(tables))
            answer = process.asked(Question(text=text, hidden=sorted(hidden)))
            if answer["is_last"]:
                process.end()
        except _EndedError as error:
            raise self._refusal(error) from None
        finally:
            self._turn.release()
        if answer["trace"]:
            log.error("cannot plan a query: %s", answer["trace"])
            raise RequestError("internal", "the server made a mistake", "see its log, and report it, please")
        if problem := answer["problem"]:
            raise RequestError(**problem)

    def close(self) -> None:
        """Plan no more; who waits for a plan gets none."""
        with self._starting:
            self._is_closed = True
            if self._process:
                self._process.kill()
        with self._turn:  # whoever has it just now gets no answer any more
            if self._process:
                self._process.end()

    def _process_for(self, setup: Setup) -> _PlanProcess:
        """The process that knows these tables; it holds the turn who asks for it."""
        with self._starting:
            if self._is_closed:
                raise _stopping()
            if self._process and (self._process.setup != setup or not self._process.is_running):
                self._process.end()
                self._process = None
            if self._process is None:
                self._process = _PlanProcess(setup)
            process = self._process
        process.wait_until_ready()
        return process

    def _refusal(self, ended: _EndedError) -> RequestError:
        """The error for the statement that a process has ended of."""
        if self._is_closed:
            return _stopping()
        if not ended.was_ready:
            log.error("the process that plans SQL has not started: it ended with code %s", ended.code)
            return RequestError("unavailable", "SQL cannot be planned now", "look into the server's log")
        code: ErrorCode
        code, what = ("timeout", "takes too long") if ended.is_late else ("limit", "takes too much memory")
        throttle.log_event(log, "sql_not_planned", logging.WARNING, why=what)
        cure = "make it simpler: with fewer expressions and subqueries in each other, and fewer conditions"
        return RequestError(code, f"the query {what} to plan", cure)


class _EndedError(Exception):
    """The process has ended instead of answering."""

    def __init__(self, code: int, *, was_ready: bool, is_late: bool) -> None:
        super().__init__(code)
        self.code = code
        self.was_ready = was_ready
        self.is_late = is_late


class _PlanProcess:
    """The process, from its start to its end. One thread at a time asks it; any may end it."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._is_ready = False
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "livetables.server.storage.plan_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},  # and nothing else: no key, no secret
            start_new_session=True,  # Ctrl-C is for the server, which ends it
            text=True,
        )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait_until_ready(self) -> None:
        if not self._is_ready:
            self.asked(self.setup)
            self._is_ready = True

    def asked(self, question: Setup | Question) -> Answer:
        """Its answer, or an _EndedError."""
        assert self._process.stdin
        assert self._process.stdout
        started = time.monotonic()
        clock = threading.Timer(PATIENCE_SECONDS, self.kill)
        clock.name, clock.daemon = "livetables-plan-clock", True
        clock.start()
        line = ""
        try:
            with suppress(OSError):  # it has ended: then there is no answer
                print(json.dumps(question), file=self._process.stdin, flush=True)
                line = self._process.stdout.readline()
        finally:
            clock.cancel()
        if line.endswith("\n"):
            answer: Answer = json.loads(line)
            return answer
        code = self._process.wait()
        is_late = time.monotonic() - started >= PATIENCE_SECONDS or (TOO_LONG is not None and code == -TOO_LONG)
        raise _EndedError(code, was_ready=self._is_ready, is_late=is_late)

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> None:
        self.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe
            with suppress(OSError):
                pipe.close()


def setup_of(tables: Mapping[str, StoredTable]) -> Setup:
    """Tables like these, with hardly a row.

    Not without any: what DuckDB knows of its values lets it leave things out of a plan, and the server's may have any.
    So there is the least and the greatest value of each column, and none.
    """
    stored = {(table.generation, table.shape.name): table for table in tables.values()}
    statements = [f"CREATE SCHEMA {quoted(name)}" for name in sorted({generation for generation, _ in stored})]
    for table in stored.values():
        statements.append(create_table(table.generation, table.shape))
        kinds = [kind_of(field.type) for field in table.shape.schema]
        least, greatest = (", ".join(f"'{kind.bounds[place]}'" for kind in kinds) for place in (0, 1))
        none = ", ".join("NULL" for _ in kinds)
        statements.append(f"INSERT INTO {table.relation} VALUES (0, {least}), (1, {greatest}), (2, {none})")  # noqa: S608
    statements += [create_view(name, table.generation, table.shape) for name, table in tables.items()]
    return Setup(tables=list(tables), statements=statements)


def _stopping() -> RequestError:
    return RequestError("unavailable", "the server is stopping", "connect again when it is back")
