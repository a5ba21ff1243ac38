"""Checkpoints are found and removed, wherever they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from livetables.pipeline.checkpoints import Checkpoints


@pytest.mark.spark
def test_checkpoints_are_found_and_removed(spark: SparkSession, tmp_path: Path) -> None:
    for directory in (str(tmp_path / "of a path"), f"file://{tmp_path}/of-a-url"):
        checkpoints = Checkpoints(spark, directory)
        assert checkpoints.generations() == []
        assert checkpoints.last_batch_id("g1") is None
        offsets = Path(checkpoints.path("g1").removeprefix("file://")) / "offsets"
        offsets.mkdir(parents=True)
        assert checkpoints.last_batch_id("g1") is None
        for name in ("0", "9", "10", ".10.crc", "11.tmp"):
            (offsets / name).write_text("")
        assert checkpoints.generations() == ["g1"]
        assert checkpoints.last_batch_id("g1") == 10
        checkpoints.remove("g1")
        checkpoints.remove("g1")
        assert checkpoints.generations() == []
        assert not offsets.exists()
