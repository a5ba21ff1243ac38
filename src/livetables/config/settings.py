"""Reading a section of settings: every problem names its key and its fix, and no secret is shown."""

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
    """Text that `repr` does not show, nor any value that contains it; to a client it is the text itself."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(REDACTED)


def guarded(name: str, value: str) -> str:
    """Return the value, as a `Secret` if the name of the property or the form of the value suggests one."""
    secret_name = SECRET_NAME.search(name) and not PLAIN_NAME.search(name)
    return Secret(value) if secret_name or SECRET_VALUE.search(value) else value


def quoted(value: object) -> str:
    """Return a value as an error message may show it."""
    if isinstance(value, Secret):
        return REDACTED
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "a section"
    return json.dumps(value, ensure_ascii=False, default=str)


def choice(name: str, known: Iterable[str]) -> str:
    """Return the fix for an unknown name: the nearest known one, or else all of them."""
    names = list(known)
    nearest = get_close_matches(name, names, n=1)
    return f'did you mean "{nearest[0]}"?' if nearest else f"use one of {', '.join(names)}"


class Problems:
    """All problems of the settings, collected for one error."""

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
            raise ConfigError(f"{len(self._found)} invalid settings{''.join(lines)}", "fix each as described")


class Section:
    """One section. Each method returns a value of its type; an invalid one adds a problem and returns a blank."""

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
        """Report every unknown key. Its value is never shown: it may be a secret in the wrong place."""
        for name in sorted(self.raw.keys() - set(known)):
            self.add(name, "unknown key", choice(name, known))

    def text(self, name: str, default: str = "") -> str:
        """Return text that is not empty; it is required if it has no default."""
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
        """Return a whole number of at least 1, or another minimum."""
        if name not in self.raw:
            return default
        value = self.raw[name]
        if _is_whole(value) and value >= at_least:
            return value
        problem = f"must be a whole number from {at_least} on, not {quoted(value)}"
        self.add(name, problem, f"write {name} = {at_least} or more")
        return default

    def switch(self, name: str, default: bool) -> bool:
        """Return true or false."""
        value = self.raw.get(name, default)
        if isinstance(value, bool):
            return value
        self.add(name, f"must be true or false, not {quoted(value)}", f"write {name} = true or {name} = false")
        return default

    def port(self, name: str, default: int) -> int:
        """Return a TCP port; 0 means any free one."""
        value = self.raw.get(name, default)
        if _is_whole(value) and 0 <= value <= 65535:
            return value
        self.add(name, f"must be a port, not {quoted(value)}", f"write {name} = 1 to 65535, or 0 for any free port")
        return default

    def properties(self) -> dict[str, str]:
        """Return the section as Java properties: dotted names, and every value as Java writes it."""
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
    """Yield dotted names again: TOML reads an unquoted `a.b = 1` as nested sections."""
    for name, value in raw.items():
        if isinstance(value, dict):
            yield from flattened(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
