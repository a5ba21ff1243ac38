"""Control messages: what is sent, and what becomes of it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from livetables.client.http import HttpClient, UnreachableError
from livetables.model.control_message import ControlMessage, Fields, Unreadable, check
from livetables.model.errors import RETRYABLE, ConfigError, RequestError, SetupError

LOOK_SECONDS = 0.25
PASSING = RETRYABLE | {"limit", "internal"}  # errors of a question that may be answered later
DONE = ("applied", "unchanged")


@dataclass(frozen=True)
class Outcome:
    """What became of a control message: `applied`, `unchanged`, `superseded`, `rejected` or `failed`, and `why`.

    `topic`, `partition` and `offset` are where the message is.
    """

    outcome: str
    why: str | None
    generation: str | None
    topic: str
    partition: int
    offset: int

    @property
    def is_done(self) -> bool:
        """Whether what was asked for is so now."""
        return self.outcome in DONE


def control_fields(
    topics: Mapping[str, str | None],
    join: str | None = None,
    view: str | None = None,
    rollback: bool = False,
    discard: str | None = None,
) -> Fields:
    """Return the message for these topics, by table, and this join; what is None stays as it is."""
    if view is not None and join is None:
        raise ConfigError(f"view is {view}, but no join is given", "give the view's join too")
    given = {table: topic for table, topic in topics.items() if topic is not None}
    joins = {view: join} if view is not None and join is not None else {}
    fields = ControlMessage(given, None if joins else join, rollback, discard, joins=joins).fields()
    message = check(fields)
    if isinstance(message, Unreadable):
        raise ConfigError(message.reason, "`livetables control --help` has examples")
    return fields


def send(http_client: HttpClient, message: Fields, seconds_max: float, notify: Callable[[str], None]) -> Outcome:
    """Publish a message, and wait for what becomes of exactly this one; `notify` is called with what is waited for."""
    deadline = time.monotonic() + seconds_max
    message_id = uuid.uuid4().hex
    receipt = _sent(http_client, message, message_id, deadline, notify)
    return _outcome(http_client, receipt, message_id, deadline, notify)


def _sent(
    http_client: HttpClient, message: Fields, message_id: str, deadline: float, notify: Callable[[str], None]
) -> dict[str, Any]:
    """Where on the control topic the message is. A pipeline that starts is waited for, and a server that is away.

    It has an id of its own: when an answer got lost, it is sent again, and published once.
    """
    is_sent = False  # perhaps
    while True:
        try:
            receipt: dict[str, Any] = http_client.post("/api/control", message, {"Idempotency-Key": message_id})
        except UnreachableError as error:
            if not (is_sent or error.may_have_arrived) or time.monotonic() > deadline:
                raise
            problem = error.problem
        except RequestError as error:
            if not error.is_retryable or time.monotonic() > deadline:
                raise
            problem = error.problem
        else:
            return receipt
        is_sent = True
        notify(problem)
        time.sleep(LOOK_SECONDS)


def _outcome(
    http_client: HttpClient, receipt: dict[str, Any], message_id: str, deadline: float, notify: Callable[[str], None]
) -> Outcome:
    """Wait for the outcome. The server may be away meanwhile, or unable to say: it keeps what it was sent."""
    place = {"partition": receipt["partition"], "offset": receipt["offset"]}
    while True:
        try:
            for row in http_client.rows("control_raw", equal=place):
                # An older message may be at the same place of another topic, or of one that was created again.
                if row["outcome"] and message_id in (row["raw"] or ""):
                    return Outcome(**{name: row[name] for name in ("outcome", "why", "generation")}, **receipt)
            for status in http_client.rows("orchestrator_status"):
                notify(status["message"] or status["state"])
        except UnreachableError as error:
            notify(error.problem)
        except RequestError as error:
            if error.code not in PASSING:
                raise
            notify(error.problem)
        if time.monotonic() > deadline:
            raise SetupError(
                f"the message is at offset {receipt['offset']} of topic {receipt['topic']}, but not decided in time",
                "it is not lost: `livetables status` shows what the pipeline does; wait longer with a greater timeout",
            )
        time.sleep(LOOK_SECONDS)
