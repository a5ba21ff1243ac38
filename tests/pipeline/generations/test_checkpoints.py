"""Checkpoints are found and removed, wherever they are."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from livetables.model.errors import CheckpointError
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


@pytest.mark.spark
@pytest.mark.parametrize(
    "call",
    [
        lambda checkpoints: checkpoints.generations(),
        lambda checkpoints: checkpoints.exists("g1"),
        lambda checkpoints: checkpoints.has_commits("g1"),
        lambda checkpoints: checkpoints.remove("g1"),
        lambda checkpoints: checkpoints.set_aside("g1", datetime(2026, 1, 1, tzinfo=UTC)),
    ],
    ids=["generations", "exists", "has_commits", "remove", "set_aside"],
)
def test_storage_that_cannot_be_used_is_an_error_that_names_it(
    spark: SparkSession, tmp_path: Path, call: Callable[[Checkpoints], object]
) -> None:
    (tmp_path / "file").write_text("where a directory should be")
    for directory in (f"{tmp_path}/file/checkpoints", "nosuchstorage://bucket/checkpoints"):
        with pytest.raises(CheckpointError, match=re.escape(directory)) as error:
            call(Checkpoints(spark, directory))
        assert "pipeline.checkpoint_directory" in error.value.cure
