"""`livetables serve`: keep the tables and show them to browsers, Python and everybody else with the key."""

from __future__ import annotations

import argparse
import asyncio
import os
from functools import partial

from livetables.cli.options import add_config_option, chosen_config, keep_files_private
from livetables.config import server_token, server_token_file, tokens_in
from livetables.log import log_to_stderr
from livetables.server.key import generated_token
from livetables.server.run import Addresses, serve

try:
    import uvloop
except ModuleNotFoundError:  # Windows
    uvloop = None  # type: ignore[assignment]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `livetables serve`."""
    add_config_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """Serves until it is told to stop."""
    config = chosen_config(arguments)
    keep_files_private()
    log_to_stderr()
    token, token_file = server_token(config, os.environ), server_token_file(config, os.environ)
    if token is None:
        token = generated_token()
        print(f"key: {token}  (made for this run; set LIVETABLES_TOKEN or server.token_file to choose it)", flush=True)

    def ready(addresses: Addresses) -> None:
        print(f"serving {addresses.http}  Flight {addresses.flight}  (Ctrl-C stops)", flush=True)

    keys = partial(tokens_in, token_file) if token_file else lambda: (token,)
    serving = serve(config.server, keys, ready)
    asyncio.run(serving) if uvloop is None else uvloop.run(serving)
    print("stopped", flush=True)
    return 0
