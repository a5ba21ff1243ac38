"""Checkpoints are found and removed, wherever they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from livetables.pipeline.generations.checkpoints import Checkpoints


@pytest.mark.spark
def test_checkpoints_are_found_and_removed(spark: SparkSession, tmp_path: Path) -> None:
    for directory in (str(tmp_path / "of a path"), f"file://{tmp_path}/of-a-url"):
        checkpoints = Checkpoints(spark, directory)
        assert checkpoints.generations() == []
        assert not checkpoints.exists("g1")
        assert not checkpoints.has_commits("g1")
        path = Path(checkpoints.path("g1").removeprefix("file://"))
        commits = path / "commits"
        commits.mkdir(parents=True)
        assert checkpoints.generations() == ["g1"]
        assert not checkpoints.exists("g1")
        (path / "metadata").write_text("")
        assert checkpoints.exists("g1")
        for name in (".0.crc", "0.tmp", ".0.0c6f.tmp"):
            (commits / name).write_text("")
        assert not checkpoints.has_commits("g1")
        (commits / "0").write_text("")
        assert checkpoints.has_commits("g1")
        checkpoints.remove("g1")
        checkpoints.remove("g1")
        assert checkpoints.generations() == []
        assert not path.exists()
