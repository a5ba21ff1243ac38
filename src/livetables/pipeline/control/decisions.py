"""Control messages from their arrival to their outcome: what is wanted now, and the outcome of each message."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import UTC, datetime

from livetables.kafka.topics import ControlRecord, in_order
from livetables.model.control_message import ControlMessage, Unreadable, parse
from livetables.model.spec import record_id
from livetables.pipeline.control.resolve import (
    Build,
    ControlState,
    Decided,
    Discard,
    Outcome,
    Plan,
    Rejected,
    Resolver,
    Rollback,
    Unchanged,
)
from livetables.pipeline.generations.wanted import Wanted
from livetables.pipeline.log import log_event, warn
from livetables.pipeline.reporting import status
from livetables.pipeline.reporting.status_tables import StatusTables

IGNORED_SHOWN_MAX = 5  # names of unknown fields
# `control_raw` has the newest messages, and of older ones those without which a restart would find another state.
MESSAGES_MAX = 10_000
MESSAGES_MORE = 1_000  # that may come before the oldest are removed
CHANGES_MIN = 50  # of older messages that have changed something, for a rollback
OWN_COLUMNS = {"_id", "ts", "partition", "offset", "raw", "outcome", "why", "generation", "decided"}  # of a message
NO_EFFECT: tuple[Outcome, ...] = ("rejected", "failed")


class Decisions:
    """Decisions on messages, in the order in which they come. Their outcomes are rows of `control_raw`.

    Messages that came while a build was under way *wait* for its end: the last that asked for one, and those that went
    into what it asked for. When the build fails they all have failed, and what was applied last is wanted again.
    """

    def __init__(self, resolver: Resolver, tables: StatusTables) -> None:
        self.settled = self.wanted = Wanted.by(resolver.spec)  # what was applied last, and what is wanted since
        self.last_applied: datetime | None = None
        self.notice = ""  # the last problem
        self.undecided: list[ControlRecord] = []
        self._resolver = resolver
        self._tables = tables
        self._previous: Wanted | None = None  # what was wanted before, in messages from before the start
        self._is_restoring = False
        self._ids: dict[str, ControlRecord] = {}  # of messages, with the first that had it
        self._others: set[str] = set()  # systems that share the control topic, as far as they are known
        self._waiting: dict[int, Outcome] = {}  # by the record's id: its outcome if the build succeeds

    def restore(self, records: Sequence[ControlRecord]) -> None:
        """Restore the outcomes of the messages on the topic; those without one are undecided."""
        known = {_id(record): decided for record in records if (decided := self._decided_before(record))}
        self._ids = {}
        repeated = {_id(record) for record in records if self._first_of(record, parse(record.value)) is not record}
        # One that was sent twice counts once, where it came first.
        restored = self._resolver.restored(each for place, each in known.items() if place not in repeated)
        self.settled, self.wanted = restored.applied, restored.state.wanted
        self.last_applied = next((row["lastApplied"] for row in self._tables.rows("orchestrator_status")), None)
        self.undecided = self._undecided(records, known)
        self._previous = restored.state.previous
        self._is_restoring = True
        counted = [place for place in known if place not in repeated]
        self._waiting = {counted[place]: "superseded" for place in restored.waiting}
        log_event(
            "control_read",
            messages=len(records),
            undecided=len(self.undecided),
            **status.pointed_to(self.wanted, self._resolver.spec),
        )

    def topics_asked_for(self) -> set[str]:
        """Return the topics that undecided messages name."""
        messages = [parse(record.value) for record in self.undecided]
        return {topic for each in messages if isinstance(each, ControlMessage) for topic in each.topics.values()}

    def decide(self, unusable: Mapping[str, str], lingering: Wanted | None, kept: Iterable[str] = ()) -> Plan:
        """Decide on the first undecided message: `unusable` has why topics cannot be read.

        A Rollback and a Discard are the caller's to make before it is `decided`; everything else is done. A Rollback is
        `accepted` when it is sure.
        """
        record = self.undecided[0]
        message = parse(record.value)
        self._record(record, message)
        self._look_who_sent(record, message)
        first = self._first_of(record, message)
        if first is not record:
            self._settle(_id(record), "unchanged", f"it is message {_place(first)}, sent twice")
            log_event("repeated", partition=record.partition, offset=record.offset, first=first.offset)
            return Unchanged()
        previous = self._previous if lingering is None and self._is_restoring else lingering
        plan = self._resolver.resolve(message, ControlState(self.wanted, previous, tuple(kept)), unusable)
        match plan:
            case Rejected(reason):
                self._settle(_id(record), "rejected", reason)
                self.notice = f"message {_place(record)} was rejected: {reason}"
                log_event("rejected", partition=record.partition, offset=record.offset, why=reason)
            case Unchanged():
                self._waiting[_id(record)] = "unchanged"
                self.notice = ""
                log_event("resolved", **status.pointed_to(self.wanted, self._resolver.spec), changed=False)
            case Discard(generation):
                log_event("resolved", discard=generation)
            case Build(wanted):
                self.accepted(wanted)
            case Rollback():
                pass
        return plan

    def accepted(self, wanted: Wanted) -> None:
        """Have the first undecided message wait until what it asks for is live."""
        record = self.undecided[0]
        self._supersede(record)
        self._waiting[_id(record)] = "applied"
        self._previous, self.wanted = self.wanted, wanted
        self.notice = ""
        log_event("resolved", **status.pointed_to(wanted, self._resolver.spec), changed=True)

    def decided(self) -> None:
        """Remove the first undecided message: it is settled."""
        del self.undecided[0]
        self._remove_oldest()
        self._is_restoring = self._is_restoring and bool(self.undecided)

    def discarded(self, generation: str) -> None:
        """Settle the first undecided message, which asked to remove a generation: it is gone."""
        self._settle(_id(self.undecided[0]), "applied", f"{generation} was removed", generation)
        self.notice = ""

    @property
    def went_back_to(self) -> str | None:
        """The generation to which the last message that changed something went back; None if it asked for another."""
        changes = {
            row["_id"]: row for row in self._tables.rows("control_raw") if row["outcome"] == "applied" and _asks(row)
        }
        if not changes:
            return None
        last = changes[_id(in_order(map(_record_of, changes.values()))[-1])]
        return str(last["generation"]) if last["rollback"] else None

    @property
    def are_waiting(self) -> bool:
        return bool(self._waiting)

    def concluded(self, wanted: Wanted, generation: str, why: str, *, was_live: bool) -> None:
        """Settle what waits: what was wanted is live, or was so all the time."""
        self.settled = self.wanted = wanted
        for message, outcome in self._waiting.items():
            if outcome != "superseded":
                self._settle(message, "unchanged" if was_live else outcome, why, generation)
        self._waiting = {}
        self.last_applied = self.last_applied or datetime.now(UTC)

    def failed(self, outcome: Outcome, reason: str) -> None:
        """Settle what waits: what was wanted failed, and what was applied last is wanted again."""
        for message, hoped in self._waiting.items():
            why = reason if hoped == "applied" else f"the message that includes it failed: {reason}"
            self._settle(message, outcome, why)
        self._waiting = {}
        self.wanted = self.settled
        self.notice = f"{outcome}: {reason}"
        log_event(outcome, why=reason)

    def _undecided(self, records: Sequence[ControlRecord], known: Container[int]) -> list[ControlRecord]:
        """Return the messages that are to be decided on. One without a row before one that has a row was removed."""
        last = {record.partition: record.offset for record in records if self._has_row(record)}
        return [
            record
            for record in records
            if _id(record) not in known
            and (self._has_row(record) or record.offset > last.get(record.partition, record.offset - 1))
        ]

    def _remove_oldest(self) -> None:
        """Remove the rows of the oldest messages, as far as a restart finds the same state without them."""
        rows = {row["_id"]: row for row in self._tables.rows("control_raw")}
        if len(rows) <= MESSAGES_MAX + MESSAGES_MORE:
            return
        order = [_id(record) for record in in_order(map(_record_of, rows.values()))]
        old = [each for each in order[:-MESSAGES_MAX] if rows[each]["outcome"] and each not in self._waiting]
        needed = _needed([rows[each] for each in order], old)
        for removed in (set(old) - needed, {each for each in old if rows[each]["outcome"] in NO_EFFECT}):
            left = [each for each in order if each not in removed]
            if self._restored(rows[each] for each in left) == self._restored(rows[each] for each in order):
                self._tables.keep_only("control_raw", left)
                return

    def _restored(self, rows: Iterable[status.Row]) -> tuple[Wanted, ControlState, list[int]]:
        """Return what a restart would make of these rows: what was applied, what is wanted, and which messages wait."""
        settled = [row for row in rows if row["outcome"]]
        restored = self._resolver.restored(self._decided_as(row, parse((row["raw"] or "").encode())) for row in settled)
        return restored.applied, restored.state, [settled[place]["_id"] for place in restored.waiting]

    def _has_row(self, record: ControlRecord) -> bool:
        row = self._tables.row("control_raw", _id(record))
        return row is not None and row["ts"] == record.timestamp and row["raw"] == status.readable(record.value)

    def _decided_before(self, record: ControlRecord) -> Decided | None:
        """Return the outcome that a message got before the start. A topic created again may have another there."""
        row = self._tables.row("control_raw", _id(record))
        if not row or not self._has_row(record) or row["outcome"] is None:
            return None
        return self._decided_as(row, parse(record.value))

    def _decided_as(self, row: status.Row, message: ControlMessage | Unreadable) -> Decided:
        is_rollback = isinstance(message, ControlMessage) and message.rollback
        generation = self._tables.row("generations", row["generation"]) if is_rollback else None
        wanted = status.pointed_by(generation, self._resolver.spec) if generation else None
        return Decided(message, row["outcome"], wanted)

    def _record(self, record: ControlRecord, message: ControlMessage | Unreadable) -> None:
        raw = status.readable(record.value)
        place = {"_id": _id(record), "ts": record.timestamp, "partition": record.partition, "offset": record.offset}
        undecided = {"outcome": None, "why": None, "generation": None, "decided": None}
        self._tables.set(
            "control_raw", {**place, "raw": raw, **status.asked_for(message, self._resolver.spec), **undecided}
        )
        ignored = _shown(message.ignored) if isinstance(message, ControlMessage) and message.ignored else None
        log_event("control", partition=record.partition, offset=record.offset, value=raw, ignored=ignored)

    def _first_of(self, record: ControlRecord, message: ControlMessage | Unreadable) -> ControlRecord:
        """Return the first record that has the id of this one: another one, if a lost answer had it sent twice."""
        message_id = message.message_id if isinstance(message, ControlMessage) else None
        if message_id is None:
            return record
        first = self._ids.setdefault(message_id, record)
        return record if _id(first) == _id(record) else first

    def _look_who_sent(self, record: ControlRecord, message: ControlMessage | Unreadable) -> None:
        """Warn of another system that shares the control topic."""
        if not (self._resolver.is_foreign(message) and isinstance(message, ControlMessage) and message.system):
            return
        if message.system not in self._others:
            self._others.add(message.system)
            warn(
                "control_topic_shared",
                topic=self._resolver.control_topic,
                system=message.system,
                offset=record.offset,
                cure="give each system its own control.topic, or a name (control.system)",
            )

    def _supersede(self, by: ControlRecord) -> None:
        for message, outcome in self._waiting.items():
            if outcome != "superseded" and message != _id(by):
                self._settle(message, "superseded", f"message {_place(by)} came before it was live")
                self._waiting[message] = "superseded"

    def _settle(self, message: int, outcome: Outcome, why: str, generation: str | None = None) -> None:
        now = datetime.now(UTC)
        why = "; ".join(filter(None, [why, self._ignored_fields(message)]))
        row = {"_id": message, "outcome": outcome, "why": why, "generation": generation, "decided": now}
        self._tables.set("control_raw", row)
        if outcome in ("applied", "unchanged"):
            self.last_applied = now

    def _ignored_fields(self, message: int) -> str:
        """Name the fields of a message that are unknown, if it has any."""
        raw = (self._tables.row("control_raw", message) or {}).get("raw")
        read = parse(raw.encode()) if raw else None
        return f"ignored: {_shown(read.ignored)}" if isinstance(read, ControlMessage) and read.ignored else ""


def _shown(names: Sequence[str]) -> str:
    """Return names of fields from outside, limited in number and length."""
    more = ["..."] if len(names) > IGNORED_SHOWN_MAX else []
    return ", ".join([*(ascii(name)[:80] for name in names[:IGNORED_SHOWN_MAX]), *more])


def _id(record: ControlRecord) -> int:
    return record_id(record.partition, record.offset)


def _needed(rows: Sequence[status.Row], old: Sequence[int]) -> set[int]:
    """Return the old messages that were the last to ask for something, and the last that changed something."""
    last: set[int] = set()
    asked: set[str] = set()
    for row in reversed(rows):
        asks = _asks(row)
        if row["outcome"] not in NO_EFFECT and asks - asked:
            asked |= asks
            last.add(row["_id"])
    is_old = set(old)
    applied = [row["_id"] for row in rows if row["outcome"] == "applied" and row["_id"] in is_old]
    return (last & is_old) | set(applied[-CHANGES_MIN:])


def _asks(row: status.Row) -> set[str]:
    """Return the fields with which a message asked for something; to discard a generation is none of them."""
    return {field for field, value in row.items() if value is not None} - OWN_COLUMNS


def _record_of(row: status.Row) -> ControlRecord:
    """Return the record of a row, as far as its order needs it."""
    return ControlRecord(row["partition"], row["offset"], row["ts"], None)


def _place(record: ControlRecord) -> str:
    return f"{record.partition}:{record.offset}"
