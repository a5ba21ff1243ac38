"""Which pipeline may write: the one that started last. Every other number is refused.

A store that is new belongs to no pipeline. If the one before it was lost, a pipeline may still run on it, and keeps its
number. Only then is a number taken that was not given out here, and only if more come after it: whoever sends a wrong
one may take the server from the pipeline that runs, but not from those that start later.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from livetables.model.wire import Holder
from livetables.server.storage.database import Database
from livetables.server.storage.frames import FrameError
from livetables.server.storage.holding import Holding

NO_PIPELINE = 0
ADOPTED_MAX = 1_000_000_000  # of numbers that another store gave out: a start each second for 30 years


class Fencing:
    """The number of the pipeline that the server belongs to, which the database keeps."""

    def __init__(self, database: Database, holding: Holding) -> None:
        self._database = database
        self._holding = holding
        ((number,),) = database.writer.execute("SELECT number FROM livetables.pipeline").fetchall()
        self._number = int(number)

    def start_pipeline(self, holder: Holder | None = None, replaces: str | None = None) -> int:
        """The number of a pipeline that starts now; those before it are refused from now on.

        It is refused itself while another one is heard, but for the process that it `replaces`.
        """
        with self._database.writing:
            if not self._holding.is_free_for(holder, replaces):
                raise FrameError(
                    "held",
                    f"this server belongs to pipeline {self._number}: {self._holding.holder}",
                    "stop that one, or give this one a server of its own; it takes over when the other has gone",
                )
            self._adopt(self._number + 1)
            self._holding.taken_by(holder)
            return self._number

    @contextmanager
    def held_by(self, number: int) -> Iterator[None]:
        """Let no other pipeline take over while this one writes."""
        with self._database.writing:
            self.check(number)
            yield

    def check(self, number: int) -> None:
        """Refuse every pipeline but the one that started last. A new store belongs to the first that is heard."""
        if self._number == NO_PIPELINE and NO_PIPELINE < number <= ADOPTED_MAX:
            with self._database.writing:
                if self._number == NO_PIPELINE:
                    self._adopt(number)
        self.check_known(number)

    def check_known(self, number: int) -> None:
        """Refuse every pipeline but the one that started last, without waiting for whoever writes."""
        if number != self._number:
            holder = self._holding.holder
            raise FrameError(
                "fenced",
                f"pipeline {number} asks, but this server belongs to pipeline {self._number} now"
                + (f": {holder}" if holder else ""),
                "another pipeline has taken over this server: stop one of the two, or give it a server of its own"
                if number < self._number
                else "this number was not given out, or the store lost the end of its log: start the pipeline again",
            )

    def _adopt(self, number: int) -> None:
        with self._database.transaction() as run:
            run("UPDATE livetables.pipeline SET number = ?", [number])
        self._number = number
