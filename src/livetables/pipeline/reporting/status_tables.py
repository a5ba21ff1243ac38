"""The status tables on the server: rows are set here, and sent together."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from livetables.model.change import Batch
from livetables.model.errors import SinkError
from livetables.model.spec import GenerationSpec
from livetables.pipeline.reporting import status
from livetables.pipeline.reporting.status import Row, StatusTable
from livetables.pipeline.table_server import ConnectionClosedError, NoAnswerError, StatusTablesOnServer

KEYS: dict[StatusTable, str] = {
    "orchestrator_status": "_id",
    "control_raw": "_id",
    "generations": "generation",
    "kafka_topics": "topic",
}


class StatusTables:
    """The tables as they should be, to which the server's are changed. One thread uses it.

    A batch without an answer is sent again unchanged: the server may have it. A server that has lost the tables gets
    all of them again.
    """

    def __init__(self, server: StatusTablesOnServer, spec: GenerationSpec) -> None:
        self.spec = spec
        self._server = server
        self._shapes = status.shapes(spec)
        self._name = status.name_for(self._shapes)
        self._rows: dict[StatusTable, dict[Any, Row]] = {table: {} for table in KEYS}
        self._changed: dict[StatusTable, dict[Any, None]] = {table: {} for table in KEYS}  # keys, in order
        self._unsent: Batch | None = None
        self._next_batch_id = 0
        self._is_open = False

    def load(self) -> None:
        """Load the rows that the server has, also those of a configuration with other tables."""
        for table, key in KEYS.items():
            known = self._server.table(table)
            for row in [] if known is None else known.to_pylist():
                self._rows[table][row[key]] = row

    def rows(self, table: StatusTable) -> list[Row]:
        return list(self._rows[table].values())

    def row(self, table: StatusTable, key: Any) -> Row | None:
        return self._rows[table].get(key)

    def set(self, table: StatusTable, row: Row) -> None:
        """Set the row with its key; columns that it does not name keep their values."""
        key = row[KEYS[table]]
        before = self._rows[table].get(key)
        after = {**(before or {}), **row}
        if after != before:
            self._rows[table][key] = after
            self._changed[table][key] = None

    def keep_only(self, table: StatusTable, keys: Collection[Any]) -> None:
        """Remove rows with other keys."""
        for key in self._rows[table].keys() - set(keys):
            del self._rows[table][key]
            self._changed[table][key] = None

    def flush(self) -> None:
        """Send all changes in one batch. After a SinkError, they are sent the next time."""
        try:
            self._open()
            while self._unsent is not None or any(self._changed.values()):
                self._unsent = self._unsent or self._taken()
                self._server.put(self._unsent)
                self._unsent = None
                self._next_batch_id += 1
        except (NoAnswerError, ConnectionClosedError):
            raise
        except SinkError:
            self._is_open = False  # refused: the server has lost the tables, or has those of another pipeline
            raise

    def _open(self) -> None:
        if self._is_open:
            return
        self._server.begin(self._name, self._shapes)
        stored = self._server.generations()
        last = next(each.last_batch_id for each in stored if each.name == self._name)
        self._next_batch_id = 0 if last is None else last + 1
        self._unsent = None
        self._changed = {table: {**dict.fromkeys(rows), **self._changed[table]} for table, rows in self._rows.items()}
        self._server.put(self._taken())
        self._next_batch_id += 1
        self._server.publish(self._name)
        for other in stored:
            if other.name.startswith("status-") and other.name != self._name:
                self._server.drop(other.name)
        self._is_open = True

    def _taken(self) -> Batch:
        changed: dict[str, list[Row]] = {}
        gone: dict[str, list[Any]] = {}
        for table, keys in self._changed.items():
            rows = self._rows[table]
            changed[table] = [rows[key] for key in keys if key in rows]
            gone[table] = [key for key in keys if key not in rows]
        self._changed = {table: {} for table in KEYS}
        return status.batch(self._name, self._next_batch_id, self._shapes, changed, gone)
