"""The DuckDB database of the store: its settings, snapshots for readers, transactions for the one that writes.

One thread writes at a time; any number read, each on a cursor of its own, and neither waits for the other. All share
one limit of memory: when there is none left for a batch or a viewport, the clients' SQL has to go.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import duckdb

from livetables.model.errors import DamagedError, RequestError, SetupError, StoreError
from livetables.server.storage.query import Running
from livetables.server.storage.sql import first_line

LAYOUT_VERSION = 2
# Its log is written to the tables at a checkpoint: with DuckDB's 16 MB, for every batch of a backlog, which doubles its
# cost. After a kill, 160 MB of it took 0.7 s to be read again (measured).
CHECKPOINT_THRESHOLD = "256MB"
# How DuckDB's errors begin for files that it cannot read whatever is tried. A lock, a full disk or a newer version have
# other texts, and so does every error that has a client's own words in it.
UNREADABLE = (
    r'(?:IO Error: )?(?:Failure while replaying WAL file "[^"]*": )?'
    r'(?:Corrupt (?:database|WAL) file|Could not read enough bytes from file "[^"]*(?<!\.tmp)")'
)
DAMAGE = re.compile(
    rf'{UNREADABLE}|Serialization Error|FATAL Error: .*original error: "{UNREADABLE}', re.DOTALL | re.IGNORECASE
)

Answer = TypeVar("Answer")


class Database:
    """A DuckDB database in a file, or in memory when no path is given.

    `writing` is held by the thread that writes, on the cursor `writer`; `queries` are those of clients that run now.
    """

    def __init__(self, path: Path | None, memory_megabytes: int) -> None:
        self.path = path
        self.writing = threading.RLock()
        self.queries: set[Running] = set()
        self._idle: deque[duckdb.DuckDBPyConnection] = deque()
        self._is_closed = False
        self._damage: Exception | None = None  # the error that showed that the files are damaged
        self._database = _open(path, memory_megabytes)
        self.writer = self._database.cursor()

    def prepare(self) -> None:
        """Create the tables for what the server must know after a crash; refuse those of another version."""
        run = self.writer.execute
        run("CREATE SCHEMA IF NOT EXISTS livetables")
        run("CREATE TABLE IF NOT EXISTS livetables.layout (version BIGINT)")
        # A generation's facts are one value: each statement of a small transaction counts.
        run(
            "CREATE TABLE IF NOT EXISTS livetables.generations "
            "(name VARCHAR, begun TIMESTAMPTZ, published TIMESTAMPTZ, sequence BIGINT, facts BLOB)"
        )
        run("CREATE TABLE IF NOT EXISTS livetables.tables (generation VARCHAR, name VARCHAR, shape BLOB)")
        run("CREATE TABLE IF NOT EXISTS livetables.pipeline (number BIGINT)")
        versions = [version for (version,) in run("SELECT version FROM livetables.layout").fetchall()]
        if versions not in ([], [LAYOUT_VERSION]):
            raise SetupError(f"its layout is {versions}, not {LAYOUT_VERSION}", "use the version that wrote it")
        if not versions:
            run("INSERT INTO livetables.pipeline VALUES (0)")
            run("INSERT INTO livetables.layout VALUES (?)", [LAYOUT_VERSION])

    def close(self) -> None:
        """Close the file. Readers that are under way finish first, as far as they hold it."""
        with self.writing:
            self._is_closed = True
            self.writer.close()
            while self._idle:
                self._idle.pop().close()
            self._database.close()

    def check(self) -> None:
        """Read from the database; a StoreError means that this fails until the server is started again.

        A DamagedError means that it fails then too: its files are damaged.
        """
        if self._damage is not None:
            raise _damaged(self.path, self._damage)
        try:
            with self.snapshot() as cursor:
                cursor.execute("SELECT count(*) FROM livetables.generations").fetchall()
        except duckdb.FatalException as error:
            if DAMAGE.match(str(error)):
                raise _damaged(self.path, error) from None
            lines = " ".join(str(error).splitlines()[:2])  # the second line has the original error
            raise StoreError(
                f"the store {self.path or ':memory:'} has failed: {lines}",
                "make room if its disk is full; what was stored is there when the server is started again",
            ) from None

    def unreadable(self, error: Exception) -> SetupError | DamagedError:
        """The error for a file that opens, but whose contents are not what this version writes."""
        if DAMAGE.match(str(error)):
            return _damaged(self.path, error)
        return SetupError(
            f"the store {self.path} was not written by this version of livetables: {first_line(error)}",
            "set server.store to a new file; the tables are built again from Kafka",
        )

    @contextmanager
    def snapshot(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A cursor on which the database stays as it is now."""
        cursor = self._cursor()
        try:
            cursor.execute("BEGIN TRANSACTION READ ONLY")
            yield cursor
        except Exception as error:
            self._note_damage(error)
            raise
        finally:
            with suppress(duckdb.Error):  # an error may have ended the transaction already
                cursor.rollback()
                self._idle.append(cursor)  # not one with an open result, which a reader left early leaves behind
            if self._is_closed:
                cursor.close()

    @contextmanager
    def transaction(self) -> Iterator[Callable[..., object]]:
        """Commit what the block runs on the writer, or nothing of it. The caller holds `writing`."""
        self.writer.begin()
        try:
            yield self.writer.execute
            self.writer.commit()
        except BaseException as error:
            if isinstance(error, duckdb.Error):
                self._note_damage(error)
            with suppress(duckdb.Error):  # a commit that failed has ended the transaction
                self.writer.rollback()
            raise

    def checkpoint(self) -> None:
        """Free the space of what was dropped, unless somebody reads just now: then the next one does."""
        with suppress(duckdb.TransactionException):
            self.writer.execute("CHECKPOINT")

    def before_queries(self, act: Callable[[], Answer]) -> Answer:
        """Act; where memory runs out, once more, after the clients' SQL has been stopped."""
        try:
            return act()
        except duckdb.OutOfMemoryException:
            running = tuple(self.queries)
            if not running:
                raise
            for each in running:
                each.give_way()
            return act()

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        try:
            return self._idle.pop()
        except IndexError:
            pass
        try:
            return self._database.cursor()
        except duckdb.ConnectionException:
            raise RequestError("unavailable", "the server is stopping", "connect again when it is back") from None

    def _note_damage(self, error: Exception) -> None:
        """Arrow turns DuckDB's errors into its own, so only their text can be compared."""
        if self.path and not isinstance(error, RequestError) and DAMAGE.match(str(error)):
            self._damage = error


