"""What several commands have in common: the configuration, the log, and how the server is found."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from livetables.client import Connection
from livetables.client.http import HttpClient
from livetables.client.local_system import Addresses, LocalSystem, reachable
from livetables.config.load import load_config, server_ca, server_token
from livetables.config.values import Config
from livetables.model.errors import ConfigError

PRIVATE = 0o077
SERVER_VARIABLES = {"LIVETABLES_SERVER_HOST", "LIVETABLES_SERVER_PORT"}


def add_config_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="configuration file (TOML); or set LIVETABLES_CONFIG"
    )


def config_path(arguments: argparse.Namespace) -> Path | None:
    """The configuration file that was chosen, if any."""
    path: Path | None = arguments.config
    return path or (Path(os.environ["LIVETABLES_CONFIG"]) if "LIVETABLES_CONFIG" in os.environ else None)


def chosen_config(arguments: argparse.Namespace) -> Config:
    return load_config(config_path(arguments), os.environ)


def keep_files_private() -> None:
    """Let nobody but this user read or write the files that this process and those that it starts make from now on."""
    os.umask(os.umask(PRIVATE) | PRIVATE)


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """How to find the server: of what runs in this directory, unless an option names another."""
    add_config_option(parser)
    parser.add_argument(
        "--url", metavar="URL", help="the server's address, like http://127.0.0.1:8765; its key is LIVETABLES_TOKEN"
    )
    parser.add_argument(
        "--ca",
        type=Path,
        metavar="FILE",
        help="certificates (PEM) that vouch for an https server: its authority's or its own; default: the "
        "configuration's, or else the system's",
    )


def chosen_server(arguments: argparse.Namespace) -> Connection:
    """The server that is meant. Nothing is asked of it yet."""
    http_client, _ = server_and_addresses(arguments)
    return Connection(http_client)


def server_and_addresses(arguments: argparse.Namespace) -> tuple[HttpClient, Addresses]:
    """The server, and where everything is: what the options name, or else what `livetables up` runs here."""
    config = chosen_config(arguments)
    running = LocalSystem.read()
    addresses = _addresses(arguments, config, running)
    token = server_token(config, os.environ)
    if token is None and running and running.addresses.http == addresses.http:
        token = running.key
    if token is None:
        raise ConfigError(
            f"there is no key for the server at {addresses.http}",
            "set LIVETABLES_TOKEN to it, or run this in the directory where `livetables up` runs",
        )
    known_ca = running.ca_file if running and running.addresses.http == addresses.http else None
    ca_file = arguments.ca or (Path(known_ca) if known_ca else server_ca(config))
    return HttpClient(addresses.http, token, ca_file=ca_file), addresses


def _addresses(arguments: argparse.Namespace, config: Config, running: LocalSystem | None) -> Addresses:
    server, host = config.server, reachable(config.server.host)
    http, grpc = server.schemes
    configured = Addresses(
        config.kafka.bootstrap_servers, f"{http}://{host}:{server.port}", f"{grpc}://{host}:{server.flight_port}"
    )
    if arguments.url:
        url = arguments.url.rstrip("/")
        known = (each for each in (running and running.addresses, configured) if each and each.http == url)
        return next(known, Addresses(None, url, None))
    is_configured = bool(config_path(arguments)) or bool(SERVER_VARIABLES & os.environ.keys())
    if running and not (is_configured and server.port):
        return running.addresses
    return configured
