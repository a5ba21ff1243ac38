"""The program `livetables`: finds the command, runs it, and turns errors into two lines and an exit code."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Protocol, cast

from livetables.model.errors import LivetablesError, SetupError

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130
EXIT_CLOSED_PIPE = 141

EXAMPLES = """examples:
  livetables up --demo                        see it work: Kafka, Spark, the server, and live joined tables
  livetables init                             a configuration for your own topics, with what is found in them
  livetables doctor --config my.toml          whether everything is there that it needs, and how to fix it
  livetables up --config my.toml              the same on your own topics
  livetables status                           what runs here, and how fresh the tables are
  livetables tail final_ui                    a table's newest rows, as they come
  livetables control --users-topic user_2     re-point a table to another topic while people watch
  livetables up --help                        every option of a command, with examples
"""


class CommandModule(Protocol):
    """What the module of a command has."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, arguments: argparse.Namespace) -> int: ...


@dataclass(frozen=True)
class Command:
    """A subcommand. Its module is imported only when it is the chosen one: Kafka and Spark take long to load."""

    name: str
    module: str
    help: str

    def load(self) -> CommandModule:
        try:
            return cast(CommandModule, importlib.import_module(self.module))
        except ModuleNotFoundError as error:
            if error.name != self.module:
                raise
            raise SetupError(
                f"`livetables {self.name}` is not in livetables-client, which is the client alone",
                "install the whole in its place: `pip uninstall livetables-client`, then `pip install livetables`",
            ) from None


COMMANDS = (
    Command("up", "livetables.cli.up", "start everything, a broker too if none is configured, and keep it running"),
    Command("init", "livetables.cli.init", "write a configuration for your own topics, with what is found in them"),
    Command("doctor", "livetables.cli.doctor", "check everything that livetables needs, and say how to fix it"),
    Command("serve", "livetables.cli.serve", "keep the tables, and show them over WebSocket, HTTP and Arrow Flight"),
    Command("pipeline", "livetables.cli.pipeline", "read the topics with Spark, join them, and feed the server"),
    Command("control", "livetables.cli.control", "switch to other topics or another join, and show the outcome"),
    Command("tables", "livetables.cli.tables", "list the tables, with their rows and columns"),
    Command("tail", "livetables.cli.tail", "show a table's newest rows as they come: in place, as lines, or as JSON"),
    Command("sql", "livetables.cli.sql", "ask the tables in SQL"),
    Command("status", "livetables.cli.status", "show what is live, how fresh it is, and where everything is"),
    Command(
        "demo-data", "livetables.cli.demo_data", "write users and accounts to Kafka topics, good ones and bad ones"
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `livetables` with these arguments (default: those of the process) and returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(arguments)
    except LivetablesError as error:
        print(f"livetables: {error.problem}\n  cure: {error.cure}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # whoever read the output has had enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python would complain at its end
        return EXIT_CLOSED_PIPE


def _run(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="livetables",
        description="Live, joined, hot-swappable tables from Kafka through Spark.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=_installed())
    command_parsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    chosen: CommandModule | None = None
    for command in COMMANDS:
        command_parser = command_parsers.add_parser(
            command.name,
            help=command.help,
            description=f"{command.help[0].upper()}{command.help[1:]}.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        # Every option before the command ends the program by itself, so a command can only be the first argument.
        if arguments[:1] == [command.name]:
            chosen = command.load()
            chosen.add_arguments(command_parser)
    parsed = parser.parse_args(arguments)
    if chosen is None:
        parser.print_help(sys.stderr)
        return EXIT_ERROR
    return chosen.run(parsed)


def _installed() -> str:
    """Which of the two packages this is from, and its version."""
    try:
        return f"livetables {version('livetables')}"
    except PackageNotFoundError:
        return f"livetables-client {version('livetables-client')}"


if __name__ == "__main__":
    sys.exit(main())
