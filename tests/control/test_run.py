"""Where a pipeline lets Spark keep its working files."""

from __future__ import annotations

from pathlib import Path

from livetables.control.run import _local_settings


def test_spark_works_in_the_pipelines_own_directory() -> None:
    settings = _local_settings(Path("/var/lib/livetables/spark"))
    assert settings["spark.local.dir"] == "/var/lib/livetables/spark"
    assert "-Djava.io.tmpdir=/var/lib/livetables/spark" in settings["spark.driver.extraJavaOptions"]
