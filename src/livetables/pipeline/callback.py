"""The calls by which Spark has a query's batches handled in Python, and what they leave behind."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pyspark import SparkContext

from livetables.pipeline.phases import DriverSteps


class Callback:
    """Of one query, from its start to its end. The query's thread is called, another reads and closes."""

    def __init__(self) -> None:
        self.steps = DriverSteps()
        self.error: Exception | None = None  # that ended the query; Spark keeps of it only that there was one
        self._connection: Any = None

    @contextmanager
    def called(self) -> Iterator[None]:
        """Goes around all that Spark's call does, on the thread that it comes on."""
        if self._connection is None and SparkContext._gateway is not None:
            self._connection = SparkContext._gateway._gateway_client.get_thread_connection()
        try:
            yield
        except Exception as error:
            self.error = error
            raise

    def close(self) -> None:
        """Let the thread end that waits for Spark's next call. py4j opens a connection for each, and closes none."""
        connection, self._connection = self._connection, None
        if connection is not None and connection.socket is not None:
            with suppress(OSError):
                connection.socket.shutdown(socket.SHUT_RDWR)
