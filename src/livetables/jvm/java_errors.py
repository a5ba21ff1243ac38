"""What Java throws, as it reaches Python."""

from __future__ import annotations

import re
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


# Where Spark reads and writes offsets, commits and state, and what it calls files there that it cannot read. Every task
# is run by the two classes that are excepted.
CHECKPOINT_CODE = re.compile(
    r"org\.apache\.spark\.sql\.execution\.streaming\."
    r"(checkpointing\.\w*(Log|Seq|FileManager)|runtime\.StreamMetadata|state\.(?!package|StateStore\w*RDD))"
    r"|org\.rocksdb\.|\[(MALFORMED_LOG_FILE|CANNOT_LOAD_STATE_STORE|MALFORMED_CHECKPOINT)"
)
# What has nothing to do with the content of files, and may pass.
RESOURCES = re.compile(
    r"No space left|[Qq]uota|Permission denied|Too many open files|OutOfMemoryError|Connection refused|timed out"
)


def is_of_checkpoint(trace: str) -> bool:
    """Whether a Java exception, printed with its causes, comes from reading a checkpoint, and will come again."""
    return bool(CHECKPOINT_CODE.search(trace)) and not RESOURCES.search(trace)


def printed(driver: Any, throwable: Any) -> str:
    """A Java exception with its causes and where they come from."""
    return str(driver._jvm.org.apache.spark.util.Utils.exceptionString(throwable))


def class_names(error: BaseException) -> list[str]:
    """What the Java exception and its causes are called, each followed by the classes that it is derived from."""
    return [kind.getSimpleName() for throwable in java_causes(error) for kind in _lineage(throwable.getClass())]


def _lineage(kind: Any) -> Iterator[Any]:
    while kind is not None:
        yield kind
        kind = kind.getSuperclass()
