"""The connection by which Spark calls Python for a query: py4j opens one for each of its threads, and closes none."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any

from pyspark import SparkContext


class Callback:
    """Remembers the connection of a query, so that it can be closed when the query has ended."""

    def __init__(self) -> None:
        self._connection: Any = None

    def remember(self) -> None:
        """To be called by the function that Spark calls, on the thread that it is called on."""
        if self._connection is None and SparkContext._gateway is not None:
            self._connection = SparkContext._gateway._gateway_client.get_thread_connection()

    def close(self) -> None:
        """Let the thread end that waits for Spark's next call: there is none any more."""
        connection, self._connection = self._connection, None
        if connection is not None and connection.socket is not None:
            with suppress(OSError):
                connection.socket.shutdown(socket.SHUT_RDWR)
