"""How long records take from Kafka to here, phase by phase: of a change, and of the last minute."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WINDOW_SECONDS = 60.0
RECEIPTS_MAX = 6_000  # 100 a second; when more come, the oldest go before their minute is over


@dataclass(frozen=True)
class Receipt:
    """When the newest record of a change was in Kafka, left Spark, was applied and sent by the server, and came here.

    In ms since 1970: `received` by the server's clock, the others by the clocks of those who measured.
    """

    kafka: float
    spark: float
    applied: float
    sent: float
    received: float

    @property
    def phases_ms(self) -> dict[str, float]:
        return {
            "kafka_to_spark": self.spark - self.kafka,
            "spark_to_applied": self.applied - self.spark,
            "applied_to_sent": self.sent - self.applied,
            "sent_to_received": self.received - self.sent,
        }

    @property
    def latency_ms(self) -> float:
        """The whole way."""
        return self.received - self.kafka


@dataclass(frozen=True)
class Percentiles:
    """What half of all values, and 99 of 100, are not above."""

    p50: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Percentiles:
        ordered = sorted(values)
        return cls(*(ordered[-(-len(ordered) * percent // 100) - 1] for percent in (50, 99)))


@dataclass(frozen=True)
class Latency:
    """The latencies of the changes of the last minute, in ms: the whole way, and by phase."""

    changes: int
    whole: Percentiles
    phases: Mapping[str, Percentiles]


class LastMinute:
    """The receipts of the last minute. Any thread may use it; it is given the time, in seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._receipts: deque[tuple[float, Receipt]] = deque(maxlen=RECEIPTS_MAX)

    def add(self, receipt: Receipt, now: float) -> None:
        with self._lock:
            self._receipts.append((now, receipt))

    def summary(self, now: float) -> Latency | None:
        """Their latencies; None if there are none."""
        with self._lock:
            while self._receipts and self._receipts[0][0] <= now - WINDOW_SECONDS:
                self._receipts.popleft()
            receipts = [receipt for _, receipt in self._receipts]
        if not receipts:
            return None
        by_phase = [receipt.phases_ms for receipt in receipts]
        return Latency(
            len(receipts),
            Percentiles.of([receipt.latency_ms for receipt in receipts]),
            {phase: Percentiles.of([each[phase] for each in by_phase]) for phase in by_phase[0]},
        )
