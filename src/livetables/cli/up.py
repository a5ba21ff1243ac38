"""`livetables up`: everything on this machine, kept running until Ctrl-C."""

from __future__ import annotations

import argparse
import logging
import math
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from livetables.cli.options import add_config_option, config_path, keep_files_private
from livetables.cli.signals import stopped_by_signals
from livetables.client.local_system import DIRECTORY, Addresses
from livetables.config.declarations import PRESETS
from livetables.config.load import load_config, server_keys, server_token, server_token_file
from livetables.config.values import Config, GenerationsConfig
from livetables.demo.feed import AT_FULL_RATE, LAST
from livetables.demo.records import DemoOptions
from livetables.jvm.jars import engine_jar, jar_directory
from livetables.local.lock import made
from livetables.local.system import System, run_system
from livetables.log import log_to
from livetables.model.errors import ConfigError
from livetables.server.access.key import generated_token

DEMO_LINGER_SECONDS = 300

EXAMPLES = f"""examples:
  livetables up --demo                 a broker, demo records, and their tables, on http://127.0.0.1:8765
  livetables up --demo --rate 20       slow enough to read
  livetables up --config my.toml       your own topics
  livetables up --preset asof          the tables user, account and user_account
  livetables up --origin http://localhost:4200    with a page that `ng serve` serves
  livetables status                    in another terminal of the same directory: what runs

Without kafka.bootstrap.servers in the configuration, a broker is started, and the topics of the tables are made.
Everything is kept in {DIRECTORY}: what is started again goes on where it was. Remove that directory to begin anew.

Demo records end at some point, so that a demo may be left open: after {AT_FULL_RATE:,} there is one a second, and
after {LAST:,} none. `livetables demo-data` sends more.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `livetables up`."""
    parser.epilog = EXAMPLES
    add_config_option(parser)
    parser.add_argument(
        "--preset",
        action="append",
        default=[],
        metavar="NAME",
        help=f"which tables: {', '.join(PRESETS)}; may be repeated, or have commas; default: the configuration's",
    )
    parser.add_argument(
        "--origin",
        action="append",
        default=[],
        metavar="URL",
        help="the origin of another page that may connect, like http://localhost:4200 for `ng serve`; may be repeated",
    )
    parser.add_argument("--demo", action="store_true", help="send demo records to the broker that is started")
    parser.add_argument(
        "--rate", type=float, default=200.0, metavar="N", help="demo records a second; default: %(default)g"
    )


def run(arguments: argparse.Namespace) -> int:
    """Start everything, keep it running until it is stopped, and leave nothing behind."""
    environ = with_options(os.environ, arguments.preset, arguments.origin, config_path(arguments))
    config = load_config(config_path(arguments), environ)
    if arguments.demo:
        _check_demo(config, arguments.rate)
    configured = server_token(config, environ)
    token = configured or generated_token()
    path = config_path(arguments)
    has_pipeline_key = any(key.role == "pipeline" for key in server_keys(config, environ))
    system = System(
        config,
        token,
        None if has_pipeline_key else generated_token(),
        server_token_file(config, environ),
        arguments=["--config", str(path)] if path else [],
        environment=_environment(config, environ, arguments.demo),
        directory=DIRECTORY,
        demo_rate=arguments.rate if arguments.demo else None,
    )
    steps = Steps(Console())
    keep_files_private()
    log_to(logging.FileHandler(made(DIRECTORY / "logs") / "up.log", delay=True))

    def ready(addresses: Addresses) -> None:
        # What follows the # stays in the browser. A key that was chosen is known, and this may be written to a log.
        key = "" if configured else f"#key={token}"
        steps.show("", f"ready: {addresses.http}/{key}")
        if not configured:
            steps.show("       the key in it is for this run: set LIVETABLES_TOKEN or server.token_file for another")
        steps.show("")
        if arguments.demo:
            command = _command()
            steps.show(
                "in another terminal, in this directory:",
                f"  {command} status                         what is live",
                f"  {command} control --users-topic user_2   re-point a table while people look at it",
                f"  {command} control --join natural         another join",
                f"  {command} control --rollback             back again, within {DEMO_LINGER_SECONDS // 60} minutes",
                f"  {command} tail final_ui                  its newest rows, as they come",
                "",
            )
        steps.show("Ctrl-C stops")

    try:
        _fetch_jars(config, steps.notify)  # here, where Ctrl-C still ends at once
        with stopped_by_signals() as stop:
            run_system(system, stop, steps.notify, ready)
    finally:
        steps.show()
    steps.show("stopped; nothing is left running")
    return 0


