"""One line for each step, as key=value, so that people can read it and programs too."""

from __future__ import annotations

import json
import logging
import re

log = logging.getLogger("livetables.control")
PLAIN = re.compile(r"[^\s\"'=]+")


def tell(event: str, **values: object) -> None:
    """Log a step. A value that is None is left out."""
    told = (f"{name}={_shown(value)}" for name, value in values.items() if value is not None)
    log.info(" ".join([f"event={event}", *told]))


def _shown(value: object) -> str:
    text = str(value)
    return text if PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)
