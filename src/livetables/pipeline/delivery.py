"""The sink of one generation: hands its batches on, and remembers what they had and how the server took them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from livetables.change import Batch, TableShape
from livetables.errors import SinkError
from livetables.pipeline.flight_sink import FlightSink, NoAnswerError, SinkClosedError
from livetables.spec import DEAD_LETTERS


@dataclass
class Delivered:
    """What a generation has delivered, over all starts of its query."""

    upserts: Counter[str] = field(default_factory=Counter)  # by table
    dead_letters: Counter[str] = field(default_factory=Counter)  # by the table they are no rows of
    first_reasons: dict[str, str] = field(default_factory=dict)  # why the first of those is none

    def add(self, batch: Batch) -> None:
        for changes in batch.changes:
            self.upserts[changes.table] += changes.upserts.num_rows
            if changes.table == DEAD_LETTERS:
                for letter in changes.upserts.select(["source", "reason"]).to_pylist():
                    self.dead_letters[letter["source"]] += 1
                    self.first_reasons.setdefault(letter["source"], letter["reason"])


class Delivery:
    """A sink that its query's thread writes to, and the orchestrator's reads from and closes."""

    def __init__(self, sink: FlightSink, delivered: Delivered) -> None:
        self.refused: SinkError | None = None  # the server will never take this generation's next batch
        self.unanswered: SinkError | None = None  # the server was away for longer than patience lasts
        self._sink = sink
        self._delivered = delivered

    def begin(self, generation: str, shapes: Sequence[TableShape]) -> None:
        self._sink.begin(generation, shapes)

    def put(self, batch: Batch) -> None:
        try:
            self._sink.put(batch)
        except NoAnswerError as error:
            self.unanswered = error
            raise
        except SinkClosedError:
            raise
        except SinkError as error:
            self.refused = error
            raise
        self.unanswered = None
        self._delivered.add(batch)

    def publish(self, generation: str) -> None:
        self._sink.publish(generation)

    def drop(self, generation: str) -> None:
        self._sink.drop(generation)

    def close(self) -> None:
        """Nothing will be delivered any more; a wait for the server ends at once, so that the query can be stopped."""
        self._sink.close()
