"""The entry point: help without loading a command, errors as two lines, exit codes."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from livetables.cli import main as entry
from livetables.cli import tail
from livetables.model.errors import SetupError
from livetables.pipeline.flow.plan import DEAD_LETTER_SCHEMA

PRINT_LOADED = """
import sys
from livetables.cli.main import main
try:
    main(["--help"])
except SystemExit:
    pass
heavy = [name for name in ("confluent_kafka", "pyspark", "rich", "livetables.cli.demo_data") if name in sys.modules]
print("loaded:", heavy)
"""


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[argparse.Namespace], int]], None]:
    """Makes `livetables greet NAME` the only command, doing what the test says."""

    class Greet:
        def __init__(self, run: Callable[[argparse.Namespace], int]) -> None:
            self.run = run

        def add_arguments(self, parser: argparse.ArgumentParser) -> None:
            parser.add_argument("name")

    def register(run: Callable[[argparse.Namespace], int]) -> None:
        monkeypatch.setattr(entry, "COMMANDS", (entry.Command("greet", "greet", "say hello"),))
        monkeypatch.setitem(sys.modules, "greet", Greet(run))

    return register


def test_a_command_gets_its_arguments_and_gives_the_exit_code(
    command: Callable[[Callable[[argparse.Namespace], int]], None],
) -> None:
    command(lambda arguments: len(arguments.name))
    assert entry.main(["greet", "world"]) == 5


def test_an_error_is_its_problem_and_its_cure(
    command: Callable[[Callable[[argparse.Namespace], int]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: argparse.Namespace) -> int:
        raise SetupError("there is no kettle", "buy one")

    command(fail)
    assert entry.main(["greet", "world"]) == 2
    assert capsys.readouterr().err == "livetables: there is no kettle\n  cure: buy one\n"


def test_ctrl_c_ends_quietly(
    command: Callable[[Callable[[argparse.Namespace], int]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    command(interrupted)
    assert entry.main(["greet", "world"]) == 130
    assert capsys.readouterr().err == ""


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main([]) == 2
    assert "examples:" in capsys.readouterr().err


def test_an_unknown_command_is_answered_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        entry.main(["demo-date"])
    assert exit_.value.code == 2
    assert "demo-data" in capsys.readouterr().err


def test_the_help_of_a_command_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        entry.main(["demo-data", "--help"])
    assert exit_.value.code == 0
    assert "examples:" in capsys.readouterr().out


def test_help_loads_no_command() -> None:
    finished = subprocess.run([sys.executable, "-c", PRINT_LOADED], capture_output=True, text=True, check=True)
    assert "loaded: []" in finished.stdout
    assert all(command.name in finished.stdout for command in entry.COMMANDS)


def test_the_example_of_tail_asks_for_columns_that_dead_letters_have() -> None:
    (columns,) = re.findall(r"tail dead_letters --columns (\S+)", tail.EXAMPLES)
    assert set(columns.split(",")) <= set(DEAD_LETTER_SCHEMA.names)
