"""A table of the server under its stable name. Every question is answered by what has that name at the time."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from livetables.client.changes import Changes
from livetables.client.clock import Clock
from livetables.client.flight import Flight
from livetables.client.html import table_html
from livetables.client.http import HttpClient
from livetables.model.columns import COLUMN_KINDS
from livetables.model.errors import SetupError
from livetables.model.wire import Place

HEAD_ROWS = 10

Filter = tuple[Any, ...]  # (column, operator) or (column, operator, value)


class Table:
    """A live table.

    >>> accounts = server.table("accounts_ui")
    >>> accounts.columns
    ('_id', 'userId', 'accountType', 'balance', 'ts')
    >>> accounts.count()
    4
    """

    def __init__(
        self,
        name: str,
        http_client: HttpClient,
        flight: Callable[[], Flight],
        clock: Callable[[], Clock],
        follow: Callable[[Changes], Changes],
    ) -> None:
        self.name = name
        self._http_client = http_client
        self._flight = flight
        self._clock = clock
        self._follow = follow

    @property
    def schema(self) -> pa.Schema:
        """The columns with their Arrow types."""
        return self._flight().schema(self.name)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.schema.names)

    @property
    def generation(self) -> str:
        """The generation that has the table's name now."""
        return str(self._counted()["generation"])

    def count(self) -> int:
        """The number of rows."""
        return int(self._counted()["total"])

    def to_arrow(
        self,
        columns: Sequence[str] | None = None,
        sort: str | Sequence[str] = (),
        filters: Iterable[Filter] = (),
        quick: str = "",
    ) -> pa.Table:
        """All rows, as they are at one time; the server chooses and sorts them.

        `sort` is one column or several, each perhaps with `:desc`; `filters` are (column, operator, value), and all
        must pass: `equals`, `<`, `>`, `between` and `in` (a list), `contains` and `starts_with` (text), and `is_null`
        (no value). `quick` is text to be found in any column.

        >>> rich = accounts.to_arrow(["userId", "balance"], sort="balance:desc", filters=[("balance", ">", 100)])
        >>> rich.to_pylist()
        [{'userId': 'u2', 'balance': 2500.0}, {'userId': 'u1', 'balance': 120.5}]
        """
        return self._flight().rows({"table": self.name, **_selection(columns, sort, filters, quick)})

    def to_pandas(
        self,
        columns: Sequence[str] | None = None,
        sort: str | Sequence[str] = (),
        filters: Iterable[Filter] = (),
        quick: str = "",
    ) -> Any:
        """The same as a pandas DataFrame. Integers and booleans stay what they are where a value is missing.

        >>> accounts.to_pandas(columns=["userId", "balance"], sort="balance").iloc[0]["userId"]
        'u3'
        """
        pandas = _needed("pandas")
        kinds = {kind.arrow: getattr(pandas, kind.pandas)() for kind in COLUMN_KINDS.values() if kind.pandas}
        return self.to_arrow(columns, sort, filters, quick).to_pandas(types_mapper=kinds.get)

    def to_polars(
        self,
        columns: Sequence[str] | None = None,
        sort: str | Sequence[str] = (),
        filters: Iterable[Filter] = (),
        quick: str = "",
    ) -> Any:
        """The same as a polars DataFrame."""
        return _needed("polars").from_arrow(self.to_arrow(columns, sort, filters, quick))

    def head(self, n: int = HEAD_ROWS) -> pa.Table:
        """The first rows, in order of arrival, at most 10,000.

        >>> accounts.head(2)["accountType"].to_pylist()
        ['savings', 'checking']
        """
        return self._flight().rows({"table": self.name, "offset": 0, "size": n})

    def tail(self, n: int = HEAD_ROWS) -> pa.Table:
        """The last rows, in order of arrival, at most 10,000.

        >>> accounts.tail(1)["userId"].to_pylist()
        ['u3']
        """
        return self._flight().rows({"table": self.name, "offset": max(0, self.count() - n), "size": n})

    def sql(self, text: str) -> pa.Table:
        """The same as the connection's: the query names its tables itself, this one too.

        >>> accounts.sql("SELECT sum(balance) AS total FROM accounts_ui").to_pylist()
        [{'total': 2660.5}]
        """
        return self._flight().rows({"sql": text})

    def changes(self, since: tuple[Any, ...] | None = None, snapshot: bool = True) -> Changes:
        """Follow the table: first all of it, then every change, until it is closed.

        `since` is the place of an earlier change, to go on from there. Without it and with `snapshot=False` only
        changes from now on come. A whole table comes later too: after a swap, or when the server does not hold all
        changes since the place any more.

        >>> with accounts.changes() as changes:
        ...     first = next(changes)
        >>> first.is_snapshot, first.upserts.num_rows
        (True, 4)
        >>> from_then_on = accounts.changes(since=first.place)
        """
        place = None if since is None else Place(*since)
        return self._follow(Changes(self._flight(), self.name, place, snapshot, self._clock()))

    def __repr__(self) -> str:
        return f"<table {self.name} at {self._http_client.url}>"

    def _repr_html_(self) -> str:
        return table_html(self.name, self.count(), self.head())

    def _counted(self) -> dict[str, Any]:
        answer: dict[str, Any] = self._http_client.get(f"/api/tables/{self.name}/rows", {"limit": "0"})
        return answer


def _selection(
    columns: Sequence[str] | None, sort: str | Sequence[str], filters: Iterable[Filter], quick: str
) -> dict[str, Any]:
    return {
        "columns": None if columns is None else list(columns),
        "sort": [_sort(text) for text in ([sort] if isinstance(sort, str) else sort)],
        "filters": [_filter(*each) for each in filters],
        "quick": quick,
    }


def _sort(text: str) -> dict[str, Any]:
    column, _, direction = text.partition(":")
    if direction not in ("", "asc", "desc"):
        raise ValueError(f"{text!r} is not a sort order: write column, column:asc or column:desc")
    return {"column": column, "descending": direction == "desc"}


def _filter(column: str, operator: str, value: Any = None) -> dict[str, Any]:
    values = [_json(each) for each in value] if isinstance(value, list | tuple | set) else _json(value)
    return {"column": column, "op": operator, "value": values}


def _json(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def _needed(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError:
        raise SetupError(f"{package} is not installed here", f"pip install {package}") from None
