"""The generations that run, and what can befall them: queries that die, topics that change, a server that forgets."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from livetables.control.log import tell
from livetables.control.running import RunningGeneration
from livetables.errors import SinkError
from livetables.pipeline import changelog
from livetables.pipeline.flight_sink import FlightSink, NoAnswerError
from livetables.pipeline.topics import KafkaTopics, Topic, TopicProblem, was_replaced

COUNT_SECONDS = 5.0  # between two questions to the server what it has
LOOK_SECONDS = 5.0  # between two looks at the topics of what runs
BLOCKED_SECONDS = 2.0  # likewise, while they cannot be read


@dataclass
class Running:
    """All generations that there are: at most one is live, at most one is being built to take its place."""

    live: RunningGeneration | None = None
    build: RunningGeneration | None = None
    lingering: list[RunningGeneration] = field(default_factory=list)  # newest first
    query_restarts: int = 0

    def all(self) -> list[RunningGeneration]:
        return [each for each in (self.live, self.build, *self.lingering) if each]


class Supervision:
    """Starts queries, and starts again those that died, for as long as their topics are still those they read."""

    def __init__(self, running: Running, topics: KafkaTopics, sink: FlightSink) -> None:
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
                generation.bury()
                tell("query_died", generation=generation.name, tries=generation.tries, cause=generation.trouble)
            elif generation.tries and generation.is_working():
                self._works(generation)
        due = [each for each in self._running.all() if not each.has_query and not each.outdated and each.due <= now]
        if due or now >= self._look_due:
            self._look()
        for generation in due:
            if not generation.blocked and not generation.outdated:
                self.start(generation)
        live = self._running.live
        if live and live.state == "live" and (live.has_failed() or (live.blocked and not live.has_query)):
            live.move("query_died")
            tell("failed", generation=live.name, cause=live.problem)

    def start(self, generation: RunningGeneration) -> None:
        """Start a generation's query, where its checkpoint is."""
        try:
            # With the little patience of the loop: the query's own sink has more.
            self._sink.begin(generation.name, changelog.shapes(generation.spec))
        except NoAnswerError:
            raise
        except SinkError as error:
            generation.outdated = error.problem
            return
        generation.start()
        self._running.query_restarts += generation.starts > 1
        tell("query_started", generation=generation.name, tries=generation.tries)

    def _works(self, generation: RunningGeneration) -> None:
        generation.tries = 0
        generation.trouble = None
        if generation.state == "failed":
            generation.move("query_started")
            tell("recovered", generation=generation.name)

    def count(self) -> None:
        """See what the server has of each generation. Only a batch would find out otherwise, and none may come."""
        stored = {each.name: each for each in self._sink.generations()}
        for generation in self._running.all():
            known = stored.get(generation.name)
            if known:
                generation.rows = sum(known.rows.values())
            is_lost = generation.has_query and (
                known is None or (generation is self._running.live and not known.published)
            )
            if is_lost and not generation.outdated:
                generation.outdated = "the server has lost its tables"
                generation.stop()

    def _look(self) -> None:
        """See whether topics are still those that generations read, and can be read."""
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
        self._look_due = time.monotonic() + (BLOCKED_SECONDS if is_blocked else LOOK_SECONDS)
