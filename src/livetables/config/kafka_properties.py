"""Kafka client properties under their Java names, pasted as they are from a client that works."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from livetables.config.settings import REDACTED, Problems, Secret, guarded, quoted

# Spark's source sets these itself, and does not start if one of them is given.
REFUSED_BY_SPARK = (
    "key.deserializer",
    "value.deserializer",
    "key.serializer",
    "value.serializer",
    "enable.auto.commit",
    "interceptor.classes",
)

# For every reader: records of an aborted transaction are skipped. A client's own properties win.
READER_DEFAULTS: Mapping[str, str] = {"isolation.level": "read_committed"}

KEY_AND_VALUE = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
ESCAPE = re.compile(r"\\(u.{0,4}|.)", re.DOTALL)
CONTROL_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


@dataclass(frozen=True, repr=False)
class KafkaConfig:
    """The client properties. Only `client_properties` returns the secrets among them.

    `ignored` names the properties that were given but that Spark's source refuses.
    """

    _properties: Mapping[str, str]
    ignored: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        values = {
            name: value if isinstance(value, Secret) else guarded(name, value)
            for name, value in self._properties.items()
        }
        object.__setattr__(self, "_properties", values)

    def __repr__(self) -> str:
        return f"KafkaConfig({self.redacted()}, ignored={self.ignored})"

    @property
    def bootstrap_servers(self) -> str | None:
        """None: `livetables up` starts a broker of its own."""
        return self._properties.get("bootstrap.servers")

    def client_properties(self) -> dict[str, str]:
        """Return all properties with their real values, for a Kafka client and nothing else."""
        return {name: str(value) for name, value in self._properties.items()}

    def redacted(self) -> dict[str, str]:
        """Return all properties, with secrets redacted."""
        return {name: REDACTED if isinstance(value, Secret) else value for name, value in self._properties.items()}


def read_kafka(
    properties: Mapping[str, str], problems: Problems, key: str = "kafka"
) -> tuple[KafkaConfig, Literal["earliest", "latest"]]:
    """Return the client's properties in the section `key`, and where tables start by default (`auto.offset.reset`)."""
    kept = {name: value for name, value in properties.items() if name not in REFUSED_BY_SPARK}
    if kept.get("bootstrap.servers") == "":
        problems.add(f"{key}.bootstrap.servers", "is empty", "write host:port, or remove it to have a broker started")
    reset = kept.pop("auto.offset.reset", "earliest")
    if reset not in ("earliest", "latest"):
        cure = "use earliest or latest, or set start for each table"
        problems.add(f"{key}.auto.offset.reset", f"unknown start {quoted(reset)}", cure)
    ignored = tuple(name for name in properties if name in REFUSED_BY_SPARK)
    return KafkaConfig(kept, ignored), "latest" if reset == "latest" else "earliest"


def parse_properties(text: str) -> dict[str, str]:
    """Read the text of a .properties file as Java's `Properties.load` does; a ValueError names a malformed line."""
    properties = {}
    for line in _logical_lines(text):
        match = KEY_AND_VALUE.fullmatch(line)
        assert match, "a logical line never ends within an escape"
        properties[_unescaped(match[1])] = _unescaped(match[2])
    return properties


def _logical_lines(text: str) -> Iterator[str]:
    """Yield lines without comments and blanks, joined where one ends in an odd number of backslashes."""
    logical = ""
    for natural in re.split(r"\r\n|\r|\n", text):
        line = natural.lstrip(" \t\f")
        if not logical and line.startswith(("#", "!")):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        continued = backslashes % 2 == 1
        logical += line[:-1] if continued else line
        if logical and not continued:
            yield logical
            logical = ""
    if logical:
        yield logical


def _unescaped(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        escape = match[1]
        if not escape.startswith("u"):
            return CONTROL_ESCAPES.get(escape, escape)
        if not re.fullmatch(r"u[0-9A-Fa-f]{4}", escape):
            raise ValueError("a \\u escape without four hexadecimal digits")
        return chr(int(escape[1:], 16))

    # Java's characters are UTF-16: two escapes can be the halves of one character.
    return ESCAPE.sub(character, text).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
