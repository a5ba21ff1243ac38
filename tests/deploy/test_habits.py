"""What runs before commits and on the host of the repository calls the commands that are here."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def parsed(path: Path) -> dict[Any, Any]:
    content = yaml.safe_load(path.read_text())
    assert isinstance(content, dict)
    return content


def commands(workflow: Path) -> list[str]:
    return [step["run"] for job in parsed(workflow)["jobs"].values() for step in job["steps"] if "run" in step]


def test_the_workflow_calls_make_test_check_and_coverage() -> None:
    called = {target for path in WORKFLOWS for text in commands(path) for target in re.findall(r"\bmake (\w+)", text)}
    assert called == {"test", "check", "coverage"}


def test_the_workflow_has_the_versions_that_the_readme_asks_for() -> None:
    steps = [step for path in WORKFLOWS for job in parsed(path)["jobs"].values() for step in job["steps"]]
    given = {key: value for step in steps for key, value in step.get("with", {}).items() if key.endswith("-version")}
    assert given == {"python-version": "3.11", "java-version": "17", "node-version": "20"}
    readme = (ROOT / "README.md").read_text()
    assert all(text in readme for text in ("Python 3.11", "JDK 17", "Node 20"))


def test_the_hooks_are_the_linters_of_make_and_of_the_web_packages() -> None:
    hooks = [hook for repo in parsed(ROOT / ".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    lint = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert lint
    tools = {re.sub(r"^\$\(BIN\)/|( --\S+)| \.$", "", line.strip()) for line in lint[1].splitlines()}
    ours = {re.sub(r"^\.venv/bin/|( --\S+)", "", hook["entry"]) for hook in hooks if ".venv" in hook["entry"]}
    assert ours == tools
    (web,) = (hook["entry"] for hook in hooks if "npm" in hook["entry"])
    assert web.split()[-1] in json.loads((ROOT / "web" / "package.json").read_text())["scripts"]


@pytest.mark.parametrize(
    "form", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml")), ids=lambda path: path.stem
)
def test_a_form_for_issues_has_what_the_host_asks_for(form: Path) -> None:
    content = parsed(form)
    assert {"name", "description", "body"} <= content.keys()
    ids = [part["id"] for part in content["body"] if part["type"] != "markdown"]
    assert len(ids) == len(set(ids)) > 0
