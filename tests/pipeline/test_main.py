"""Where a pipeline lets Spark keep its working files, and that it removes nobody else's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from livetables.config.values import PipelineConfig
from livetables.model.errors import SetupError
from livetables.pipeline.main import MARKER, _local_settings, _own_directory


def test_spark_works_in_the_pipelines_own_directory() -> None:
    settings = _local_settings(Path("/var/lib/livetables/livetables-spark"))
    assert settings["spark.local.dir"] == "/var/lib/livetables/livetables-spark"
    assert "-Djava.io.tmpdir=/var/lib/livetables/livetables-spark" in settings["spark.driver.extraJavaOptions"]


@pytest.mark.parametrize("name", ["spark/bin/spark-submit", "pipeline.lock", "livetables/notes.txt"])
def test_what_others_have_beside_the_checkpoints_stays(tmp_path: Path, name: str) -> None:
    theirs = tmp_path / name
    theirs.parent.mkdir(parents=True, exist_ok=True)
    theirs.write_text("theirs")
    with _own_directory(_config(tmp_path)) as directory:
        assert directory
    assert theirs.read_text() == "theirs"


def test_what_a_killed_driver_left_is_removed_but_not_what_it_links_to(tmp_path: Path) -> None:
    theirs = tmp_path / "elsewhere" / "file"
    theirs.parent.mkdir()
    theirs.write_text("theirs")
    with _own_directory(_config(tmp_path)) as directory:
        assert directory
        (directory / "blockmgr-1" / "00").mkdir(parents=True)
        (directory / "blockmgr-1" / "00" / "shuffle.data").write_text("")
        (directory / "snappy.so").write_text("")
        (directory / "link").symlink_to(theirs.parent)
    for _ in range(2):
        with _own_directory(_config(tmp_path)) as directory:
            assert directory
            assert [path.name for path in directory.iterdir()] == [MARKER]
    assert theirs.read_text() == "theirs"


def test_a_directory_of_that_name_without_the_marker_is_refused_and_stays(tmp_path: Path) -> None:
    theirs = tmp_path / "livetables-spark" / "theirs"
    theirs.mkdir(parents=True)
    for _ in range(2):
        expected = re.escape(f"{theirs.parent} was not made by livetables")
        with pytest.raises(SetupError, match=expected) as refusal, _own_directory(_config(tmp_path)):
            pass
        assert "pipeline.checkpoint_directory" in refusal.value.cure
    assert theirs.exists()


def test_a_place_where_no_directory_can_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    expected = re.escape(f"{tmp_path / 'data' / 'livetables-spark'}")
    with pytest.raises(SetupError, match=expected) as refusal, _own_directory(_config(tmp_path / "data")):
        pass
    assert "pipeline.checkpoint_directory" in refusal.value.cure


def test_one_pipeline_at_a_time_works_on_a_directory(tmp_path: Path) -> None:
    with _own_directory(_config(tmp_path)) as directory:
        assert directory
        (directory / "in-use").write_text("")
        with pytest.raises(SetupError, match="another pipeline runs"), _own_directory(_config(tmp_path)):
            pass
        assert (directory / "in-use").exists()


def test_of_checkpoints_on_shared_storage_nothing_is_made_or_removed_here() -> None:
    with _own_directory(PipelineConfig(checkpoint_directory="s3a://bucket/checkpoints")) as directory:
        assert directory is None


def _config(parent: Path) -> PipelineConfig:
    return PipelineConfig(checkpoint_directory=str(parent / "checkpoints"))
