"""`livetables serve`: keep the tables and show them to browsers, Python and everybody else with the key."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

import uvloop

from livetables.config import load_config, server_token
from livetables.server.key import generated_token
from livetables.server.run import Addresses, serve


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, help="configuration file (TOML); or set LIVETABLES_CONFIG")


def run(arguments: argparse.Namespace) -> int:
    path = arguments.config or (Path(os.environ["LIVETABLES_CONFIG"]) if "LIVETABLES_CONFIG" in os.environ else None)
    config = load_config(path, os.environ)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    token = server_token(config, os.environ)
    if token is None:
        token = generated_token()
        print(f"key: {token}  (made for this run; set LIVETABLES_TOKEN or server.token_file to choose it)", flush=True)

    def ready(addresses: Addresses) -> None:
        print(f"serving {addresses.http}  Flight {addresses.flight}  (Ctrl-C stops)", flush=True)

    uvloop.run(serve(config.server, token, ready))
    print("stopped", flush=True)
    return 0
