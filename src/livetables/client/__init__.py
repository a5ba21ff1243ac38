"""The Python client: tables of a livetables server as Arrow, pandas or polars, and their changes as they happen.

    >>> import livetables
    >>> server = livetables.connect(url, token)  # like "http://127.0.0.1:8765", "the key"
    >>> server.table("final_ui").to_arrow(["_id", "name"]).num_rows
    2

It needs pyarrow, and nothing of what the server and the pipeline need.
"""

from livetables.client.changes import Change, Changes
from livetables.client.clock import Clock
from livetables.client.connection import Connection, TableSummary, connect
from livetables.client.control import Outcome
from livetables.client.latency import Latency, Receipt
from livetables.client.table import Table
from livetables.model.wire import Place

__all__ = [
    "Change",
    "Changes",
    "Clock",
    "Connection",
    "Latency",
    "Outcome",
    "Place",
    "Receipt",
    "Table",
    "TableSummary",
    "connect",
]
