"""Why data is old: the pipeline's last report, and its time, become one state with its cause in a sentence."""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from livetables.model.wire import SourceReport
from livetables.server.viewports.encoding import Time

DOWN_AFTER_SECONDS = 5.0
IDLE_AFTER_SECONDS = 30.0
CATCHING_UP_RECORDS = 10_000

State = Literal["starting", "live", "idle", "catching_up", "failed", "pipeline_down"]


@dataclass(frozen=True)
class Moment:
    """A time as people read it, and as time that passes is measured: a clock that is set decides nothing."""

    time: datetime
    seconds: float  # by a monotonic clock

    @classmethod
    def now(cls) -> Moment:
        return cls(datetime.now(UTC), time.monotonic())

    def seconds_since(self, earlier: Moment) -> float:
        return self.seconds - earlier.seconds


@dataclass(frozen=True)
class Report:
    """The pipeline's last report of a generation."""

    sources: tuple[SourceReport, ...]
    problem: str | None = None  # why it does not move, though the pipeline runs


# What `/api/status` and the WebSocket's status frame both have. Docstrings would become a part of the OpenAPI document.


class SourceStatus(BaseModel):
    model_config = ConfigDict(frozen=True)

    table: str
    topic: str
    lag_records: int
    newest: Time | None  # the latest event time in the table


class Status(BaseModel):
    model_config = ConfigDict(frozen=True)

    state: State
    message: str
    pipeline_seen: Time | None
    spark_ui: str | None = Field(description="where Spark's own pages are, if the pipeline has them on")
    sources: tuple[SourceStatus, ...]


@dataclass(frozen=True)
class Freshness:
    """Everything known of the pipeline; `heard`, `reported`, `only` and `arrived` give the next value."""

    started: Moment  # of the server
    pipeline_seen: Moment | None = None
    reports: Mapping[str, Report] = field(default_factory=dict)  # by generation
    arrivals: Mapping[str, Moment] = field(default_factory=dict)  # by table: when rows last came

    def heard(self, now: Moment) -> Freshness:
        return replace(self, pipeline_seen=now)

    def reported(
        self, now: Moment, generation: str, sources: Iterable[SourceReport], problem: str | None = None
    ) -> Freshness:
        return replace(self, pipeline_seen=now, reports={**self.reports, generation: Report(tuple(sources), problem)})

    def only(self, generations: Container[str]) -> Freshness:
        """Without the reports of any others."""
        return replace(self, reports={name: each for name, each in self.reports.items() if name in generations})

    def arrived(self, now: Moment, tables: Iterable[str]) -> Freshness:
        return replace(self, arrivals={**self.arrivals, **dict.fromkeys(tables, now)})

    def status(
        self, now: Moment, live: Sequence[str], newest: Mapping[str, datetime | None], spark_ui: str | None = None
    ) -> Status:
        """The state of the generations that are live, given the latest event time of each table."""
        reports = [self.reports[generation] for generation in live if generation in self.reports]
        state, message = self._judged(now, bool(live), reports)
        sources = (
            SourceStatus(
                table=each.table, topic=each.topic, lag_records=each.lag_records, newest=newest.get(each.table)
            )
            for report in reports
            for each in report.sources
        )
        seen = self.pipeline_seen.time if self.pipeline_seen else None
        shown_ui = None if state == "pipeline_down" else spark_ui
        return Status(state=state, message=message, pipeline_seen=seen, spark_ui=shown_ui, sources=tuple(sources))

    def _judged(self, now: Moment, is_live: bool, reports: Sequence[Report]) -> tuple[State, str]:
        if self.pipeline_seen is None or now.seconds_since(self.pipeline_seen) > DOWN_AFTER_SECONDS:
            since = f"was last heard {_text(self.pipeline_seen)}" if self.pipeline_seen else "has not been heard yet"
            return "pipeline_down", f"the pipeline {since}; what is shown is as it was then"
        if not is_live:
            return "starting", "the first generation is being built; its tables appear when it has caught up"
        if problems := [report.problem for report in reports if report.problem]:
            return "failed", "; ".join(problems)
        sources = [source for report in reports for source in report.sources]
        behind = [source for source in sources if source.lag_records >= CATCHING_UP_RECORDS]
        if behind:
            late = ", ".join(f"{source.lag_records:,} records of topic {source.topic}" for source in behind)
            return "catching_up", f"catching up: {late} are still to be read"
        silent = [source for source in sources if self._seconds_silent(now, source.table) > IDLE_AFTER_SECONDS]
        if sources and len(silent) == len(sources):
            since = ", ".join(f"topic {source.topic} since {self._arrival(source.table)}" for source in silent)
            return "idle", f"no new records: {since}"
        return "live", "up to date"

    def _seconds_silent(self, now: Moment, table: str) -> float:
        return now.seconds_since(self.arrivals.get(table, self.started))

    def _arrival(self, table: str) -> str:
        return _text(self.arrivals[table]) if table in self.arrivals else "before the server started"


def _text(moment: Moment) -> str:
    return moment.time.strftime("%Y-%m-%d %H:%M:%S UTC")
