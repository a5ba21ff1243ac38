"""Jars come once, are checked, and are all there or not at all.

Maven is played by a script: only so can it bring wrong files, or be counted. `make chaos` fetches with the real one.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from livetables.jvm import fetch as fetching
from livetables.jvm import jars
from livetables.jvm.fetch import KINDS, checksums, fetch, list_digest
from livetables.jvm.jars import jar_directory
from livetables.model.errors import SetupError
from tests.support.kafka import wait_until
from tests.support.up import WAIT_SECONDS, clean_environment, is_alive

REAL = jar_directory("spark")

FAKE_MAVEN = """#!/bin/sh
echo called >> '{calls}'
for argument; do
    case "$argument" in -DoutputDirectory=*) jars="${{argument#*=}}";; esac
done
cp -R '{served}' "$jars"
"""


# `livetables` as it is outside of a checkout.
INSTALLED = """
import sys
from pathlib import Path
from livetables.jvm import jars
from livetables.cli.main import main
jars.CHECKOUT = Path("installed")
sys.exit(main(sys.argv[1:]))
"""


class FakeMaven:
    """Brings the files that are in `served`, and counts."""

    def __init__(self, directory: Path) -> None:
        self.served = directory / "served"
        self._calls = directory / "calls"
        shutil.copytree(REAL, self.served)
        self.program = directory / "bin" / "mvn"
        self.program.parent.mkdir()
        self.runs(FAKE_MAVEN.format(calls=self._calls, served=self.served))

    def runs(self, script: str) -> None:
        self.program.write_text(script)
        self.program.chmod(0o755)

    def hangs(self) -> Path:
        """From now on it hangs; the file has its process id as soon as it does."""
        pid = self._calls.with_name("pid")
        self.runs(f"#!/bin/sh\necho $$ > '{pid}.draft'\nmv '{pid}.draft' '{pid}'\nexec sleep 600\n")
        return pid

    @property
    def calls(self) -> int:
        return len(self._calls.read_text().splitlines()) if self._calls.exists() else 0


@pytest.fixture
def maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMaven:
    fake = FakeMaven(tmp_path)
    monkeypatch.setenv("PATH", f"{fake.program.parent}{os.pathsep}{os.environ['PATH']}")
    return fake


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, for a livetables that is not in a checkout."""
    monkeypatch.delenv("LIVETABLES_JARS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(jars, "CHECKOUT", tmp_path / "installed")
    return tmp_path / "cache" / "livetables" / "jars" / list_digest()


def test_the_list_has_every_jar_of_this_checkout() -> None:
    listed = {kind: fetching._listed(kind) for kind in KINDS}
    assert listed == {kind: checksums(jar_directory(kind)) for kind in KINDS}


def test_jars_are_fetched_into_the_cache_once(maven: FakeMaven, cache: Path) -> None:
    steps: list[str] = []
    assert jar_directory("spark", steps.append) == cache / "spark"
    assert checksums(cache / "spark") == checksums(REAL)
    assert steps == [f"fetching the 5 spark jars with Maven into {cache / 'spark'}"]
    assert jar_directory("spark", steps.append) == cache / "spark"
    assert (maven.calls, len(steps)) == (1, 1)


def test_the_jars_of_a_checkout_come_before_the_cache(cache: Path, tmp_path: Path) -> None:
    shutil.copytree(REAL, cache / "spark")
    shutil.copytree(REAL, tmp_path / "installed" / ".jars" / "spark")
    assert jar_directory("spark") == tmp_path / "installed" / ".jars" / "spark"


def test_what_is_configured_comes_before_everything(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(REAL, cache / "spark")
    shutil.copytree(REAL, tmp_path / "installed" / ".jars" / "spark")
    shutil.copytree(REAL, tmp_path / "mine" / "spark")
    monkeypatch.setenv("LIVETABLES_JARS", str(tmp_path / "mine"))
    assert jar_directory("spark") == tmp_path / "mine" / "spark"


def test_a_configured_directory_without_jars_is_an_error_and_nothing_is_fetched(
    maven: FakeMaven, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIVETABLES_JARS", str(tmp_path / "mine"))
    with pytest.raises(SetupError, match="LIVETABLES_JARS is "):
        jar_directory("spark")
    assert not cache.exists()
    assert maven.calls == 0


@pytest.mark.parametrize("fault", ["is missing", "is not in the list", "is another file"])
def test_a_wrong_file_is_named_and_nothing_is_installed(maven: FakeMaven, cache: Path, fault: str) -> None:
    jar = next(maven.served.glob("kafka-clients-*.jar"))
    if fault == "is missing":
        jar.unlink()
    elif fault == "is not in the list":
        jar = jar.with_name("guest.jar")
        jar.write_bytes(b"")
    else:
        with jar.open("ab") as file:
            file.write(b"\0")
    with pytest.raises(SetupError, match=f"{jar.name} {fault}") as failure:
        jar_directory("spark")
    assert "nothing was installed" in failure.value.cure
    assert [path.name for path in cache.iterdir()] == ["spark.lock"]


def test_a_directory_with_a_damaged_file_is_fetched_anew(maven: FakeMaven, tmp_path: Path) -> None:
    shutil.copytree(REAL, tmp_path / "jars" / "spark")
    jar = next((tmp_path / "jars" / "spark").glob("kafka-clients-*.jar"))
    jar.write_bytes(b"damaged")
    (jar.parent / "of-an-older-version.jar").write_bytes(b"")
    fetch("spark", tmp_path / "jars", print)
    assert checksums(jar.parent) == checksums(REAL)
    assert maven.calls == 1


def test_a_right_directory_is_left_alone(maven: FakeMaven, tmp_path: Path) -> None:
    shutil.copytree(REAL, tmp_path / "jars" / "spark")
    fetch("spark", tmp_path / "jars", print)
    assert maven.calls == 0


def test_many_at_once_fetch_once(maven: FakeMaven, cache: Path, tmp_path: Path) -> None:
    # The first that fetches is held until another waits for it.
    held, go = tmp_path / "held", tmp_path / "go"
    script = maven.program.read_text()
    wait = f"touch '{held}'\nwhile ! test -e '{go}'; do sleep 0.05; done\n"
    maven.runs(script.replace("echo called", f"{wait}echo called", 1))

    def notify(step: str) -> None:
        if step.startswith("waiting for another process"):
            go.touch()

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: jar_directory("spark", notify), range(3)))
    assert held.exists()
    assert found == [cache / "spark"] * 3
    assert checksums(cache / "spark") == checksums(REAL)
    assert maven.calls == 1


def test_a_killed_process_takes_maven_with_it_and_the_next_clears_up(maven: FakeMaven, cache: Path) -> None:
    script = maven.program.read_text()
    pid = maven.hangs()
    process = subprocess.Popen([sys.executable, "-m", "livetables.jvm", str(cache)], env=clean_environment())
    with process:
        wait_until(pid.exists, "Maven has started")
        process.kill()
    wait_until(lambda: not is_alive(int(pid.read_text())), "Maven is gone")
    assert list(cache.glob(".spark-draft-*")) != []
    maven.runs(script)
    jar_directory("spark")
    assert {path.name for path in cache.iterdir()} == {"spark", "spark.lock"}


@pytest.mark.parametrize("verb", ["up", "pipeline"])
def test_ctrl_c_while_jars_are_fetched_ends_at_once_and_leaves_nothing(
    maven: FakeMaven, cache: Path, tmp_path: Path, verb: str
) -> None:
    pid = maven.hangs()
    settings = {"LIVETABLES_TOKEN": "k" * 32, "LIVETABLES_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"}
    process = subprocess.Popen(
        [sys.executable, "-c", INSTALLED, verb],
        cwd=tmp_path,
        env=clean_environment(**settings),
        stdout=subprocess.DEVNULL,
    )
    with process:
        wait_until(pid.exists, "Maven has started")
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_SECONDS) == 130
    wait_until(lambda: not is_alive(int(pid.read_text())), "Maven is gone")
    assert [path.name for path in cache.iterdir()] == ["spark.lock"]


