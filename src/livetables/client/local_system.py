"""Addresses of what `livetables up` runs in a directory, for everybody in that directory."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from livetables.config.load import token_in
from livetables.config.settings import Secret

DIRECTORY = Path(".livetables")
EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  hosts to listen on, and how to reach them from here


@dataclass(frozen=True)
class Addresses:
    """Addresses of Kafka and the server's two endpoints, as far as they are known."""

    kafka: str | None
    http: str
    flight: str | None


@dataclass(frozen=True)
class LocalSystem:
    """What `livetables up` leaves for the other commands: the addresses, the key, and the process ids by name.

    A key that is in a file is not written here, but the path of the file: the key may change.
    """

    addresses: Addresses
    token: str | None  # None: it is in the file, see `key`
    pids: Mapping[str, int] = field(default_factory=dict)
    token_file: str | None = None
    ca_file: str | None = None  # what vouches for the server's certificate

    @property
    def key(self) -> str:
        """The key now; a ConfigError says why its file has none."""
        if self.token_file:
            return token_in(self.token_file)
        assert self.token is not None
        return self.token

    @classmethod
    def read(cls, directory: Path = DIRECTORY) -> LocalSystem | None:
        """Read it in this directory; None if it is missing. A system that was killed may have left its own."""
        try:
            written = json.loads((directory / "up.json").read_text())
            addresses, pids, token_file = Addresses(**written["addresses"]), written["pids"], written["token_file"]
            token = None if token_file else Secret(written["token"])
            return cls(addresses, token, pids, token_file, written["ca_file"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, directory: Path = DIRECTORY) -> None:
        """Write it, for this user only, and at once: a reader finds the old or the new, whole."""
        draft = directory / "up.json.draft"
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            written = asdict(self) | ({"token": None} if self.token_file else {})
            json.dump(written, file, indent=2)
        draft.replace(directory / "up.json")


def reachable(host: str) -> str:
    """How what listens on a host is called in a URL, on the same machine."""
    address = EVERY_ADDRESS.get(host, host)
    return f"[{address}]" if ":" in address else address
