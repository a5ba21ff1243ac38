"""The generations that run, and what can happen to them: a query dies, a topic changes, the server loses tables."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field

from livetables.kafka.topics import KafkaTopics, Topic, TopicProblem, was_replaced
from livetables.model.errors import SinkError
from livetables.pipeline.flow.plan import shapes
from livetables.pipeline.generations.generation import RunningGeneration
from livetables.pipeline.generations.health import Step
from livetables.pipeline.log import log_event
from livetables.pipeline.table_server import GenerationsOnServer, NoAnswerError, StoredGeneration

COUNT_SECONDS = 5.0  # between two counts of the rows on the server
LOOK_SECONDS = 1.0  # between two checks of the topics, and of how far generations are
LOOK_SHARE_MAX = 0.1  # of the time may go into that: a thousand partitions take a while
LOOK_SECONDS_MAX = 5.0  # between two of them all the same: one slow check, of a cold JVM, must not leave the lag wrong
BLOCKED_SECONDS = 2.0  # between two checks of topics that cannot be read

CHANGING: tuple[Step, ...] = ("change_mode",)
RECORDING: tuple[Step, ...] = ("record_death", "forget_failures")
STEPS: tuple[Step, ...] = (*RECORDING, *CHANGING, "start", "restart", "set_checkpoint_aside", "report_failure")


@dataclass
class RunningGenerations:
    """All generations that run: at most one is live, at most one is being built to take its place."""

    live: RunningGeneration | None = None
    build: RunningGeneration | None = None
    lingering: list[RunningGeneration] = field(default_factory=list)  # newest first
    query_restarts: int = 0

    def all(self) -> list[RunningGeneration]:
        return [each for each in (self.live, self.build, *self.lingering) if each]


class Supervision:
    """Starts queries, and restarts those that died, as long as their topics are still those they read."""

    def __init__(self, running: RunningGenerations, topics: KafkaTopics, server: GenerationsOnServer) -> None:
        self._running = running
        self._topics = topics
        self._server = server
        self._look_due = self._count_due = 0.0

    def watch(self) -> None:
        """Look after every generation, once."""
        now = time.monotonic()
        if now >= self._count_due:
            self._count_due = now + COUNT_SECONDS
            self.count()
        self._act(RECORDING)
        if now >= self._look_due or any(each.health.is_start_due(now) for each in self._running.all()):
            self.look()  # also right before a start: it must not read a topic that was created again
        self._act(STEPS)

    def start(self, generation: RunningGeneration) -> None:
        """Start a generation's query, where its checkpoint is."""
        try:
            url = self._server.begin(generation.name, shapes(generation.spec))
        except NoAnswerError:
            raise
        except SinkError as error:
            generation.mark_outdated(error.problem)
            return
        if generation.health.starts == 0:
            generation.follow(self._server.positions().get(generation.name, {}))
            generation.choose_mode()
        generation.start(url)
        health = generation.health
        self._running.query_restarts += health.starts > 1
        log_event("query_started", generation=generation.name, mode=health.mode, tries=health.tries)

    def _act(self, steps: Collection[Step]) -> None:
        """Do what is to be done with each generation, as far as it is one of these steps."""
        for generation in self._running.all():
            while (step := generation.next_step()) in steps:
                self._do(step, generation)

    def _do(self, step: Step, generation: RunningGeneration) -> None:
        match step:
            case "start" | "restart":
                self.start(generation)
            case "record_death":
                generation.record_death()
                health = generation.health
                log_event("query_died", generation=generation.name, tries=health.tries, cause=health.trouble)
            case "forget_failures":
                generation.health = generation.health.working()
                if generation.state == "failed":
                    generation.move("query_recovered")
                    log_event("recovered", generation=generation.name)
            case "change_mode":
                generation.change_mode()
                log_event("mode", generation=generation.name, mode=generation.mode, lag=generation.health.lag)
            case "set_checkpoint_aside":
                trouble, kept = generation.health.trouble, generation.set_checkpoint_aside()
                log_event("checkpoint_damaged", generation=generation.name, kept=kept, cause=trouble)
            case "report_failure":
                generation.move("query_failed")
                log_event("failed", generation=generation.name, cause=generation.health.problem)
            case "give_up" | "replace" | "wait":  # the orchestrator's to do, or nobody's
                raise AssertionError(f"{step} is not done here")

    def _follow(self) -> None:
        """Record how far each generation is, and change the mode of those that should read in another one."""
        positions = self._server.positions()
        for generation in self._running.all():
            generation.follow(positions.get(generation.name, {}))
            if generation.health.has_query:
                generation.choose_mode()
        self._act(CHANGING)

    def count(self) -> dict[str, StoredGeneration]:
        """Record what the server has of each generation. Only a frame would find out otherwise, and none may come."""
        stored = {each.name: each for each in self._server.generations()}
        for generation in self._running.all():
            known = stored.get(generation.name)
            if known:
                generation.progress.count(known)
            is_lost = (generation.health.has_query or generation.is_held) and (
                known is None or (generation is self._running.live and not known.published)
            )
            if is_lost:
                generation.is_held = False
            if is_lost and not generation.health.outdated:
                generation.mark_outdated("the server has lost its tables")
        return stored

    def look(self) -> None:
        """Check how far topics go, and how far generations are in them."""
        self._look_at_topics()
        self._follow()

    def _look_at_topics(self) -> None:
        """Check whether topics are still those that generations read, and can be read."""
        started = time.monotonic()
        running = self._running.all()
        found = self._topics.look({name for generation in running for name in generation.progress.seen})
        for generation in running:
            before = generation.progress.seen
            problems = [each for name in before if isinstance(each := found[name], TopicProblem)]
            seen = {name: each for name in before if isinstance(each := found[name], Topic)}
            replaced = next(filter(None, (was_replaced(before[name], topic) for name, topic in seen.items())), None)
            outdated = generation.health.outdated or replaced
            generation.progress.seen |= seen
            generation.health = generation.health.blocked_by(
                problems[0].reason if problems else None, retry_at=time.monotonic() + BLOCKED_SECONDS
            )
            if outdated:
                generation.mark_outdated(outdated)
        is_blocked = any(generation.health.blocked for generation in running)
        rest = min(max(LOOK_SECONDS, (time.monotonic() - started) / LOOK_SHARE_MAX), LOOK_SECONDS_MAX)
        self._look_due = time.monotonic() + (BLOCKED_SECONDS if is_blocked else rest)
