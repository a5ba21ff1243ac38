"""Java exceptions, as they reach Python."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException

JAVA_ERRORS = (Py4JJavaError, CapturedException)  # PySpark turns some of Java's exceptions into its own


def java_causes(error: BaseException) -> list[Any]:
    """Return the Java exception behind an error and its causes, down to the root; empty for an error of Python."""
    return list(
        with_causes(error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None))
    )


def root_cause(causes: Sequence[Any]) -> str:
    """Return the root cause in one sentence: the name of its class and the first line of its message."""
    name, text = causes[-1].getClass().getSimpleName(), causes[-1].getMessage() or ""
    return f"{name}: {first_line(text)}".removesuffix(": ")


def cause_of(error: BaseException) -> str:
    """Return the root cause of an error in one sentence, whether it is Java's or Python's."""
    causes = java_causes(error)
    return root_cause(causes) if causes else first_line(str(error))


def first_line(text: str) -> str:
    """Return the first line of a text that is not blank."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def with_causes(throwable: Any) -> Iterator[Any]:
    """Yield a Java exception and its causes, down to the root."""
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
# Causes that have nothing to do with the content of files, and may be temporary.
RESOURCES = re.compile(
    r"No space left|File too large|[Qq]uota|Permission denied|Too many open files|OutOfMemoryError"
    r"|Connection refused|timed out"
)


def is_of_checkpoint(trace: str) -> bool:
    """Whether a Java exception, printed with its causes, comes from reading a checkpoint, and will be repeated."""
    return bool(CHECKPOINT_CODE.search(trace)) and not RESOURCES.search(trace)


# What Spark says in micro-batches, and the consumer in real time.
GONE = re.compile(r"KAFKA_DATA_LOSS|org\.apache\.kafka\.clients\.consumer\.OffsetOutOfRangeException")


def is_of_lost_records(trace: str) -> bool:
    """Whether a Java exception, printed with its causes, says that Kafka no longer has what is to be read next."""
    return bool(GONE.search(trace))


def printed(driver: Any, throwable: Any) -> str:
    """Return a Java exception as text, with its causes and their stack traces."""
    return str(driver._jvm.org.apache.spark.util.Utils.exceptionString(throwable))


def class_names(error: BaseException) -> list[str]:
    """Return the class names of the Java exception and its causes, each followed by its superclasses."""
    return [kind.getSimpleName() for throwable in java_causes(error) for kind in _lineage(throwable.getClass())]


def _lineage(kind: Any) -> Iterator[Any]:
    while kind is not None:
        yield kind
        kind = kind.getSuperclass()
