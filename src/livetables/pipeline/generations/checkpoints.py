"""The checkpoints of generations, each a directory under one path or URL, accessed through Hadoop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from livetables.jvm.java_errors import JAVA_ERRORS, cause_of, class_names
from livetables.model.errors import CheckpointError

MISSING = {"FileNotFoundException", "NoSuchFileException"}


class Checkpoints:
    """Finds and removes checkpoints; Spark writes them.

    A CheckpointError has the reason why their storage cannot be used now.
    """

    def __init__(self, spark: SparkSession, directory: str) -> None:
        assert spark._jvm is not None, "a session without a JVM of its own cannot reach files"
        self._java_path = spark._jvm.org.apache.hadoop.fs.Path
        self._configuration = spark._jsparkSession.sessionState().newHadoopConf()
        self._directory = directory if "://" in directory else str(Path(directory).absolute())

    def path(self, generation: str) -> str:
        return f"{self._directory}/{generation}"

    def generations(self) -> list[str]:
        """Return the generations that have a checkpoint, complete or not."""
        return [status.getPath().getName() for status in self._listed(self._directory)]

    def exists(self, generation: str) -> bool:
        """Whether a query has started one."""
        return any(status.getPath().getName() == "metadata" for status in self._listed(self.path(generation)))

    def has_commits(self, generation: str) -> bool:
        """Whether a batch has been finished, from which a query can continue."""
        names = [status.getPath().getName() for status in self._listed(f"{self.path(generation)}/commits")]
        return any(name.isdecimal() for name in names)

    def remove_state(self, generation: str) -> None:
        """Remove the state that tasks have written, but not the offsets at which reading began."""
        self._remove(f"{self.path(generation)}/state")

    def remove(self, generation: str) -> None:
        """Remove a checkpoint. If it is missing, nothing changes."""
        self._remove(self.path(generation))

    def set_aside(self, generation: str, moment: datetime) -> str:
        """Rename a damaged checkpoint, so that no generation uses it; return its new path."""
        aside = f"{self.path(generation)}.damaged-{moment:%Y%m%dT%H%M%SZ}"
        with self._storage(self.path(generation)) as (storage, path):
            storage.rename(path, self._java_path(aside))
        return aside

    def _remove(self, directory: str) -> None:
        with self._storage(directory) as (storage, path):
            storage.delete(path, True)

    def _listed(self, directory: str) -> list[Any]:
        with self._storage(directory) as (storage, path):
            try:
                return list(storage.listStatus(path))
            except JAVA_ERRORS as error:
                if not MISSING.isdisjoint(class_names(error)):
                    return []
                raise

    @contextmanager
    def _storage(self, directory: str) -> Iterator[tuple[Any, Any]]:
        """Open the storage of a directory; what Java throws meanwhile is a CheckpointError."""
        try:
            path = self._java_path(directory)
            yield path.getFileSystem(self._configuration), path
        except JAVA_ERRORS as error:
            raise CheckpointError(
                f"{directory} cannot be used: {cause_of(error)}",
                "wait, or correct pipeline.checkpoint_directory or the storage behind it",
            ) from error
