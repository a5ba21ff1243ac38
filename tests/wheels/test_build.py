"""What is in the wheels, and what keeps one from being built. The page is a stand-in: `make check` has not built it."""

from __future__ import annotations

import email
import subprocess
import sys
from email.message import Message
from pathlib import Path
from zipfile import ZipFile

import pytest

from livetables.jvm.fetch import KINDS
from tests.support.up import WAIT_SECONDS
from wheels.build import SOURCE, WheelError, build_client, build_full, listed_files, unresolved

PAGE_FILES = ("index.html", "3rdpartylicenses.txt", "deeper/main.js")

# Runs the command of an unpacked client where nothing can be imported but what its wheel depends on.
CLIENT_ALONE = """
import sys
from importlib.abc import MetaPathFinder

class Without(MetaPathFinder):
    allowed = {"livetables", "pyarrow", "rich", "pygments", "markdown_it", "mdurl"}

    def find_spec(self, name, path, target=None):
        top = name.partition(".")[0]
        is_pythons_own = top in sys.stdlib_module_names or top.startswith("_sysconfigdata")
        if not is_pythons_own and top not in self.allowed:
            raise ModuleNotFoundError(f"{name} is not installed", name=name)

sys.meta_path.insert(0, Without())
sys.path.insert(0, sys.argv[1])
import livetables
assert livetables.__file__.startswith(sys.argv[1])
from livetables.cli.main import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    page = tmp_path_factory.mktemp("page")
    for name in PAGE_FILES:
        (page / name).parent.mkdir(exist_ok=True)
        (page / name).write_text(name)
    return build_full(tmp_path_factory.mktemp("dist"), page)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_client(tmp_path_factory.mktemp("dist"))


def names(wheel: Path) -> set[str]:
    with ZipFile(wheel) as packed:
        return set(packed.namelist())


def metadata(wheel: Path) -> Message:
    with ZipFile(wheel) as packed:
        (name,) = (name for name in packed.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(packed.read(name))


def test_the_full_wheel_has_the_package_the_page_and_what_jars_are_fetched_with(full: Path) -> None:
    sources = {path.relative_to(SOURCE.parent).as_posix() for path in SOURCE.rglob("*.py")}
    data = {"py.typed", "jvm/jars.sha256", *(f"jvm/{kind}/pom.xml" for kind in KINDS)}
    data |= {"jvm/java/MatchOperator.java", "jvm/java/FrameWriter.java"}
    page = {f"web/{name}" for name in PAGE_FILES}
    hadoop = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*-default.xml")}
    assert hadoop
    packed = {name for name in names(full) if ".dist-info/" not in name}
    assert packed == sources | {f"livetables/{name}" for name in data | page | hadoop}


def test_the_client_wheel_has_only_what_is_listed(client: Path) -> None:
    packed = {name for name in names(client) if ".dist-info/" not in name}
    assert {"livetables/__init__.py", "livetables/py.typed", "livetables/cli/main.py"} < packed
    assert {name.split("/")[1] for name in packed}.isdisjoint({"server", "pipeline", "kafka", "jvm", "web"})


@pytest.mark.parametrize("name", ["full", "client"])
def test_a_wheel_has_the_command_and_the_licence_and_no_leftovers(name: str, request: pytest.FixtureRequest) -> None:
    wheel: Path = request.getfixturevalue(name)
    with ZipFile(wheel) as packed:
        texts = {
            name.partition(".dist-info/")[2]: packed.read(name).decode() for name in names(wheel) if "info/" in name
        }
    assert "livetables = livetables.cli.main:main" in texts["entry_points.txt"]
    assert "Apache License" in texts["licenses/LICENSE"]
    assert metadata(wheel)["License-Expression"] == "Apache-2.0"
    assert [
        name for name in names(wheel) if "__pycache__" in name or name.startswith(("tests", "bench", "wheels"))
    ] == []


def test_both_wheels_have_the_same_version(full: Path, client: Path) -> None:
    assert metadata(full)["Version"] == metadata(client)["Version"]


def test_the_client_asks_for_two_packages_and_lets_newer_ones_be(client: Path) -> None:
    asked = [each.split(">=")[0] for each in metadata(client).get_all("Requires-Dist", [])]
    assert asked == ["pyarrow", "rich"]


def test_the_client_works_where_there_is_nothing_else(client: Path, tmp_path: Path) -> None:
    with ZipFile(client) as packed:
        packed.extractall(tmp_path / "unpacked")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-I", "-c", CLIENT_ALONE, str(tmp_path / "unpacked"), *arguments],
            env={"LIVETABLES_TOKEN": "k" * 32},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
            check=False,
        )

    assert run("--help").returncode == 0
    for verb in ("status", "control"):
        asked = run(verb, "--url", "http://127.0.0.1:1", *(["--join", "left"] if verb == "control" else []))
        assert "no livetables server answers at http://127.0.0.1:1" in asked.stderr
    for verb in ("up", "serve", "pipeline", "demo-data"):
        refused = run(verb)
        assert refused.returncode == 2
        assert f"`livetables {verb}` is not in livetables-client" in refused.stderr
        assert "pip install livetables`" in refused.stderr


def test_without_the_page_there_is_no_full_wheel(tmp_path: Path) -> None:
    with pytest.raises(WheelError, match="the page is not built"):
        build_full(tmp_path / "dist", tmp_path)
    assert not (tmp_path / "dist").exists()


@pytest.mark.parametrize(
    "source",
    [
        "import livetables.outside",
        "from livetables.outside import Thing",
        "from livetables import outside",
        "from . import outside",
        "from .outside import Thing",
        "def late():\n    from livetables.outside import Thing",
    ],
)
def test_an_import_of_what_is_not_in_the_client_is_named(source: str, tmp_path: Path) -> None:
    (tmp_path / "inside.py").write_text(source)
    (tmp_path / "outside.py").write_text("class Thing: ...")
    assert unresolved(tmp_path, ["inside.py"], set()) == ["inside.py imports livetables.outside"]
    assert unresolved(tmp_path, ["inside.py", "outside.py"], set()) == []


def test_an_import_of_what_the_client_does_not_depend_on_is_named(tmp_path: Path) -> None:
    (tmp_path / "inside.py").write_text("import json\nimport pandas.io\ndef late():\n    import polars")
    assert unresolved(tmp_path, ["inside.py"], set()) == ["inside.py imports pandas"]
    assert unresolved(tmp_path, ["inside.py"], {"pandas"}) == []


def test_a_listed_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "module.py").touch()
    assert listed_files(tmp_path, ["package"]) == ["package/module.py"]
    with pytest.raises(WheelError, match=r"gone\.py is in the list"):
        listed_files(tmp_path, ["package", "gone.py"])
