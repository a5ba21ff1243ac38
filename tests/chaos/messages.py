"""Random control messages while somebody watches, and what each of them must come to."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from livetables.model.joins import JoinType
from tests.support.kafka import unique_topic
from tests.support.system import Feeder, Message, Pointing, System
from tests.support.watcher import TABLES, Watcher

Verdict = Literal["changed", "unchanged", "rejected"]

JOIN_NAMES: dict[str, JoinType] = {
    "inner": "inner",
    "join": "inner",
    "left": "left",
    "left_outer": "left",
    "natural": "natural",
    "asof": "asof",
    "aj": "asof",
}
SPREAD_SECONDS = 2.0  # over which the messages of a burst may come: less than a build takes, so that they meet one


@dataclass(frozen=True)
class Burst:
    """Messages that are sent without waiting for outcomes, with the pauses before each."""

    messages: tuple[Message, ...]
    pauses: tuple[float, ...]


def resolved(message: Message, now: Pointing, existing: Collection[str]) -> tuple[Pointing, Verdict]:
    """What a message means, in a few lines that share nothing with the product."""
    try:
        fields = json.loads(message) if isinstance(message, bytes) else message
    except ValueError:
        return now, "rejected"
    if not isinstance(fields, dict):
        return now, "rejected"
    given = {name: fields.get(name) or "" for name in ("usersTopic", "accountsTopic", "joinType")}
    if any(name.endswith("Topic") and name not in given for name in fields):
        return now, "rejected"
    if not all(isinstance(value, str) for value in given.values()):
        return now, "rejected"
    users, accounts = given["usersTopic"].strip() or now.users, given["accountsTopic"].strip() or now.accounts
    join = given["joinType"].strip().lower() or now.join
    if join not in JOIN_NAMES or not {users, accounts} <= set(existing):
        return now, "rejected"
    after = Pointing(users, accounts, JOIN_NAMES[join])
    return after, "unchanged" if after == now else "changed"


def random_message(system: System, chance: random.Random, now: Pointing | None = None) -> Message:
    now = now or system.now
    users, accounts = (chance.choice(system.of_side(side)) for side in ("users", "accounts"))
    join = chance.choice(list(JOIN_NAMES))
    return chance.choice(
        [
            *[{"joinType": join}, {"usersTopic": users}, {"accountsTopic": accounts}] * 2,
            {"usersTopic": users, "accountsTopic": accounts, "joinType": join},
            {"usersTopic": f" {users} ", "accountsTopic": "", "joinType": join.upper(), "comment": {"by": 7}},
            # to no effect
            {},
            {"usersTopic": now.users, "joinType": now.join},
            {"usersTopic": " ", "accountsTopic": None},
            # bad
            bad_message(system, chance),
            {"usersTopic": unique_topic("nowhere"), "joinType": join},
            {"accountsTopic": unique_topic("nowhere")},
        ]
    )


def bad_message(system: System, chance: random.Random) -> Message:
    return chance.choice(
        [
            b"not JSON",
            b'{"joinType": "inner"',
            b"\xff\xfe",
            b"[]",
            b"7",
            None,
            {"joinType": "cross"},
            {"joinType": 5},
            {"usersTopic": "no such/name!"},
            {"usersTopic": system.control_topic},
            {"ordersTopic": system.configured.users},
            {"usersTopic": system.configured.users, "joinType": "sideways"},
        ]
    )


def random_burst(system: System, chance: random.Random, count_max: int) -> Burst:
    count = 1 if chance.random() < 0.5 else min(count_max, chance.randrange(2, 6))
    together = chance.random() < 0.5
    now, messages = system.now, []
    for _ in range(count):
        message = random_message(system, chance, now)
        now, _ = resolved(message, now, system.topics)
        messages.append(message)
    return Burst(
        tuple(messages),
        tuple(0.0 if together or not place else chance.random() * SPREAD_SECONDS for place in range(count)),
    )


def run_messages(
    system: System,
    watcher: Watcher,
    feeder: Feeder,
    count: int,
    chance: random.Random,
    notify: Callable[[str], None] = print,
) -> float:
    """Send so many messages in bursts; after each burst the tables must be what its last state says.

    Returns the longest time, from a message to its outcome, in which the watcher got no frame of a table.
    """
    gap_seconds = 0.0
    while count > 0:
        burst = random_burst(system, chance, count)
        count -= len(burst.messages)
        notify(f"{burst}")
        gap_seconds = max(gap_seconds, run_burst(system, watcher, feeder, burst))
    check_order(system)
    check_watched(watcher, system)
    return gap_seconds


def run_burst(system: System, watcher: Watcher, feeder: Feeder, burst: Burst) -> float:
    """Send a burst and wait until it is settled; the longest time without a frame until then."""
    before, verdicts = system.now, point(system, burst.messages)
    now = system.now
    with feeder.paused:
        rows_before = {name: len(rows) for name, rows in system.stage(now).expected({"final_ui": now.join}).items()}
    seen_before, started = set(watcher.sights), time.monotonic()
    for message, pause in zip(burst.messages, burst.pauses, strict=True):
        time.sleep(pause)  # not a wait: when a message comes, and what it meets, is what is random
        system.send_control(message)
    system.wait_decided()
    gap_seconds = watcher.gap_seconds(started, time.monotonic())
    with feeder.paused:
        system.wait_for_tables()
    check_outcomes(system.outcomes(len(verdicts)), verdicts, returns=now == before)
    generation = system.status()["generation"]
    system.wait(
        lambda: {watcher.generation(table) for table in TABLES} == {generation} or bool(watcher.violations),
        f"the watcher has seen generation {generation}",
    )
    for table in TABLES:
        if (table, generation) not in seen_before:
            sight = watcher.sights[table, generation]
            assert sight.rows_at_first >= rows_before[table], (
                f"{table} was switched to {generation} when it had {sight.rows_at_first} rows of {rows_before[table]}"
            )
    assert watcher.violations == []
    return gap_seconds


def point(system: System, messages: Iterable[Message]) -> list[Verdict]:
    """Take note of where messages that are sent now point to, and of what each of them must come to."""
    verdicts = []
    for message in messages:
        system.now, verdict = resolved(message, system.now, system.topics)
        verdicts.append(verdict)
    return verdicts


def check_outcomes(outcomes: Sequence[str | None], verdicts: Sequence[Verdict], *, returns: bool) -> None:
    """Each message has come to what it had to. In a burst, a build may or may not be done when the next one comes."""
    last = max((place for place, verdict in enumerate(verdicts) if verdict == "changed"), default=None)
    for place, (outcome, verdict) in enumerate(zip(outcomes, verdicts, strict=True)):
        possible: set[str] = {verdict}
        if verdict == "changed":
            possible = {"applied"} if place == last else {"applied", "superseded"}
            if place == last and returns:
                possible.add("unchanged")
        elif verdict == "unchanged" and last is not None:
            possible.add("superseded")
        assert outcome in possible, f"message {place} of {verdicts} came to {outcome}: {outcomes}"


def check_order(system: System) -> None:
    """The rows of control_raw are the messages in the order sent."""
    rows = system.control_rows()
    assert [row["offset"] for row in rows] == list(range(system.control_sent))
    raw = [None if value is None else value.decode(errors="replace") for value in system.control_values]
    assert [row["raw"] for row in rows] == raw
    assert all(row["outcome"] and row["decided"] for row in rows)


def check_watched(watcher: Watcher, system: System) -> None:
    """Nothing was seen that should not be, and each generation had the rows of its own topics, and no others."""
    assert watcher.violations == []
    topics = {row["generation"]: (row["usersTopic"], row["accountsTopic"]) for row in system.generations()}
    for (table, generation), sight in watcher.sights.items():
        users, accounts = (system.topics[name].mark for name in topics[generation])
        own = {"users_ui": {users}, "accounts_ui": {accounts}, "final_ui": {users, accounts}}[table]
        assert sight.topics <= own, f"{table} of {generation} had rows of {sight.topics}"


def other_pointing(system: System, chance: random.Random) -> Pointing:
    """Something else to point to."""
    while True:
        after = Pointing(
            chance.choice(system.of_side("users")),
            chance.choice(system.of_side("accounts")),
            chance.choice(list(JOIN_NAMES.values())),
        )
        if after != system.now:
            return after


def send_pointing(system: System, pointing: Pointing) -> None:
    """Ask for exactly this."""
    system.now = pointing
    system.send_control(message_for(pointing))


def message_for(pointing: Pointing) -> Message:
    return {"usersTopic": pointing.users, "accountsTopic": pointing.accounts, "joinType": pointing.join}
