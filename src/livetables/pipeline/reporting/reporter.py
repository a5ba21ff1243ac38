"""Reports of the orchestrator while it runs: the status tables, the lag of the live generation, and steps."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

from livetables.model.wire import PipelineReport
from livetables.pipeline.generations.generation import RunningGeneration
from livetables.pipeline.generations.state import STATES
from livetables.pipeline.generations.supervision import RunningGenerations
from livetables.pipeline.generations.wanted import Wanted
from livetables.pipeline.log import log_event
from livetables.pipeline.reporting import status
from livetables.pipeline.reporting.pace import Pace
from livetables.pipeline.reporting.status_tables import StatusTables
from livetables.pipeline.table_server import ReportReceiver

REPORT_SECONDS = 1.0
ENDED_MAX = 1_000  # generations in their table that have ended
ENDED = ("retired", "failed")
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


class Decisions(Protocol):
    """What is reported of decisions: this package is below the one that makes them."""

    settled: Wanted
    last_applied: datetime | None
    notice: str


class Reporter:
    """Reporter of generations and decisions: once a second, and at once when something has happened."""

    def __init__(
        self,
        running: RunningGenerations,
        decisions: Decisions,
        tables: StatusTables,
        server: ReportReceiver,
        notify: Callable[[str], None],
        spark_ui: str | None,
    ) -> None:
        self._running = running
        self._decisions = decisions
        self._tables = tables
        self._server = server
        self._notify = notify
        self._last_notified = ""
        self._report_due = 0.0
        self._spark_ui = spark_ui
        self._started = time.time()
        self._paces: dict[str, Pace] = {}  # by generation: that of the live one

    def is_due_now(self) -> None:
        """Make the next report at once: something has happened."""
        self._report_due = 0.0

    def report(self, left_over: str | None, hampered: str | None) -> None:
        """Bring the status tables up to date, and report how far behind what is shown is.

        What is shown may be a generation that was `left_over`; `hampered` is the reason why a step of the loop fails.
        """
        now = time.monotonic()
        if now < self._report_due:
            return
        self._report_due = now + REPORT_SECONDS
        for generation in self._running.all():
            self._tables.set("generations", _row(generation))
        live = self._running.live
        shown = live.name if live else left_over
        reports = live.progress.reports if live else []
        if live:
            self._paces = {live.name: self._paces.get(live.name) or Pace()}
            self._paces[live.name].note(now, live.progress.lag, live.progress.records_sent)
        state, message = self._state(hampered)
        self._tables.set(
            "orchestrator_status",
            {
                "_id": status.ONLY_ROW,
                **status.pointed_to(live.wanted if live else self._decisions.settled, self._tables.spec),
                "lastApplied": self._decisions.last_applied,
                "generation": shown,
                "state": state,
                "lag": sum(report.lag_records for report in reports),
                "message": message,
            },
        )
        if not live and message != self._last_notified:
            self._last_notified = message
            self._notify(message)
        self._tables.flush()
        self._server.report(shown, reports, message if state == "failed" else None, self._pipeline())

    def report_waiting(self, left_over: str | None, problem: str) -> None:
        """Report why nothing can start: what is shown, if anything, is as it was."""
        settled = status.pointed_to(self._decisions.settled, self._tables.spec)
        known = self._tables.row("orchestrator_status", status.ONLY_ROW) or settled
        self._tables.set(
            "orchestrator_status", {**known, "_id": status.ONLY_ROW, "state": "failed", "message": problem}
        )
        self._tables.flush()
        if left_over:
            self._server.report(left_over, [], problem)

    def is_live(self, generation: RunningGeneration) -> None:
        """Report the generation that people see now."""
        topics = ", ".join(f"{table} from {topic}" for table, topic in generation.wanted.topics.items())
        joined = "".join(f", {view} joined {join}" for view, join in generation.wanted.joins.items())
        log_event("ready", generation=generation.name)
        self._notify(f"live: {generation.name}, {topics}{joined}")
        self.is_due_now()

    def ended(self, name: str, state: str, why: str | None) -> None:
        """Report that a generation has ended."""
        row = {"generation": name, "state": state, "retired": datetime.now(UTC), "message": why}
        self._tables.set("generations", row)
        self._remove_oldest()
        self.is_due_now()

    def loses(self, name: str, records: int) -> None:
        """Report records that neither Kafka nor a successor has. The server knows it when this returns."""
        self._tables.set("generations", {"generation": name, "lost": records})
        self._tables.flush()

    def kept(self, name: str, why: str) -> None:
        """Report that a generation stays until a control message discards it."""
        self._tables.set("generations", {"generation": name, "state": "kept", "message": why})
        self.is_due_now()

    def _remove_oldest(self) -> None:
        """Remove the generations that ended first, unless a restart has to know them for a rollback to one."""
        rows = self._tables.rows("generations")
        ended = sorted((row for row in rows if row["state"] in ENDED), key=lambda row: row["retired"] or LONG_AGO)
        if len(ended) <= ENDED_MAX:
            return
        named = {row["generation"] for row in self._tables.rows("control_raw")}
        removed = {row["generation"] for row in ended[:-ENDED_MAX]} - named
        self._tables.keep_only("generations", {row["generation"] for row in rows} - removed)

    def _pipeline(self) -> PipelineReport:
        states = Counter[str](row["state"] for row in self._tables.rows("generations"))
        return PipelineReport(
            self._started,
            self._running.query_restarts,
            {state: states[state] for state in STATES},
            {generation.name: generation.mode for generation in self._running.all()},
            self._spark_ui,
        )

    def _state(self, hampered: str | None) -> tuple[str, str]:
        """Return the status: a state, and a sentence."""
        live, build, notice = self._running.live, self._running.build, self._decisions.notice
        if build:
            read = f"{build.records_read:,} of {build.progress.records_to_read:,} records read"
            return build.state, "; ".join(filter(None, [f"building {build.name}: {read}", build.health.problem]))
        problem = (live.health.outdated or live.health.problem) if live else notice
        if problem or hampered:
            return "failed", problem or hampered or ""
        if not live:
            return "starting", "looking at the topics"
        return live.state, notice or self._paces[live.name].sentence()


def _row(generation: RunningGeneration) -> status.Row:
    return {
        "generation": generation.name,
        **status.pointed_to(generation.wanted, generation.spec),
        "state": generation.state,
        "started": generation.started,
        "switched": generation.switched,
        "rows": generation.progress.rows,
        "lost": generation.lost or None,
        "message": generation.health.outdated or generation.health.problem,
    }
