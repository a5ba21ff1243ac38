"""Kafka's secrets kept out of every message: what Java says may hold a password."""

from __future__ import annotations

import re
from collections.abc import Mapping

from livetables.config.settings import REDACTED, Secret, guarded

GIVEN_IN_SECRET = re.compile(r"""=\s*(?:"([^"]+)"|'([^']+)'|([^\s;"']+))""")
WORD_IN_SECRET = re.compile(r"""([^\s;"'=]+)(\s*=)?""")
JAAS_WORDS = ("required", "requisite", "sufficient", "optional")


class Redaction:
    """Takes what properties keep secret out of any text."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._secrets = _secrets(properties)

    def applied(self, text: str) -> str:
        for secret in self._secrets:
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", REDACTED, text)
        return REDACTED if isinstance(guarded("message", text), Secret) else text


def _secrets(properties: Mapping[str, str]) -> list[str]:
    """The values that no message may show, and what is given within them: `password="…"`. Longest first."""
    values = [v for n, v in properties.items() if isinstance(v, Secret) or isinstance(guarded(n, v), Secret)]
    given = [part for value in values for parts in GIVEN_IN_SECRET.findall(value) for part in parts]
    # Of one that is written wrongly, Java shows the word that it stumbles over. The first names a class.
    words = [word for value in values for word, is_name in WORD_IN_SECRET.findall(value)[1:] if not is_name]
    within = [part for part in (*given, *words) if part and part not in JAAS_WORDS]
    return sorted({*map(str, values), *within} - {""}, key=len, reverse=True)
