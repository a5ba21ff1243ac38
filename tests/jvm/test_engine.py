"""The engine's classes are compiled once, and what is missing for that is an error with its cure."""

from __future__ import annotations

import shutil
import zipfile
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from livetables.jvm import engine
from livetables.jvm.engine import compiled_engine
from livetables.jvm.jars import jar_directory, java_compiler
from livetables.model.errors import SetupError

pytestmark = pytest.mark.processes


class Steps:
    """The steps that are reported."""

    def __init__(self) -> None:
        self.reported: list[str] = []

    def __call__(self, step: str) -> None:
        self.reported.append(step)


@pytest.fixture(autouse=True)
def kafka_jars(tmp_path: Path) -> None:
    """The jars of Spark's Kafka source, which the classes are compiled against."""
    (tmp_path / "spark").symlink_to(jar_directory("spark"))


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the sources that a test may change."""
    copy = tmp_path / "java"
    shutil.copytree(engine.SOURCES, copy)
    monkeypatch.setattr(engine, "SOURCES", copy)
    return copy


@pytest.fixture
def small_sources(sources: Path) -> Path:
    """One small class in their place, which takes a second less."""
    for source in sources.iterdir():
        source.unlink()
    (sources / "Small.java").write_text("package livetables; public final class Small {}\n")
    return sources


def test_the_classes_that_spark_runs_are_in_the_jar(tmp_path: Path) -> None:
    with zipfile.ZipFile(compiled_engine(tmp_path, java_compiler, Steps())) as jar:
        names = jar.namelist()
    assert {"livetables/MatchOperator.class", "livetables/FrameWriter.class"} <= set(names)


@pytest.mark.usefixtures("small_sources")
def test_under_spark_submit_it_is_the_jar_of_the_same_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jar = compiled_engine(tmp_path, java_compiler, Steps())
    zipped = engine.spark_jars().parent / "python" / "lib" / "pyspark.zip" / "pyspark" / "__init__.py"
    monkeypatch.setattr(engine, "find_spec", lambda _: ModuleSpec("pyspark", None, origin=str(zipped)))
    assert compiled_engine(tmp_path, java_compiler, Steps()) == jar


@pytest.mark.usefixtures("small_sources")
def test_it_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Steps(), Steps()
    jar = compiled_engine(tmp_path, java_compiler, first)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no-java"))
    assert compiled_engine(tmp_path, java_compiler, second) == jar
    assert (len(first.reported), second.reported) == (1, [])
    assert list(jar.parent.iterdir()) == [jar], "no draft is left"


def test_another_source_is_another_jar_beside_the_one_that_others_may_use(tmp_path: Path, small_sources: Path) -> None:
    before = compiled_engine(tmp_path, java_compiler, Steps())
    (small_sources / "Small.java").write_text("package livetables; public final class Small { int more; }\n")
    after = compiled_engine(tmp_path, java_compiler, Steps())
    assert after != before
    assert set(after.parent.iterdir()) == {before, after}


@pytest.mark.usefixtures("small_sources")
def test_the_same_sources_give_the_same_name_everywhere(tmp_path: Path) -> None:
    names = {compiled_engine(tmp_path / place, java_compiler, Steps()).name for place in ("a", "b")}
    assert len(names) == 1


def test_without_a_compiler_the_cure_is_a_jdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match="no Java compiler") as refused:
        compiled_engine(tmp_path, java_compiler, Steps())
    assert "openjdk-17-jdk-headless" in refused.value.cure
    assert list(tmp_path.glob("engine/*")) == []


def test_a_java_home_without_a_compiler_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jre" / "bin").mkdir(parents=True)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jre"))
    with pytest.raises(SetupError, match="no Java compiler"):
        java_compiler()


def test_the_compiler_of_java_home_is_taken_before_that_of_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "jdk" / "bin" / "javac"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    assert java_compiler() == str(program)


def test_what_the_compiler_complains_about_is_in_the_error_and_no_jar_is_left(
    tmp_path: Path, small_sources: Path
) -> None:
    (small_sources / "Small.java").write_text("package livetables; public final class Small { no }\n")
    with pytest.raises(SetupError, match=r"cannot be compiled: .*Small\.java:1: error"):
        compiled_engine(tmp_path, java_compiler, Steps())
    assert list(tmp_path.glob("engine/*")) == []


@pytest.mark.usefixtures("small_sources")
def test_a_file_where_the_jar_should_be_put_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "engine").write_text("")
    with pytest.raises(SetupError, match="cannot be put into"):
        compiled_engine(tmp_path, java_compiler, Steps())
