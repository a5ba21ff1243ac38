"""The steps of the orchestrator, each a line of the log."""

from __future__ import annotations

import logging

from livetables import log

_log = logging.getLogger("livetables.control")


def log_event(event: str, **values: object) -> None:
    """Log a step. A value that is None is left out."""
    log.log_event(_log, event, logging.INFO, **values)


def warn(event: str, **values: object) -> None:
    """Log something that an operator should check."""
    log.log_event(_log, event, logging.WARNING, **values)
