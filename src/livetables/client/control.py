"""Control messages: what is sent, and what becomes of it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from livetables.client.http import Door, UnreachableError
from livetables.model.errors import ConfigError, RequestError, SetupError

LOOK_SECONDS = 0.25
DONE = ("applied", "unchanged")

Message = dict[str, str | bool]


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


def control_message(
    topics: Mapping[str, str | None], join: str | None, rollback: bool, discard: str | None = None
) -> Message:
    """The message for these topics, by table; one that is None stays as it is."""
    message: Message = {f"{table}Topic": topic for table, topic in topics.items() if topic is not None}
    if join is not None:
        message["joinType"] = join
    if discard is not None and (message or rollback):
        raise ConfigError("discarding a generation goes alone", "send two messages")
    if discard is not None:
        return {"discard": discard}
    if rollback and message:
        raise ConfigError("a rollback goes alone", "send the rollback first, then the change")
    if rollback:
        return {"rollback": True}
    if not message:
        raise ConfigError(
            "there is nothing to change", "give a topic, a join or a rollback; `livetables control --help` has examples"
        )
    return message


def send(door: Door, message: Message, seconds_max: float, tell: Callable[[str], None]) -> Outcome:
    """Publish a message, and wait for what becomes of exactly this one; `tell` hears what is waited for."""
    deadline = time.monotonic() + seconds_max
    receipt = _sent(door, message, deadline, tell)
    return _outcome(door, receipt, deadline, tell)


def _sent(door: Door, message: Message, deadline: float, tell: Callable[[str], None]) -> dict[str, Any]:
    """Where on the control topic the message is. A pipeline that starts is waited for.

    It has an id of its own: when an answer got lost, it is sent again, and published once.
    """
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    is_sent = False  # perhaps
    while True:
        try:
            receipt: dict[str, Any] = door.post("/api/control", message, headers)
        except UnreachableError as error:
            if not (is_sent or error.may_have_arrived) or time.monotonic() > deadline:
                raise
            is_sent = True
            tell(error.problem)
            time.sleep(LOOK_SECONDS)
        except RequestError as error:
            if error.code != "unavailable" or time.monotonic() > deadline:
                raise
            is_sent = True
            tell(error.problem)
            time.sleep(LOOK_SECONDS)
        else:
            return receipt


def _outcome(door: Door, receipt: dict[str, Any], deadline: float, tell: Callable[[str], None]) -> Outcome:
    """The server may be away meanwhile: it keeps what it is told."""
    place = {"partition": receipt["partition"], "offset": receipt["offset"]}
    while True:
        with suppress(UnreachableError):
            rows = door.rows("control_raw", equal=place)
            if rows and rows[0]["outcome"]:
                return Outcome(**{name: rows[0][name] for name in ("outcome", "why", "generation")}, **receipt)
            for status in door.rows("orchestrator_status"):
                tell(status["message"] or status["state"])
        if time.monotonic() > deadline:
            raise SetupError(
                f"the message is at offset {receipt['offset']} of topic {receipt['topic']}, but not decided in time",
                "it is not lost: `livetables status` tells what the pipeline does; wait longer with a greater timeout",
            )
        time.sleep(LOOK_SECONDS)