def test_without_maven_the_cure_is_named(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "java_executable", lambda: "java")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match=r"neither is Maven \(mvn\)") as failure:
        jar_directory("spark")
    assert "install Maven" in failure.value.cure
    assert "set LIVETABLES_JARS" in failure.value.cure
    assert [path.name for path in cache.iterdir()] == ["spark.lock"]


def test_what_maven_complains_of_is_in_the_error_without_passwords(maven: FakeMaven, cache: Path) -> None:
    output = "[ERROR] Could not transfer artifact from mirror (https://me:hidden@mirror.invalid/maven2): no route"
    maven.runs(f"#!/bin/sh\necho '{output}'\nexit 1\n")
    with pytest.raises(SetupError, match="no route") as failure:
        jar_directory("spark")
    assert "hidden" not in str(failure.value)
    assert "settings.xml" in failure.value.cure
    assert not (cache / "spark").exists()


def test_a_cache_that_cannot_be_written_is_an_error_with_the_cure(maven: FakeMaven, cache: Path) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text("a file where a directory should be")
    with pytest.raises(SetupError, match="cannot be put into") as failure:
        jar_directory("spark")
    assert "set LIVETABLES_JARS" in failure.value.cure
    assert maven.calls == 0


def test_the_command_ends_with_the_cure(tmp_path: Path) -> None:
    environment = clean_environment(PATH=str(tmp_path), JAVA_HOME="")
    done = subprocess.run(
        [sys.executable, "-m", "livetables.jvm", str(tmp_path / "jars")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("livetables: there is no java on the PATH\n  cure: ")
