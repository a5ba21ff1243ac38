"""Both wheels, each from a tree of its own that has what belongs into it and nothing else.

Built in place, setuptools would also pack what an earlier build has left. What is in `livetables-client` is listed in
its pyproject.toml; a module of it that imports something outside of that list and of its dependencies is an error here,
not at its user's.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "livetables"
PAGE = SOURCE / "web"
CLIENT = Path(__file__).parent / "client"


class WheelError(Exception):
    """Why a wheel cannot be built."""


def build_full(destination: Path, page: Path) -> Path:
    """The wheel `livetables` with the page that is built in `page`."""
    if not (page / "index.html").is_file():
        raise WheelError(f"the page is not built: there is no {page / 'index.html'}; `make wheel` builds it")
    with TemporaryDirectory() as tree:
        package = Path(tree) / "src" / "livetables"
        shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("__pycache__", PAGE.name))
        shutil.copytree(page, package / PAGE.name)
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, tree)
        return _built(Path(tree), destination)


def build_client(destination: Path) -> Path:
    """The wheel `livetables-client`."""
    project = tomllib.loads((CLIENT / "pyproject.toml").read_text())
    files = listed_files(SOURCE, project["tool"]["livetables"]["files"])
    dependencies = {re.split(r"[^A-Za-z0-9_]", each)[0] for each in project["project"]["dependencies"]}
    if problems := unresolved(SOURCE, files, dependencies):
        raise WheelError("livetables-client would not work by itself:\n  " + "\n  ".join(problems))
    with TemporaryDirectory() as tree:
        for file in files:
            copy = Path(tree) / "src" / "livetables" / file
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(SOURCE / file, copy)
        for path in (CLIENT / "pyproject.toml", CLIENT / "README.md", ROOT / "LICENSE"):
            shutil.copy(path, tree)
        version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
        (Path(tree) / "VERSION").write_text(version)
        wheel = _built(Path(tree), destination)
    with ZipFile(wheel) as packed:
        if left_out := {f"livetables/{file}" for file in files} - set(packed.namelist()):
            raise WheelError(f"setuptools left out {', '.join(sorted(left_out))}: is an __init__.py not listed?")
    return wheel


def listed_files(source: Path, entries: list[str]) -> list[str]:
    """The files that the entries mean, by their paths in the package; a directory means all files below it."""
    files: set[Path] = set()
    for entry in entries:
        found = [path for path in (source / entry).rglob("*") if path.is_file()] or [source / entry]
        if not found[0].is_file():
            raise WheelError(f"{entry} is in the list of livetables-client, but not in {source}")
        files.update(path for path in found if "__pycache__" not in path.parts)
    return sorted(path.relative_to(source).as_posix() for path in files)


def unresolved(source: Path, files: list[str], dependencies: set[str]) -> list[str]:
    """What the modules among the files import and will not find."""
    inside = {_module(file) for file in files if file.endswith(".py")}
    everywhere = {_module(path.relative_to(source).as_posix()) for path in source.rglob("*.py")}
    known = sys.stdlib_module_names | dependencies | {"livetables"}
    problems = []
    for file in files:
        if file.endswith(".py"):
            tree = ast.parse((source / file).read_text())
            missing = [name for name in _imported(tree, file) if name in everywhere and name not in inside]
            # What a function imports may be something that only those have who call it.
            foreign = [name for name in _imported(ast.Module(_always_run(tree), []), file) if _top(name) not in known]
            problems += [f"{file} imports {name}" for name in dict.fromkeys([*missing, *map(_top, foreign)])]
    return problems


def _imported(tree: ast.Module, file: str) -> Iterator[str]:
    """Every module that is imported, and every name that is imported from one, in full."""
    package = ["livetables", *Path(file).parent.parts]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def _always_run(tree: ast.Module) -> list[ast.stmt]:
    return [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]


def _module(file: str) -> str:
    return ".".join(["livetables", *Path(file).with_suffix("").parts]).removesuffix(".__init__")


def _top(module: str) -> str:
    return module.partition(".")[0]


def _built(tree: Path, destination: Path) -> Path:
    """The wheel of a tree, built with what is installed here."""
    with TemporaryDirectory() as made:
        options = ["--no-build-isolation", "--no-deps", "--no-index", "--disable-pip-version-check", "--quiet"]
        command = [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", made, str(tree)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0:
            raise WheelError(f"pip failed:\n{done.stdout}")
        (wheel,) = Path(made).iterdir()
        destination.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(wheel, destination))
