"""Who may import whom, and who may look outside: the architecture's rules, held by the syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import livetables

PACKAGE = Path(livetables.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))
PURE = (
    "spec.py",
    "change.py",
    "dead_letter.py",
    "errors.py",
    "control/resolve.py",
    "control/generation.py",
    "server/frames.py",
    "server/viewport.py",
    "server/protocol.py",
    "server/logins.py",
    "server/origins.py",
)
DOES_IO = {"socket", "subprocess", "pyspark", "confluent_kafka", "asyncio"}


def imported(source: str, package: str) -> Iterator[str]:
    """Every module that source imports, and every name it imports from one, in full."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def reads_environment(source: str) -> bool:
    """Whether source reads the environment; to set a variable for a child is not to read one."""
    tree = ast.parse(source)
    assigned = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del)
    }
    attributes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and id(node) not in assigned)
    names = {f"{node.value.id}.{node.attr}" for node in attributes if isinstance(node.value, ast.Name)}
    return bool({"os.environ", "os.environb", "os.getenv"} & names.union(imported(source, "")))


def relative(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def package_of(path: Path) -> str:
    return ".".join(["livetables", *path.relative_to(PACKAGE).parent.parts])


def is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


@pytest.mark.parametrize(
    ("importer", "other"),
    [
        ("pipeline", "server"),
        ("server", "pipeline"),
        *(("client", other) for other in ("server", "pipeline", "control", "up", "cli")),
    ],
)
def test_pipeline_and_server_never_import_each_other_nor_the_client_them(importer: str, other: str) -> None:
    offenders = [
        relative(path)
        for path in SOURCES
        if is_within(package_of(path), f"livetables.{importer}")
        and any(is_within(module, f"livetables.{other}") for module in imported(path.read_text(), package_of(path)))
    ]
    assert offenders == []


def test_only_config_jars_and_the_command_line_read_the_environment() -> None:
    allowed = ("config.py", "jars.py")
    offenders = [
        relative(path)
        for path in SOURCES
        if relative(path) not in allowed
        and not relative(path).startswith("cli/")
        and reads_environment(path.read_text())
    ]
    assert offenders == []


@pytest.mark.parametrize("name", [name for name in PURE if (PACKAGE / name).exists()])
def test_what_decides_does_no_io(name: str) -> None:
    path = PACKAGE / name
    assert {module.split(".")[0] for module in imported(path.read_text(), package_of(path))} & DOES_IO == set()


@pytest.mark.parametrize(
    "source",
    [
        "import livetables.server.store",
        "from livetables.server.store import Store",
        "from livetables import server",
        "from ..server import store",
        "from .. import server",
        "def late():\n    import livetables.server",
    ],
)
def test_the_rules_see_every_way_to_import(source: str) -> None:
    assert any(is_within(module, "livetables.server") for module in imported(source, "livetables.pipeline"))


@pytest.mark.parametrize(
    "source", ["import os\nos.environ['A']", "import os\nos.getenv('A')", "from os import environ", "{**os.environ}"]
)
def test_the_rules_see_every_way_to_read_the_environment(source: str) -> None:
    assert reads_environment(source)


def test_the_rules_let_a_variable_be_set() -> None:
    assert not reads_environment("import os\nos.environ['A'] = 'b'")
