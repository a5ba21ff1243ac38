"""The checkpoints of generations, each a directory under one path or URL, accessed through Hadoop."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession


class Checkpoints:
    """Finds and removes checkpoints. Spark writes them."""

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
        path = self._java_path(f"{self.path(generation)}/state")
        path.getFileSystem(self._configuration).delete(path, True)

    def remove(self, generation: str) -> None:
        """Remove a checkpoint. If it is missing, nothing changes."""
        path = self._java_path(self.path(generation))
        path.getFileSystem(self._configuration).delete(path, True)

    def set_aside(self, generation: str, moment: datetime) -> str:
        """Rename a damaged checkpoint, so that no generation uses it; return its new path."""
        aside = f"{self.path(generation)}.damaged-{moment:%Y%m%dT%H%M%SZ}"
        path = self._java_path(self.path(generation))
        path.getFileSystem(self._configuration).rename(path, self._java_path(aside))
        return aside

    def _listed(self, directory: str) -> list[Any]:
        path = self._java_path(directory)
        try:
            return list(path.getFileSystem(self._configuration).listStatus(path))
        except Py4JJavaError as error:
            if error.java_exception.getClass().getSimpleName() in ("FileNotFoundException", "NoSuchFileException"):
                return []
            raise
