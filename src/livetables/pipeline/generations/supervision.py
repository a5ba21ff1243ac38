"""The generations that run, and what can befall them: queries that die, topics that change, a server that forgets."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from livetables.kafka.topics import KafkaTopics, Topic, TopicProblem, was_replaced
from livetables.model.errors import SinkError
from livetables.pipeline.flow.plan import shapes
from livetables.pipeline.generations.generation import RunningGeneration
from livetables.pipeline.log import log_event
from livetables.pipeline.server_client import FlightSink, NoAnswerError, StoredGeneration

COUNT_SECONDS = 5.0  # between two questions to the server how many rows it has
LOOK_SECONDS = 1.0  # between two looks at the topics of what runs, and at how far it is
LOOK_SHARE_MAX = 0.1  # of the time may go into that: a thousand partitions take a while
BLOCKED_SECONDS = 2.0  # between two looks at topics that cannot be read


@dataclass
class RunningGenerations:
    """All generations that there are: at most one is live, at most one is being built to take its place."""

    live: RunningGeneration | None = None
    build: RunningGeneration | None = None
    lingering: list[RunningGeneration] = field(default_factory=list)  # newest first
    query_restarts: int = 0

    def all(self) -> list[RunningGeneration]:
        return [each for each in (self.live, self.build, *self.lingering) if each]


class Supervision:
    """Starts queries, and starts again those that died, for as long as their topics are still those they read."""

    def __init__(self, running: RunningGenerations, topics: KafkaTopics, sink: FlightSink) -> None:
        self._running = running
        self._topics = topics
        self._sink = sink
        self._look_due = self._count_due = 0.0

    def watch(self) -> None:
        """Look after every generation, once."""
        now = time.monotonic()
        if now >= self._count_due:
            self._count_due = now + COUNT_SECONDS
            self.count()
        for generation in self._running.all():
            if generation.has_died():
                generation.record_death()
                log_event("query_died", generation=generation.name, tries=generation.tries, cause=generation.trouble)
            elif generation.tries and generation.is_steady():
                self._works(generation)
        due = [each for each in self._running.all() if not each.has_query and not each.outdated and each.due <= now]
        if due or now >= self._look_due:
            self.look()
        for generation in due:
            if not generation.blocked and not generation.outdated:
                self.start(generation)
        live = self._running.live
        if live and live.is_damaged and not live.outdated:
            kept = live.set_checkpoint_aside()
            log_event("checkpoint_damaged", generation=live.name, kept=kept, cause=live.trouble)
        if live and live.state == "live" and (live.has_failed() or (live.blocked and not live.has_query)):
            live.move("query_died")
            log_event("failed", generation=live.name, cause=live.problem)

    def start(self, generation: RunningGeneration) -> None:
        """Start a generation's query, where its checkpoint is."""
        try:
            url = self._sink.begin(generation.name, shapes(generation.spec))
        except NoAnswerError:
            raise
        except SinkError as error:
            generation.outdated = error.problem
            return
        if generation.starts == 0:
            generation.follow(self._sink.positions().get(generation.name, {}))
            generation.choose_mode()
        generation.start(url)
        self._running.query_restarts += generation.starts > 1
        log_event("query_started", generation=generation.name, mode=generation.mode, tries=generation.tries)

    def _works(self, generation: RunningGeneration) -> None:
        generation.tries = 0
        generation.trouble = None
        if generation.state == "failed":
            generation.move("query_started")
            log_event("recovered", generation=generation.name)

    def _follow(self) -> None:
        """See how far each generation is, and whether it should read in another mode."""
        positions = self._sink.positions()
        for generation in self._running.all():
            is_adjusted = generation.adjust_batches()
            generation.follow(positions.get(generation.name, {}))
            if generation.has_query and (generation.choose_mode() or is_adjusted):
                generation.change_mode()
                log_event("mode", generation=generation.name, mode=generation.mode, lag=generation.lag)

    def count(self) -> dict[str, StoredGeneration]:
        """See what the server has of each generation. Only a frame would find out otherwise, and none may come."""
        stored = {each.name: each for each in self._sink.generations()}
        for generation in self._running.all():
            known = stored.get(generation.name)
            if known:
                generation.count(known)
            is_lost = (generation.has_query or generation.is_held) and (
                known is None or (generation is self._running.live and not known.published)
            )
            if is_lost:
                generation.is_held = False
            if is_lost and not generation.outdated:
                generation.outdated = "the server has lost its tables"
                generation.stop()
        return stored

    def look(self) -> None:
        """See how far topics go, and how far generations are in them."""
        self._look_at_topics()
        self._follow()

    def _look_at_topics(self) -> None:
        """See whether topics are still those that generations read, and can be read."""
        started = time.monotonic()
        running = self._running.all()
        found = self._topics.look({name for generation in running for name in generation.seen})
        for generation in running:
            problems = [each for name in generation.seen if isinstance(each := found[name], TopicProblem)]
            seen = {name: each for name in generation.seen if isinstance(each := found[name], Topic)}
            replaced = (was_replaced(generation.seen[name], topic) for name, topic in seen.items())
            generation.outdated = generation.outdated or next(filter(None, replaced), None)
            generation.blocked = problems[0].reason if problems else None
            generation.seen |= seen
            if generation.outdated:
                generation.stop()  # it would go on with records that do not follow what it has
            if generation.blocked:
                generation.due = time.monotonic() + BLOCKED_SECONDS
        is_blocked = any(generation.blocked for generation in running)
        rest = max(LOOK_SECONDS, (time.monotonic() - started) / LOOK_SHARE_MAX)
        self._look_due = time.monotonic() + (BLOCKED_SECONDS if is_blocked else rest)
