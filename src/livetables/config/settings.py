"""Reading a section of settings: every problem names its key and its cure, and no secret is shown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TypeGuard, TypeVar

from livetables.model.errors import ConfigError

Default = TypeVar("Default")

REDACTED = "<redacted>"

SECRET_NAME = re.compile(
    r"password|passwd|passphrase|secret|jaas|token|credential|keystore\.key|private\.?key|access\.?key|api\.?key"
    r"|certificate|\.pem|user\.info|oauthbearer\.config",
    re.IGNORECASE,
)
PLAIN_NAME = re.compile(r"\.(url|location|file|path|type|class|ms|seconds|source|algorithm)$", re.IGNORECASE)
SECRET_VALUE = re.compile(r"://[^/\s]*@|(password|passwd|passphrase|secret|token)[\w.]*\s*=", re.IGNORECASE)


class Secret(str):
    """Text that `repr` does not show, so that no value that holds it does; to a client it is the text itself."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(REDACTED)


def guarded(name: str, value: str) -> str:
    """The value, as a `Secret` when the property's name or the value's own look says that it is one."""
    secret_name = SECRET_NAME.search(name) and not PLAIN_NAME.search(name)
    return Secret(value) if secret_name or SECRET_VALUE.search(value) else value


def quoted(value: object) -> str:
    """A value as a message may show it."""
    if isinstance(value, Secret):
        return REDACTED
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "a section"
    return json.dumps(value, ensure_ascii=False, default=str)


def choice(name: str, known: Iterable[str]) -> str:
    """The cure for an unknown name: the known one that is nearest, or else all of them."""
    names = list(known)
    nearest = get_close_matches(name, names, n=1)
    return f'did you mean "{nearest[0]}"?' if nearest else f"use one of {', '.join(names)}"


class Problems:
    """What is wrong with the settings, gathered so that one error can tell all of it."""

    def __init__(self) -> None:
        self._found: list[tuple[str, str]] = []

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, key: str, problem: str, cure: str) -> None:
        self._found.append((f"{key}: {problem}", cure))

    def raise_if_any(self) -> None:
        if len(self._found) == 1:
            raise ConfigError(*self._found[0])
        if self._found:
            lines = (f"\n  - {problem}; {cure}" for problem, cure in self._found)
            raise ConfigError(f"{len(self._found)} settings do not fit{''.join(lines)}", "mend each as its line says")


class Section:
    """One section. Each reader gives a value of its type; where there is none, it adds a problem and gives a blank."""

    def __init__(self, key: str, raw: object, problems: Problems) -> None:
        if not isinstance(raw, dict):
            problems.add(key, f"must be a section, not {quoted(raw)}", f"write it as [{key}]")
            raw = {}
        self.key = key
        self.raw: dict[str, object] = raw
        self._problems = problems

    def add(self, name: str, problem: str, cure: str) -> None:
        self._problems.add(f"{self.key}.{name}", problem, cure)

    def section(self, name: str) -> Section:
        return Section(f"{self.key}.{name}", self.raw.get(name, {}), self._problems)

    def only(self, known: Iterable[str]) -> None:
        """Report every key that is not known. Its value may be a secret in the wrong place: it is never shown."""
        for name in sorted(self.raw.keys() - set(known)):
            self.add(name, "unknown key", choice(name, known))

    def text(self, name: str, default: str = "") -> str:
        """Text that is not empty; it must be there if it has no default."""
        if name not in self.raw:
            if not default:
                self.add(name, "is missing", f'add {name} = "..." under [{self.key}]')
            return default
        value = self.raw[name]
        if isinstance(value, str) and value:
            return value
        self.add(name, f"must be text, not {quoted(value)}", f'write {name} = "..."')
        return ""

    def texts(self, name: str) -> tuple[str, ...]:
        value = self.raw.get(name, [])
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        self.add(name, f"must be a list of texts, not {quoted(value)}", f'write {name} = ["...", "..."]')
        return ()

    def count(self, name: str, default: Default, at_least: int = 1) -> int | Default:
        """A whole number from 1 on, or from another on."""
        if name not in self.raw:
            return default
        value = self.raw[name]
        if _is_whole(value) and value >= at_least:
            return value
        problem = f"must be a whole number from {at_least} on, not {quoted(value)}"
        self.add(name, problem, f"write {name} = {at_least} or more")
        return default

    def switch(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.raw.get(name, default)
        if isinstance(value, bool):
            return value
        self.add(name, f"must be true or false, not {quoted(value)}", f"write {name} = true or {name} = false")
        return default

    def port(self, name: str, default: int) -> int:
        """A TCP port; 0 stands for any free one."""
        value = self.raw.get(name, default)
        if _is_whole(value) and 0 <= value <= 65535:
            return value
        self.add(name, f"must be a port, not {quoted(value)}", f"write {name} = 1 to 65535, or 0 for any free port")
        return default

    def properties(self) -> dict[str, str]:
        """The section as Java properties: dotted names, and every value in its Java text."""
        texts: dict[str, str] = {}
        for name, value in flattened(self.raw):
            if isinstance(value, bool):
                texts[name] = "true" if value else "false"
            elif isinstance(value, str | int | float):
                texts[name] = value if isinstance(value, Secret) else guarded(name, str(value))
            else:
                self.add(name, f"must be text, a number or a boolean, not {quoted(value)}", "write it as text")
        return texts


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def flattened(raw: Mapping[str, object], prefix: str = "") -> Iterable[tuple[str, object]]:
    """TOML reads an unquoted `a.b = 1` as sections in each other: the dotted names again."""
    for name, value in raw.items():
        if isinstance(value, dict):
            yield from flattened(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
