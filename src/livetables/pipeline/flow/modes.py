"""How a generation reads its topics: a backlog in micro-batches, current records in real time. Pure.

Both modes share the checkpoint, so changing from one to the other costs a stop and a start, well under a second. What
real time has read since its last batch boundary is read again then, which is why it is not changed for every peak.
"""

from __future__ import annotations

from typing import Literal

Mode = Literal["micro_batch", "real_time"]

LAG_SMALL = 150_000  # records that real time reads in a few seconds, sooner than two starts of a query
LAG_LARGE = 300_000  # records that micro-batches read sooner
LAG_SECONDS_SMALL, LAG_SECONDS_LARGE = 2.0, 10.0  # the same, where more come in such a time
PATIENCE_SECONDS = 5.0  # with a large lag, until micro-batches take over
REST_SECONDS, REST_SECONDS_MAX = 15.0, 300.0  # in micro-batches, when real time could not keep up
REPLAY_RECORDS_MAX = 2_000_000  # that Spark may have to read again after a crash in real time
BATCH_SECONDS_MIN = 10
# Of topics, in one process. In real time each has a task that asks Kafka all the time: on two cores 400 start within a
# minute, and 1,000 deliver nothing (measured).
PARTITIONS_MAX = 400


class ModeChoice:
    """Chooses the mode of one generation, given its lag about every second."""

    def __init__(self, partitions_max: int | None = None) -> None:
        """Never choose real time for more partitions than `partitions_max`, if there is a limit."""
        self.mode: Mode = "micro_batch"
        self._partitions_max = partitions_max
        self._rest_until = 0.0
        self._rests = 0
        self._large_since: float | None = None

    def next(self, now: float, lag: int, records_per_second: float, partitions: int = 0) -> Mode:
        """Return the mode to read in from now on, given the lag, and how many records come from how many partitions."""
        if self.at_end(partitions) == "micro_batch":
            self._enter("micro_batch")
            return self.mode
        if self.mode == "micro_batch":
            is_small = lag <= max(LAG_SMALL, LAG_SECONDS_SMALL * records_per_second)
            if is_small and now >= self._rest_until:
                self._enter("real_time")
            return self.mode
        if lag <= max(LAG_LARGE, LAG_SECONDS_LARGE * records_per_second):
            self._large_since = None
        elif self._large_since is None:
            self._large_since = now
        elif now - self._large_since >= PATIENCE_SECONDS:
            self._enter("micro_batch")
            # Otherwise a load between the limits of the two modes would switch it back and forth.
            if now - self._rest_until > REST_SECONDS_MAX:
                self._rests = 0
            self._rest_until = now + min(REST_SECONDS_MAX, REST_SECONDS * 2**self._rests)
            self._rests += 1
        return self.mode

    def at_end(self, partitions: int) -> Mode:
        """Return the mode in which so many partitions are read at the end of their topics."""
        is_too_many = self._partitions_max is not None and partitions > self._partitions_max
        return "micro_batch" if is_too_many else "real_time"

    def leave_real_time(self) -> None:
        """Read in micro-batches, after which Spark reports exactly how far it has come, until `next` is called."""
        self._enter("micro_batch")

    def _enter(self, mode: Mode) -> None:
        self.mode = mode
        self._large_since = None


def batch_seconds(most: int, records_per_second: float) -> int:
    """Return how long a batch in real time lasts: after a crash, everything since its start is read again."""
    if records_per_second * most <= REPLAY_RECORDS_MAX:
        return most
    return max(min(BATCH_SECONDS_MIN, most), int(REPLAY_RECORDS_MAX / records_per_second))
