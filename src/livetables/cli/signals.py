"""Ctrl-C and SIGTERM as an event, for commands that end by themselves."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C or SIGTERM sets; the next one does what it always did.

    An exception in the middle of a record would leave open whether that record was sent and counted.
    """
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.set()
        restore()

    for number in before:
        signal.signal(number, on_signal)
    try:
        yield stop
    finally:
        restore()
