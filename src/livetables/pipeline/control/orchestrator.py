"""The loop that turns control messages into generations.

A new generation is built beside the live one and takes over in one step; whatever goes wrong with it, the live one
stays. docs/GENERATIONS.md has the states, and the invariants with the tests that hold them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

from livetables.backoff import delay_seconds
from livetables.kafka.topics import KafkaTopics, Topic, TopicProblem
from livetables.model.errors import LivetablesError, PassingTopicError, SinkError, TopicError
from livetables.pipeline.control.decisions import Decisions
from livetables.pipeline.control.inbox import Inbox
from livetables.pipeline.control.resolve import Discard, Outcome, Resolver, Rollback
from livetables.pipeline.control.system import system_of
from livetables.pipeline.generations.context import NAME, GenerationContext
from livetables.pipeline.generations.generation import RunningGeneration
from livetables.pipeline.generations.health import TRIES
from livetables.pipeline.generations.state import ENDED, Event, GenerationState, to_retire
from livetables.pipeline.generations.supervision import RunningGenerations, Supervision
from livetables.pipeline.generations.wanted import Wanted
from livetables.pipeline.log import log_event
from livetables.pipeline.reporting import status
from livetables.pipeline.reporting.reporter import Reporter
from livetables.pipeline.reporting.status_tables import StatusTables
from livetables.pipeline.table_server import FencedError, NoAnswerError, StoredGeneration, TableServer

ROUND_SECONDS = 0.2
ROUND_SECONDS_BUILDING = 0.05  # while clients wait for a build
UNDECIDED_SECONDS_MAX = 30.0  # for a topic that cannot be read now, unless those in use cannot be read either
SWEEP_SECONDS = 30.0
LIST_SECONDS = 10.0
TOPICS_MAX = 5_000  # that people can choose from
REBUILD_SECONDS = 1.0  # at first, after a build that failed and has to be made nevertheless
REBUILD_SECONDS_MAX = 60.0


class Orchestrator:
    """Loop that runs generations. One thread runs it."""

    def __init__(
        self,
        context: GenerationContext,
        server: TableServer,
        topics: KafkaTopics,
        inbox: Inbox,
        notify: Callable[[str], None],
    ) -> None:
        self._context = context
        self._spec = context.config.spec
        self._server = server
        self._topics = topics
        self._inbox = inbox
        self._tables = StatusTables(server, self._spec)
        control = context.config.control
        # On another cluster, a topic of that name is like any other.
        self._control_topic = control.topic if control.kafka is None else None
        resolver = Resolver(self._spec, self._control_topic, control.topics, control.system, system_of(context.config))
        self._decisions = Decisions(resolver, self._tables)
        self._running = RunningGenerations()
        self._supervision = Supervision(self._running, topics, server)
        ui = context.spark.sparkContext.uiWebUrl
        self._reporter = Reporter(self._running, self._decisions, self._tables, server, notify, ui)
        self._left_over: StoredGeneration | None = None  # published before the start, and not resumed
        self._left_over_lost = 0  # records of it that its successor does not have
        self._kept: dict[str, Wanted] = {}  # generations that stay until they are discarded, oldest first
        self._last_number = 0  # of a generation
        self._hampered: dict[str, LivetablesError] = {}  # by step
        self._built_last: Wanted | None = None
        self._builds_failed = 0  # of that, in a row
        self._postponed: Wanted | None = None  # what is not built before `_build_due`, whoever waits for it
        self._just_seen: dict[str, Topic | TopicProblem] = {}  # topics that messages of this round name
        self._undecided_since = self._build_due = self._sweep_due = self._list_due = 0.0

    def run(self, stop: threading.Event) -> None:
        """Take messages, watch over what runs, build, retire and report, until `stop` is set.

        A step fails while Kafka or the server is down. It is retried in the next round, and the others continue.
        """
        steps = (
            self._take_messages,
            self._supervision.watch,
            self._advance,
            self._retire,
            self._list_topics,
            self._report,
        )
        while not stop.is_set():
            for step in steps:
                name = step.__name__.strip("_")
                try:
                    step()
                    self._hampered.pop(name, None)
                except FencedError:
                    raise  # another pipeline has taken over: this one must not change anything
                except LivetablesError as error:
                    if name not in self._hampered:
                        log_event("hampered", step=name, problem=error.problem)
                    self._hampered[name] = error

    def stop(self) -> None:
        """Stop all queries. The live generation is resumed where it was at the next start."""
        for generation in self._running.all():
            generation.stop()

    # What was there before the start

    def resume(self) -> None:
        """Restore what is wanted from the control topic, and remove what earlier generations left."""
        self._undecided_since = time.monotonic()
        if not self._context.pipeline_number:
            self._context.pipeline_number = self._server.start_pipeline()
        self._tables.load()
        stored = {each.name: each for each in self._server.generations() if NAME.fullmatch(each.name)}
        self._left_over = next((each for each in stored.values() if each.published), None)
        self._decisions.restore(self._inbox.history())
        kept = {self._left_over.name} if self._left_over else set()
        rows = self._tables.rows("generations")
        self._kept = {
            row["generation"]: status.pointed_by(row, self._spec)
            for row in rows
            if row["generation"] in stored.keys() - kept and row.get("lost") and row["state"] not in ENDED
        }
        kept |= self._kept.keys()
        known = {*stored, *self._checkpoints()}
        names = known.union(row["generation"] for row in rows)
        self._last_number = max((int(found["number"]) for name in names if (found := NAME.fullmatch(name))), default=0)
        for name in known - kept:
            self._free(name)
        for row in rows:
            if row["generation"] not in kept and row["state"] not in ENDED:
                self._reporter.ended(row["generation"], "retired", "the pipeline ended before it did")
            elif row["generation"] in self._kept and row["state"] != "kept":
                self._reporter.kept(row["generation"], _kept_why(row["generation"], row["lost"]))

    def report_waiting(self, problem: str) -> None:
        """Report why nothing can be resumed yet."""
        self._reporter.report_waiting(self._left_over.name if self._left_over else None, problem)

    def _adopt(self, left_over: StoredGeneration) -> None:
        """Resume what was live before the start, if its checkpoint exists and matches the configuration."""
        row = self._tables.row("generations", left_over.name) or {}
        could_not_go_on = row.get("state") == "live" and row.get("message") is not None
        # Somebody went back to it all the same: it stays what is shown.
        is_held = could_not_go_on and left_over.name == self._decisions.went_back_to
        is_resumable = not left_over.positions or self._context.checkpoints.exists(left_over.name)
        for wanted in (self._decisions.settled, self._decisions.wanted) if is_resumable else ():
            topics = self._looked_at(wanted)
            if isinstance(topics, str) or not left_over.name.endswith(f"-{self._fingerprint(wanted, topics)}"):
                continue
            live = self._running.live = RunningGeneration(self._context, left_over.name, wanted, topics, "live")
            live.started, live.switched, live.is_held = left_over.begun, left_over.published, is_held
            self._left_over = None
            log_event(
                "resumed", generation=live.name, sequence=left_over.sequence, **status.pointed_to(wanted, self._spec)
            )
            if wanted == self._decisions.wanted:
                was_live = wanted == self._decisions.settled
                self._decisions.concluded(wanted, live.name, "it is live", was_live=was_live)
            self._reporter.is_live(live)
            self._supervision.start(live)
            return
        if is_held:
            live = self._running.live = self._woken(left_over.name, self._decisions.settled, "live")
            live.started, live.switched = left_over.begun, left_over.published
            self._left_over = None
            log_event("shown_unchanged", generation=live.name, why=live.health.outdated)
            self._reporter.is_live(live)

    # The steps

    def _take_messages(self) -> None:
        """Decide on the messages that have come, in order. Those that cannot be decided on now are, later."""
        if not self._decisions.undecided:
            self._undecided_since = time.monotonic()
        self._decisions.undecided += self._inbox.take(ROUND_SECONDS_BUILDING if self._running.build else ROUND_SECONDS)
        named, known = self._decisions.topics_asked_for(), set(self._decisions.wanted.topics.values())
        found = self._just_seen = self._topics.look(named | known) if named else {}
        problems = {name: each for name, each in found.items() if isinstance(each, TopicProblem)}
        is_kafka_down = self._inbox.trouble or any(problems[name].is_passing for name in known & problems.keys())
        if is_kafka_down or time.monotonic() - self._undecided_since < UNDECIDED_SECONDS_MAX:
            _raise_if_passing({name: each for name, each in problems.items() if name in named})
        unusable = {name: problem.reason for name, problem in problems.items()}
        while self._decisions.undecided:
            newest = self._running.lingering[0] if self._running.lingering else None
            kept = None if newest else next(reversed(self._kept), None)
            previous = newest.wanted if newest else self._kept[kept] if kept else None
            plan = self._decisions.decide(unusable, previous, self._kept)
            if isinstance(plan, Rollback) and newest:
                self._roll_back(newest)
            elif isinstance(plan, Rollback) and kept:
                self._roll_back(self._woken(kept, self._kept[kept], "kept"))
            elif isinstance(plan, Rollback):
                self._decisions.accepted(plan.wanted)
            elif isinstance(plan, Discard):
                self._discard(plan.generation)
            self._decisions.decided()
            self._reporter.is_due_now()

    def _advance(self) -> None:
        """Advance from what is live to what is wanted: adopt, build or dismiss a build."""
        if self._decisions.undecided:
            return
        running, wanted = self._running, self._decisions.wanted
        is_due = time.monotonic() >= self._build_due
        if running.live is None and running.build is None and self._left_over and is_due:
            self._adopt(self._left_over)
        live = running.live
        is_right = live and live.wanted == wanted and (live.is_held or not live.health.outdated)
        if running.build and (is_right or running.build.wanted != wanted):
            self._end(running.build, "dismissed", "something else is wanted now")
            running.build = None
        if running.build and running.build.health.outdated:
            self._build_again(running.build, running.build.health.outdated)
        elif running.build:
            self._advance_build(running.build)
        elif live and is_right:
            if self._decisions.are_waiting:
                self._decisions.concluded(wanted, live.name, "it is live already", was_live=True)
        elif is_due or (self._decisions.are_waiting and wanted != self._postponed):
            self._begin_build(wanted)

    def _retire(self) -> None:
        """Remove old generations when their time is over, or when they cannot be used any more."""
        if self._left_over and self._running.live:
            name = self._left_over.name
            if self._left_over_lost:
                row = self._tables.row("generations", name) or {}
                self._keep(name, status.pointed_by(row, self._spec), self._left_over_lost)
            else:
                self._free(name)
                self._reporter.ended(name, "retired", "it could not be resumed, and another is live")
            self._left_over = None
        lingering = self._running.lingering
        due = to_retire([(each, each.since) for each in lingering], time.monotonic(), self._context.config.generations)
        for generation in list(lingering):
            health, is_useless = generation.health, generation.next_step() in ("give_up", "replace")
            if (generation in due or is_useless) and generation.lost:
                generation.stop()
                generation.move("kept_for_its_records")
                self._keep(generation.name, generation.wanted, generation.lost)
                lingering.remove(generation)
            elif generation in due or is_useless:
                self._end(generation, "dismissed", (health.outdated or health.problem) if is_useless else None)
                lingering.remove(generation)
        if time.monotonic() >= self._sweep_due:
            self._sweep_due = time.monotonic() + SWEEP_SECONDS
            self._sweep()

    def _list_topics(self) -> None:
        """Keep the list of topics that tables may be pointed to."""
        if time.monotonic() < self._list_due or self._inbox.trouble:
            return
        self._list_due = time.monotonic() + LIST_SECONDS
        try:
            names = set(self._topics.names()[:TOPICS_MAX]) - {self._control_topic}
        except TopicError:  # the other steps report it if Kafka is down
            return
        for name in sorted(names):
            self._tables.set("kafka_topics", {"topic": name})
        self._tables.keep_only("kafka_topics", names)

    def _report(self) -> None:
        """Report the current state."""
        hampered = next((error.problem for error in self._hampered.values()), None)
        trouble = self._inbox.trouble
        away = f"{trouble.problem}; {trouble.cure}" if trouble else None
        self._reporter.report(self._left_over.name if self._left_over else None, hampered or away)

    # Building beside, switching once

    def _begin_build(self, wanted: Wanted) -> None:
        if wanted != self._built_last:
            self._built_last, self._builds_failed = wanted, 0
        topics = self._looked_at(wanted)
        if isinstance(topics, str):
            self._build_failed("rejected", topics)
            return
        self._last_number += 1
        name = f"g{self._last_number}-{self._fingerprint(wanted, topics)}"
        build = self._running.build = RunningGeneration(self._context, name, wanted, topics)
        to_read = build.progress.records_to_read
        log_event("build", generation=name, **status.pointed_to(wanted, self._spec), records=to_read)
        self._reporter.is_due_now()
        self._supervision.start(build)

    def _advance_build(self, build: RunningGeneration) -> None:
        if build.state == "building" and build.health.has_query:
            build.move("query_started")
        if build.next_step() == "give_up":
            self._build_failed("failed", build.health.problem or "its query ends again and again")
            return
        seconds = build.age_seconds
        if build.mode == "real_time" and not build.has_read_all:
            self._supervision.count()
        if build.health.has_query and build.has_read_all:
            self._supervision.look()  # which changes it to real time; it takes over when it follows its topics
        read, to_read = build.records_read, build.progress.records_to_read
        if build.has_read_all and build.is_in_last_mode and build.is_working():
            if not build.is_following and seconds < self._context.config.generations.switch_after_seconds:
                return
            log_event("caught_up", generation=build.name, records=to_read, seconds=f"{seconds:.1f}")
            why = f"it has caught up with {to_read:,} records"
        elif (
            build.is_working()
            and read > 0
            and seconds >= self._context.config.generations.switch_after_seconds
            and not (
                self._running.live or self._left_over
            )  # a complete generation is never replaced by an incomplete one
        ):
            why = f"after {seconds:.0f} s it takes over with {read:,} of {to_read:,} records read"
        else:
            return
        stored = self._supervision.count()  # so that it is reported as live with its rows, not some seconds before them
        if self._running.live and build.name in stored:
            letters = self._server.dead_letters(build.name)
            if misfit := build.misfit(self._running.live.wanted, letters, stored[build.name].rows):
                self._build_failed("rejected", misfit)
                return
        lost = self._lost_to(build)
        if self._published(build):
            self._running.build = None
            self._builds_failed = 0
            self._take_over(build, why, lost)

    def _build_again(self, build: RunningGeneration, why: str) -> None:
        """Dismiss a build that can never be right any more. Another one may be, unless that was so some times."""
        if self._builds_failed + 1 >= TRIES and self._decisions.are_waiting:
            self._build_failed("failed", why)
            return
        self._end(build, "dismissed", why)
        self._running.build = None
        self._postponed = build.wanted
        self._postpone()

    def _build_failed(self, outcome: Outcome, reason: str) -> None:
        """Remove the pieces of a build, if it has any, and go back to what was applied last."""
        if self._running.build:
            self._end(self._running.build, "build_failed", reason)
            self._running.build = None
        self._decisions.failed(outcome, reason)
        self._postponed = None
        self._postpone()

    def _postpone(self) -> None:
        """Wait before the next build, the longer the more have failed."""
        self._builds_failed += 1
        delay = delay_seconds(self._builds_failed, REBUILD_SECONDS, REBUILD_SECONDS_MAX)
        self._build_due = time.monotonic() + delay
        self._reporter.is_due_now()

    def _roll_back(self, target: RunningGeneration) -> None:
        """Make an old generation live again, at once."""
        lost = self._lost_to(target)
        is_published = self._published(target)
        self._decisions.accepted(target.wanted)
        if is_published:
            if target in self._running.lingering:
                self._running.lingering.remove(target)
            self._kept.pop(target.name, None)
            self._take_over(target, "a control message went back to it", lost)
        else:
            self._decisions.failed("failed", target.health.outdated or "")

    def _lost_to(self, successor: RunningGeneration) -> str:
        """Return in a sentence the records that are shown and that neither Kafka nor the successor has, if any.

        The server stores their number before the switch, so that a crash right after it does not remove the only copy.
        """
        live, left_over = self._running.live, self._left_over
        before = live or left_over
        if before is None or before.name == successor.name:
            return ""
        try:
            lost = self._server.lost_records(before.name, successor.name, successor.ends_for(live))
        except NoAnswerError:
            raise
        except SinkError:  # the server has lost one of the two
            return ""
        records = sum(lost.values())
        if live:
            live.lost = records
        else:
            self._left_over_lost = records
        if not records:
            return ""
        self._reporter.loses(before.name, records)
        for topic, count in lost.items():
            log_event("loses", generation=before.name, successor=successor.name, topic=topic, records=count)
        topics = " and ".join(f"{count:,} records of topic {topic}" for topic, count in lost.items())
        return f"Kafka no longer has {topics}; {_kept_why(before.name, records)}"

    def _keep(self, name: str, wanted: Wanted, records: int) -> None:
        """Keep an old generation, without a query, until a control message discards it."""
        self._kept[name] = wanted
        self._reporter.kept(name, _kept_why(name, records))
        log_event("kept", generation=name, records=records)

    def _discard(self, name: str) -> None:
        """Remove a generation that was kept."""
        self._free(name)
        del self._kept[name]
        self._reporter.ended(name, "retired", "a control message discarded it")
        log_event("retired", generation=name, why="a control message discarded it")
        self._decisions.discarded(name)

    def _woken(self, name: str, wanted: Wanted, state: GenerationState) -> RunningGeneration:
        """Return an old generation, to be continued where it was if possible, and else to be shown as it is."""
        topics = self._looked_at(wanted)
        known = {} if isinstance(topics, str) else topics
        woken = RunningGeneration(self._context, name, wanted, known, state)
        woken.is_held = True
        if isinstance(topics, str):
            woken.mark_outdated(topics)
        elif not name.endswith(f"-{self._fingerprint(wanted, topics)}"):
            woken.mark_outdated(f"{name} was built with another configuration, or its topics were created again since")
        elif not self._context.checkpoints.exists(name):
            woken.mark_outdated(f"the checkpoint of {name} is gone")
        return woken

    def _published(self, generation: RunningGeneration) -> bool:
        """Make the stable names a generation's tables, unless the server does not have them any more."""
        try:
            self._server.publish(generation.name)
        except NoAnswerError:
            raise
        except SinkError as error:
            generation.mark_outdated(error.problem)
            return False
        return True

    def _take_over(self, generation: RunningGeneration, why: str, lost: str) -> None:
        """Make a published generation live: what was live lingers, and the messages that waited for it are applied."""
        why = "; ".join(filter(None, [why, lost]))
        before, self._running.live = self._running.live, generation
        generation.move("published")
        generation.switched = datetime.now(UTC)
        log_event("switched", generation=generation.name, before=before.name if before else None, why=why)
        if before:
            before.move("replaced")
            self._running.lingering.insert(0, before)
            log_event("lingering", generation=before.name, why=before.health.outdated)
        generation.lost = 0
        self._decisions.concluded(generation.wanted, generation.name, why, was_live=False)
        self._decisions.notice = lost
        self._reporter.is_live(generation)

    def _end(self, generation: RunningGeneration, event: Event, why: str | None) -> None:
        """Stop a generation's query, and free its rows, checkpoint and state."""
        generation.stop()
        self._free(generation.name)
        generation.move(event)
        self._reporter.ended(generation.name, generation.state, why)
        log_event(generation.state, generation=generation.name, why=why)

    def _free(self, name: str) -> None:
        self._server.drop(name)
        self._context.checkpoints.remove(name)

    def _sweep(self) -> None:
        """Remove checkpoints that came back: Spark writes a last snapshot of a query's state a while after its end."""
        there = self._checkpoints()
        # Asked after that: on shared storage, another pipeline that has taken over may have begun some of them.
        stored = {each.name for each in self._server.generations()}
        running = {generation.name for generation in self._running.all()}
        for name in there - stored - running:
            self._context.checkpoints.remove(name)

    def _checkpoints(self) -> set[str]:
        """Return the generations that have a checkpoint; what else is in that directory is not ours."""
        return {name for name in self._context.checkpoints.generations() if NAME.fullmatch(name)}

    # Topics and fingerprints

    def _looked_at(self, wanted: Wanted) -> dict[str, Topic] | str:
        """Return the topics of what is wanted, or why one of them cannot be read."""
        names = set(wanted.topics.values())
        found = {name: each for name, each in self._just_seen.items() if name in names}
        if names != found.keys():
            found |= self._topics.look(names - found.keys())
        problems = {name: each for name, each in found.items() if isinstance(each, TopicProblem)}
        if not problems:
            arrival = {wanted.topics[table.name] for table in self._spec.tables if table.timestamp == "arrival"}
            problems = self._topics.without_arrival(arrival)
        _raise_if_passing(problems)
        if problems:
            return next(iter(problems.values())).reason
        return {name: each for name, each in found.items() if isinstance(each, Topic)}

    def _fingerprint(self, wanted: Wanted, topics: dict[str, Topic]) -> str:
        return self._context.fingerprint(wanted.applied_to(self._spec), topics)


def _kept_why(name: str, records: int) -> str:
    return f'{name} is kept for the {records:,} records that only it has, until {{"discard": "{name}"}} is sent'


def _raise_if_passing(problems: dict[str, TopicProblem]) -> None:
    for problem in problems.values():
        if problem.is_passing:
            raise PassingTopicError(problem.reason, "wait, or start the broker")