def _open(path: Path | None, memory_megabytes: int) -> duckdb.DuckDBPyConnection:
    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": f"{memory_megabytes}MB",
        "temp_directory": f"{path}.tmp" if path else "",  # what does not fit in memory goes beside the file
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "checkpoint_threshold": CHECKPOINT_THRESHOLD,
    }
    in_use = "stop the server that uses it, or set server.store to another file"
    try:
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
        database = duckdb.connect(str(path) if path else ":memory:", config=config)
    except (duckdb.Error, OSError) as error:
        # A file that is not a database may be anybody's, and stays where it is; an empty one has nothing to lose.
        if path and (DAMAGE.match(str(error)) or (path.is_file() and not path.stat().st_size)):
            raise _damaged(path, error) from None
        is_in_use = isinstance(error, duckdb.ConnectionException) or "lock" in str(error)
        cure = in_use if is_in_use else "set server.store to a new file, in a directory that can be written"
        raise SetupError(f"cannot open the store {path}: {first_line(error)}", cure) from None
    ((is_locked,),) = database.execute("SELECT current_setting('lock_configuration')").fetchall()
    if is_locked:  # DuckDB gave us the database that is open in this process already
        database.close()
        raise SetupError(f"cannot open the store {path}: it is open in this process already", in_use)
    database.execute("SET GLOBAL enable_external_access = false")  # not before: it fixes temp_directory
    database.execute("SET GLOBAL TimeZone = 'UTC'")
    database.execute("SET GLOBAL immediate_transaction_mode = true")  # a snapshot is of the time of its BEGIN
    database.execute("SET GLOBAL python_enable_replacements = false")  # or SQL could name our own variables
    database.execute("SET GLOBAL lock_configuration = true")
    return database


def _damaged(path: Path | None, error: Exception) -> DamagedError:
    return DamagedError(
        f"the store {path} is damaged: {first_line(error)}",
        "look after its disk; the files are kept under another name, and the tables are built again from Kafka",
    )
