"""`livetables doctor`: checks everything that livetables needs, and reports what is wrong and how to fix it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict

from rich.console import Console
from rich.markup import escape

from livetables.cli.options import add_config_option, config_path
from livetables.doctor import kafka, machine, sampling, service
from livetables.doctor.check import Check, Facts, Finding, State, examined
from livetables.model.errors import ConfigError

EXAMPLES = """examples:
  livetables doctor --config my.toml                    before the first `livetables up --config my.toml`
  livetables doctor                                     of what runs in this directory, or the shipped preset
  livetables doctor --config my.toml --sample 2000      judges more records of each topic
  livetables doctor --json | jq '.checks[] | select(.state == "broken")'

Nothing is changed: no topic is made, no record is written, and records are read without a consumer group.
Ends with 0 when all is well or there are only warnings (!), with 1 when something is broken (✗).
"""
MARKS: dict[State, tuple[str, str]] = {
    "ok": ("✓", "green"),
    "warning": ("!", "yellow"),
    "broken": ("✗", "red"),
    "skipped": ("-", "dim"),
}
PLAIN_MARKS: dict[State, str] = {"ok": "+", "warning": "!", "broken": "x", "skipped": "-"}
NAME_WIDTH = 20

CHECKS = (
    Check("Python", machine.python),
    Check("Java", machine.java, "asking Java for its version"),
    Check("configuration", service.configuration),
    Check("jars", machine.jars, "looking for the jars; the first time, fetching them", seconds_max=900),
    Check("memory", machine.memory, needs=("configuration",)),
    Check("disk", machine.disk, needs=("configuration",)),
    Check("open files", machine.open_files),
    Check("ports", service.ports, needs=("configuration",)),
    Check("certificate", service.certificate, needs=("configuration",)),
    Check("server", service.server, needs=("configuration",)),
    Check("broker", kafka.broker, "connecting to the broker", needs=("configuration",), seconds_max=60),
    Check(
        "login",
        kafka.login,
        "starting Java, and logging in to Kafka",
        needs=("Java", "jars", "configuration", "broker"),
        seconds_max=120,
    ),
    Check("topics", kafka.topics, "looking at the topics", needs=("login",), seconds_max=60),
    Check("control topic", kafka.control, needs=("login",), seconds_max=60),
    Check(
        "control cluster",
        kafka.control_cluster,
        "logging in to the cluster of the control topic",
        needs=("Java", "jars", "configuration"),
        seconds_max=120,
    ),
    Check(
        "records",
        sampling.records,
        "reading the last records of each topic, and judging them in Spark",
        needs=("login",),
        seconds_max=240,
    ),
    Check("clock", service.clock, needs=("configuration",)),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `livetables doctor`."""
    parser.epilog = EXAMPLES
    add_config_option(parser)
    parser.add_argument(
        "--sample", type=int, default=200, metavar="N", help="how many records of each topic; default: %(default)d"
    )
    parser.add_argument("--json", action="store_true", help="print what was found as JSON, at the end")


def run(arguments: argparse.Namespace) -> int:
    """Runs every check, prints what each finds as it does, and ends with 1 if anything is broken."""
    if arguments.sample < 1:
        raise ConfigError(f"--sample is {arguments.sample}", "give --sample a number from 1 on")
    console = Console(highlight=False)
    findings: list[Finding] = []
    with ExitStack() as at_the_end:
        notify = at_the_end.enter_context(_waiting(Console(stderr=True, highlight=False)))
        facts = Facts(os.environ, config_path(arguments), arguments.sample, at_the_end)
        for finding in examined(CHECKS, facts, notify):
            findings.append(finding)
            if not arguments.json:
                show(console, finding)
    broken = sum(finding.state == "broken" for finding in findings)
    warnings = sum(finding.state == "warning" for finding in findings)
    if arguments.json:
        worst = "broken" if broken else "warning" if warnings else "ok"
        print(json.dumps({"state": worst, "checks": [asdict(finding) for finding in findings]}, indent=2))
    else:
        console.print(f"\nbroken: {broken}, warnings: {warnings}" if broken or warnings else "\nall is well")
    return 1 if broken else 0


def show(console: Console, finding: Finding) -> None:
    """A line for what was found, and one for the cure."""
    mark, style = MARKS[finding.state]
    if "utf" not in console.encoding.lower():
        mark = PLAIN_MARKS[finding.state]
    name = escape(f"{finding.name:<{NAME_WIDTH}}")
    console.print(f"[{style}]{mark}[/] {name} {escape(finding.found)}", soft_wrap=True)
    if finding.cure:
        console.print(f"  {'':<{NAME_WIDTH}} cure: {escape(finding.cure)}", soft_wrap=True)


@contextmanager
def _waiting(console: Console) -> Iterator[Callable[[str], None]]:
    """Shows what is waited for, in a terminal; elsewhere only what was found is worth a line."""
    if not (console.is_terminal and sys.stdout.isatty()):
        yield lambda _: None
        return
    with console.status("") as line:
        yield lambda text: line.update(escape(text))
