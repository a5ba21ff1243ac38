"""`livetables serve`: keep the tables and show them to browsers, Python and everybody else with the key."""

from __future__ import annotations

import argparse
import asyncio
import os

from livetables.cli.options import add_config_option, chosen_config, keep_files_private
from livetables.config.load import server_keys, server_token_file
from livetables.log import log_to_stderr
from livetables.model.roles import RoleKey
from livetables.server.access.key import generated_token
from livetables.server.main import Addresses, serve

try:
    import uvloop
except ModuleNotFoundError:  # Windows
    uvloop = None  # type: ignore[assignment]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `livetables serve`."""
    add_config_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """Serve until it is stopped."""
    config = chosen_config(arguments)
    keep_files_private()
    log_to_stderr()
    made: tuple[RoleKey, ...] = ()
    keys = server_keys(config, os.environ)
    if server_token_file(config, os.environ) is None and all(key.role != "operator" for key in keys):
        made = (RoleKey(generated_token()),)
        print(
            f"key: {made[0].token}  (made for this run; set LIVETABLES_TOKEN or server.token_file to choose it)",
            flush=True,
        )

    def ready(addresses: Addresses) -> None:
        print(f"serving {addresses.http}  Flight {addresses.flight}  (Ctrl-C stops)", flush=True)

    serving = serve(config.server, lambda: (*server_keys(config, os.environ), *made), ready)
    asyncio.run(serving) if uvloop is None else uvloop.run(serving)
    print("stopped", flush=True)
    return 0
