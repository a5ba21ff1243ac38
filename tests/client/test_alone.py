"""The client needs pyarrow and rich, and nothing of what the server and the pipeline need."""

from __future__ import annotations

import subprocess
import sys

import pytest

ALLOWED = ("livetables", "pyarrow", "rich", "pygments", "markdown_it", "mdurl")  # the last three are rich's own
# Imports a module where nothing else is installed: every other package that is not Python's own is not to be found.
ONLY = f"""
import importlib, sys
from importlib.abc import MetaPathFinder
class Only(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        is_pythons_own = top in sys.stdlib_module_names or top.startswith("_sysconfigdata")
        if not is_pythons_own and top not in {ALLOWED!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Only())
for name in sys.argv[1:]:
    importlib.import_module(name)
"""
MODULES = (
    "livetables",
    "livetables.model.change",
    "livetables.client",
    "livetables.config.load",
    "livetables.model.errors",
    "livetables.model.wire",
    "livetables.cli.main",
    "livetables.cli.options",
    "livetables.cli.control",
    "livetables.cli.sql",
    "livetables.cli.status",
    "livetables.cli.tables",
    "livetables.cli.tail",
)


def imported(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_client_is_imported_with_pyarrow_and_rich_alone() -> None:
    done = imported(ONLY, *MODULES)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["livetables.server.storage.store", "livetables.local.broker", "pandas"])
def test_what_is_not_there_would_be_noticed(module: str) -> None:
    assert "ModuleNotFoundError" in imported(ONLY, module).stderr


def test_the_package_itself_loads_nothing_large() -> None:
    loaded = imported("import livetables, sys; print(*sys.modules)").stdout.split()
    assert {"pyarrow", "pandas", "pyspark", "duckdb", "fastapi"}.isdisjoint(loaded)
