"""The health of a generation as one value, and what to do next as a function of it. Pure.

Whatever happens to a generation makes another value of its health: its query is started, works, stops or dies, its
topics cannot be read, it can never be right again. Times are seconds of a monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from livetables.backoff import delay_seconds
from livetables.pipeline.flow.modes import Mode
from livetables.pipeline.generations.state import GenerationState

TRIES = 3  # starts without a batch, until a query counts as failed
FIRST_DELAY_SECONDS = 1.0  # before a restart
DELAY_SECONDS_MAX = 30.0

QueryState = Literal[
    "none",  # not started, or stopped
    "running",
    "steady",  # running for so long that earlier failures do not count; only looked at where there were some
    "died",  # it ended by itself, and why is not recorded yet
]
Step = Literal[
    "start",  # its query, for the first time
    "restart",  # its query, where its checkpoint is
    "record_death",  # why its query died, and when to restart it
    "forget_failures",  # it works again
    "change_mode",  # stop its query, and start it in the other mode, or with other batches
    "set_checkpoint_aside",  # a damaged one, which is not read again
    "report_failure",  # its tables stay visible, and its query is restarted until it works
    "give_up",  # a build, or an old generation: remove it
    "replace",  # it can never be right again: build another one, or remove it if it is not shown
    "wait",
]


@dataclass(frozen=True)
class Death:
    """Why a query died."""

    cause: str  # in one sentence
    outdated: str | None = None  # why no restart can help, if none can
    is_of_checkpoint: bool = False  # whether it came from reading the checkpoint


@dataclass(frozen=True)
class Health:
    """Health of a generation at one moment."""

    query: QueryState = "none"
    mode: Mode = "micro_batch"  # that its query was started in
    next_mode: Mode = "micro_batch"  # that it should read in
    has_wrong_batches: bool = False  # whether its batches in real time should have another length, or do not end
    starts: int = 0  # of its query
    tries: int = 0  # starts since it worked last
    retry_at: float = 0.0
    trouble: str | None = None  # why its query died
    is_checkpoint_doubted: bool = False  # whether that came from reading its checkpoint
    blocked: str | None = None  # why its topics cannot be read
    outdated: str | None = None  # why it can never be right again
    lag: int = 0  # records that its topics have and the server does not

    @property
    def has_query(self) -> bool:
        return self.query != "none"

    @property
    def problem(self) -> str | None:
        """Why it does not advance, if it does not."""
        return self.blocked or self.trouble

    @property
    def has_failed(self) -> bool:
        """Whether its query has died again and again."""
        return self.tries >= TRIES and not self.has_query

    def is_start_due(self, now: float) -> bool:
        """Whether its query should be started now, if its topics can be read."""
        return not self.has_query and not self.outdated and now >= self.retry_at

    # What happens to it

    def tried(self) -> Health:
        """A start counts as a try, until the query works."""
        return replace(self, starts=self.starts + 1, tries=self.tries + 1)

    def running(self) -> Health:
        return replace(self, query="running", mode=self.next_mode, has_wrong_batches=False)

    def stopped(self) -> Health:
        return replace(self, query="none")

    def died(self, death: Death, now: float) -> Health:
        return replace(
            self,
            query="none",
            trouble=death.cause,
            is_checkpoint_doubted=death.is_of_checkpoint,
            outdated=death.outdated or self.outdated,
            retry_at=now + delay_seconds(self.tries, FIRST_DELAY_SECONDS, DELAY_SECONDS_MAX),
        )

    def working(self) -> Health:
        return replace(self, tries=0, trouble=None)

    def blocked_by(self, reason: str | None, retry_at: float) -> Health:
        """Its topics cannot be read for this reason, until they are checked again; None: they can."""
        return replace(self, blocked=reason, retry_at=retry_at if reason else self.retry_at)

    def outdated_by(self, reason: str | None) -> Health:
        """It can never be right again; the first reason stays."""
        return replace(self, outdated=self.outdated or reason)


def next_step(state: GenerationState, health: Health, now: float) -> Step:
    """Return what to do next with a generation; after it, there may be another step."""
    is_shown = state in ("live", "failed")
    if health.query == "died":
        return "record_death"
    if health.has_query:
        return _next_step_while_running(health)
    if health.is_start_due(now) and not health.blocked:
        return "restart" if health.starts else "start"
    if is_shown and health.has_failed and health.is_checkpoint_doubted and not health.outdated:
        return "set_checkpoint_aside"
    if state == "live" and (health.has_failed or health.blocked):
        return "report_failure"
    if health.outdated:
        return "replace"
    return "give_up" if health.has_failed and not is_shown else "wait"


def _next_step_while_running(health: Health) -> Step:
    if health.outdated:
        return "replace"
    if health.query == "steady" and health.tries:
        return "forget_failures"
    return "change_mode" if health.next_mode != health.mode or health.has_wrong_batches else "wait"
