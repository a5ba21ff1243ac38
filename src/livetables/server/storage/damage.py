"""A store whose files are damaged: it is kept under another name, and the tables are built again from Kafka."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path

from livetables.log import log_event
from livetables.model.errors import DamagedError
from livetables.server.storage.store import Store

LOG_SUFFIX = ".wal"

log = logging.getLogger(__name__)


def opened(path: Path | None, memory_megabytes: int) -> Store:
    """The store at a path; a new one if that is damaged, which is kept aside."""
    try:
        return Store(path, memory_megabytes=memory_megabytes)
    except DamagedError as error:
        assert path, "memory cannot be damaged"
        set_aside(path, error.problem)
        return Store(path, memory_megabytes=memory_megabytes)


def set_aside(path: Path, problem: str) -> Path:
    """Give the files of a store a name that says that they are damaged, and log it."""
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%fZ")
    aside = path.with_name(f"{path.name}.damaged-{moment}")
    # The log first: a crash in between leaves no new store beside the old one's log.
    for suffix in (LOG_SUFFIX, ""):
        file = path.with_name(path.name + suffix)
        if file.exists():
            file.rename(aside.with_name(aside.name + suffix))
    log_event(log, "store_damaged", logging.ERROR, path=path, kept=aside, problem=problem)
    return aside
