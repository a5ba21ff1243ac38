"""One line for each event, as key=value, the same in every process, so that people can read it and programs too.

    time=2026-01-31T12:00:00.123Z level=info logger=livetables.control event=switched generation=g2 why="all is read"

What is not an event has a `message` instead; an exception's trace is in the same line, as `trace`.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

BURST = 10  # lines of an event that clients cause, at once
LINES_A_SECOND = 1.0  # of it after that
PLAIN = re.compile(r"[^\s\"'=\\]+")
PAIRS = "pairs"  # what marks a record whose message is key=value already


def log_event(log: logging.Logger, event: str, level: int = logging.INFO, **values: object) -> None:
    """Log an event. A value that is None is left out."""
    log.log(level, _pairs({"event": event, **values}), extra={PAIRS: True})


def log_to(handler: logging.Handler) -> None:
    """Have the log of this process written, in the one form that it has everywhere."""
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def log_to_stderr() -> None:
    log_to(logging.StreamHandler(sys.stderr))


class Throttle:
    """Keeps an event that clients cause from flooding the log: the lines left out are counted in the next one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._left: dict[str, tuple[float, float]] = {}  # by event: lines it may still have, as of when
        self._left_out: dict[str, int] = {}

    def log_event(self, log: logging.Logger, event: str, level: int = logging.INFO, **values: object) -> None:
        now = self._clock()
        with self._lock:
            left, then = self._left.get(event, (BURST, now))
            left = min(BURST, left + (now - then) * LINES_A_SECOND)
            is_due = left >= 1
            self._left[event] = (left - is_due, now)
            if is_due:
                left_out = self._left_out.pop(event, None)
            else:
                self._left_out[event] = self._left_out.get(event, 0) + 1
        if is_due:
            log_event(log, event, level, **values, left_out=left_out)


class LineFormatter(logging.Formatter):
    """A record as one line."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        heading = _pairs({"time": moment, "level": record.levelname.lower(), "logger": record.name})
        message = record.getMessage()
        content = message if getattr(record, PAIRS, False) else _pairs({"message": message})
        trace = self.formatException(record.exc_info) if record.exc_info else None
        return " ".join(filter(None, [heading, content, _pairs({"trace": trace})]))


def _pairs(values: dict[str, object]) -> str:
    return " ".join(f"{name}={_shown(value)}" for name, value in values.items() if value is not None)


def _shown(value: object) -> str:
    text = str(value)
    return text if PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)