class Steps:
    """Steps as they happen, a line each; in a terminal, those that differ in their numbers only share a line."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._moving: str | None = None
        self._line = console.status("", spinner="dots") if console.is_terminal else None

    def notify(self, step: str) -> None:
        """Print one step. Any thread may."""
        with self._lock:
            if self._line is None:
                self._print(step)
                return
            if self._moving is not None and _without_numbers(step) != _without_numbers(self._moving):
                self._print(self._moving)
            self._moving = step
            self._line.update(escape(step))
            self._line.start()

    def show(self, *lines: str) -> None:
        """Print what stays to be read; there are no moving lines from now on."""
        with self._lock:
            if self._line is not None:
                self._line.stop()
                self._line = None
            for line in (*([] if self._moving is None else [self._moving]), *lines):
                self._print(line)
            self._moving = None

    def _print(self, line: str) -> None:
        # A full disk or a closed pipe behind the output ends nothing that runs. (For a pipe, rich exits the program.)
        with suppress(OSError, SystemExit):
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)


def _fetch_jars(config: Config, notify: Callable[[str], None]) -> None:
    """Have what the processes need before they are started, and need it in time."""
    if config.kafka.bootstrap_servers is None:
        jar_directory("broker", notify)
    jar_directory("spark", notify)
    engine_jar(notify)


def _command() -> str:
    """How this command is called from here."""
    if shutil.which("livetables"):
        return "livetables"
    program = str(Path(sys.executable).with_name("livetables"))
    return min(os.path.relpath(program), program, key=len)


def with_options(
    environ: Mapping[str, str], presets: Sequence[str], origins: Sequence[str], path: Path | None
) -> dict[str, str]:
    """The environment with what the command line says: these presets, and these origins besides the configured ones."""
    changed = dict(environ)
    if presets:
        changed["LIVETABLES_PRESETS"] = ",".join(presets)
    if origins:
        configured = load_config(path, changed).server.origins
        changed["LIVETABLES_SERVER_ORIGINS"] = ",".join([*configured, *origins])
    return changed


def _environment(config: Config, environ: Mapping[str, str], is_demo: bool) -> dict[str, str]:
    """That of every process. In a demo, unless it is configured, there is time enough to type a rollback."""
    environment = {name: value for name, value in environ.items() if name != "LIVETABLES_CONFIG"}
    if is_demo and config.generations == GenerationsConfig():
        environment["LIVETABLES_GENERATIONS_LINGER_SECONDS"] = str(DEMO_LINGER_SECONDS)
        environment["LIVETABLES_GENERATIONS_MAX_LINGERING"] = "1"
    return environment


def _without_numbers(text: str) -> str:
    return re.sub(r"[0-9,.]+", "0", text)


def _check_demo(config: Config, rate: float) -> None:
    if not 0 < rate < math.inf:
        raise ConfigError(f"--rate is {rate:g}", "give --rate a number greater than 0")
    if config.kafka.bootstrap_servers is not None:
        raise ConfigError(
            "--demo sends demo records to a broker of its own, but kafka.bootstrap.servers is configured",
            "leave --demo out, or the setting; `livetables demo-data` sends demo records to any broker",
        )
    topics = {table.name: table.topic for table in config.spec.tables}
    demo = DemoOptions()
    if (topics.get("users"), topics.get("accounts")) != (demo.users_topic, demo.accounts_topic):
        raise ConfigError(
            f"--demo fills the topics {demo.users_topic} and {demo.accounts_topic}, "
            "but the tables users and accounts are configured otherwise",
            "leave --demo out, or let presets and topics be the shipped ones",
        )
