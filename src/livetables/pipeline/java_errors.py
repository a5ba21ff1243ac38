"""What Java throws, as it reaches Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException

JAVA_ERRORS = (Py4JJavaError, CapturedException)  # PySpark turns some of Java's exceptions into its own


def java_causes(error: BaseException) -> list[Any]:
    """The Java exception behind an error, and what caused it, down to its root; none behind an error of Python."""
    return list(
        with_causes(error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None))
    )


def with_causes(throwable: Any) -> Iterator[Any]:
    """A Java exception, and what caused it, down to its root."""
    while throwable is not None:
        yield throwable
        throwable = throwable.getCause()


def class_names(error: BaseException) -> list[str]:
    """What the Java exception and its causes are called, each followed by the classes that it is derived from."""
    return [kind.getSimpleName() for throwable in java_causes(error) for kind in _lineage(throwable.getClass())]


def _lineage(kind: Any) -> Iterator[Any]:
    while kind is not None:
        yield kind
        kind = kind.getSuperclass()
