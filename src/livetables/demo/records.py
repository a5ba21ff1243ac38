"""Demo records: people and their accounts, with updates, late and broken records. A pure function of its options."""

from __future__ import annotations

import itertools
import json
import math
import random
import time
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

USER_UPDATE_SHARE = 0.1  # of the records after the first of each user
UNKNOWN_USER_SHARE = 0.01  # of the accounts: their user is never sent
NO_ACCOUNT_SHARE = 0.05  # of the users: they never get an account
MISSING_FIELD_SHARE = 0.005
UNKNOWN_FIELD_SHARE = 0.005
NULL_KEY_SHARE = 0.002
LATE_SECONDS = (2.0, 300.0)

FIRST_NAMES = (
    "Ada", "Agnès", "Aisha", "Amara", "Björn", "Carlos", "Chloé", "Daniel", "Elena", "Fatima", "Grace", "Hiroshi",
    "Ingrid", "Ivan", "Jürgen", "Kofi", "Leila", "Łukasz", "Mei", "Nadia", "Noah", "Olga", "Priya", "Quentin", "Rosa",
    "Sofía", "Tariq", "Uma", "Viktor", "Wanjiru", "Ximena", "Yusuf", "Zoë", "Δημήτρης", "Наталья", "太郎", "민준",
)  # fmt: skip
LAST_NAMES = (
    "Abbott", "Ångström", "Becker", "Castillo", "Díaz", "Eriksen", "Fischer", "García", "Haddad", "Ito", "Jensen",
    "Kowalski", "Lindqvist", "Mbeki", "Müller", "Nakamura", "O'Brien", "Papadopoulos", "Quispe", "Rossi", "Šimić",
    "Tanaka", "Ueda", "Vargas", "Weiß", "Xu", "Yücel", "Zhang", "山田", "Иванова",
)  # fmt: skip
DOMAINS = ("example.com", "example.org", "example.net", "mail.example.com")
ACCOUNT_TYPES = tuple(
    itertools.chain.from_iterable(
        itertools.repeat(name, percent)
        for name, percent in (
            ("checking", 40), ("savings", 25), ("credit", 20), ("brokerage", 8), ("mortgage", 4), ("retirement", 3),
        )
    )
)  # fmt: skip
UNKNOWN_FIELDS: tuple[tuple[str, object], ...] = (
    ("loyaltyTier", "gold"),
    ("tags", ["vip", "beta"]),
    ("address", {"city": "Zürich", "zip": "8001"}),
    ("optIn", True),
)

Role = Literal["user", "account"]
Fields = dict[str, Any]
Clock = Callable[[], int]


@dataclass(frozen=True)
class DemoOptions:
    """What to make: how many of which records, and how many of them are out of the ordinary."""

    users_topic: str = "user"
    accounts_topic: str = "account"
    users: int = 1000
    accounts: int | None = None  # None: without end
    seed: int = 1
    bad_share: float = 0.001
    late_share: float = 0.01

    def topic(self, role: Role) -> str:
        return self.users_topic if role == "user" else self.accounts_topic


@dataclass(frozen=True)
class DemoRecord:
    """One record to send. `bad` says how it is bad, None if it becomes a row."""

    topic: str
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    role: Role
    bad: str | None = None
    late: bool = False


@dataclass(frozen=True)
class BadKind:
    """A way of being bad: what it is called, which topic it is shown on, and what it makes of a good record."""

    name: str
    role: Role
    spoil: Callable[[Fields], bytes | None]


_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def encoded(value: object) -> bytes:
    """JSON as most producers write it: UTF-8, not escaped."""
    return _JSON.encode(value).encode()


def _with(**changes: object) -> Callable[[Fields], bytes]:
    return lambda fields: encoded(fields | changes)


# They take turns, so that a short run shows many of them.
BAD_KINDS: tuple[BadKind, ...] = (
    BadKind("not JSON", "account", lambda fields: f"account of {fields['userId']} opened".encode()),
    BadKind("text for a number", "user", _with(age="x")),
    BadKind("truncated", "account", lambda fields: encoded(fields)[:-9]),
    BadKind("int64 overflow", "user", _with(age=2**63)),
    BadKind("array", "account", lambda fields: encoded([fields])),
    BadKind("null value", "user", lambda _: None),
    BadKind("invalid UTF-8", "user", lambda fields: encoded(fields | {"name": "?"}).replace(b"?", b"Jos\xe9 \xff")),
    BadKind("array for text", "account", _with(accountType=["checking"])),
    BadKind("fraction for an integer", "user", _with(age=41.5)),
    BadKind("text for a double", "account", _with(balance="12.50 EUR")),
    BadKind("empty", "account", lambda _: b""),
    BadKind("boolean for a number", "user", _with(age=True)),
    BadKind("JSON null", "account", lambda _: b"null"),
    BadKind("object for text", "user", lambda fields: encoded(fields | {"email": {"home": "ada@example.com"}})),
    BadKind("bare number", "account", lambda _: b"42"),
    BadKind("unquoted field", "account", lambda fields: encoded(fields).replace(b'"balance"', b"balance")),
    BadKind("bare text", "user", lambda fields: encoded(fields["userId"])),
    BadKind("object for a key", "account", _with(userId={"id": 42})),
    BadKind("array for a number", "account", _with(balance=[1.0, 2.0])),
)


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def demo_records(options: DemoOptions, clock: Clock = wall_clock_ms) -> Iterator[DemoRecord]:
    """The records of a demo, in order: every user once, then mostly accounts, with user updates in between.

    The same options and the same readings of `clock` give the same records. `options.users` and `options.accounts`
    count good records; bad ones come on top.
    """
    rng = random.Random(options.seed)  # noqa: S311  repeatable on purpose, nothing here is secret
    bad_kinds = itertools.cycle(BAD_KINDS)
    users = [_new_user(rng, number) for number in range(options.users)]
    for role, fields in _good_records(options, rng, users):
        while rng.random() < options.bad_share:
            yield _bad_record(options, next(bad_kinds), rng, users, clock())
        key = fields.get("userId")
        late = rng.random() < options.late_share
        yield DemoRecord(
            topic=options.topic(role),
            key=None if key is None else key.encode(),
            value=encoded(fields),
            timestamp_ms=clock() - (_lateness_ms(rng) if late else 0),
            role=role,
            late=late,
        )


def _good_records(options: DemoOptions, rng: random.Random, users: list[Fields]) -> Iterator[tuple[Role, Fields]]:
    for user in users:
        yield "user", _seasoned(rng, user)
    owners = [user["userId"] for user in users if rng.random() >= NO_ACCOUNT_SHARE] or [users[0]["userId"]]
    accounts = 0
    while options.accounts is None or accounts < options.accounts:
        if rng.random() < USER_UPDATE_SHARE:
            user = rng.choice(users)
            user["email"] = _email(rng, user["name"])
            user["age"] += 1
            yield "user", _seasoned(rng, user)
        else:
            yield "account", _seasoned(rng, _new_account(rng, owners))
            accounts += 1


def _new_user(rng: random.Random, number: int) -> Fields:
    name = f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}"
    return {"userId": f"u{number:06d}", "name": name, "email": _email(rng, name), "age": rng.randint(18, 90)}


def _new_account(rng: random.Random, owners: list[str]) -> Fields:
    owner = f"x{rng.randrange(10_000):06d}" if rng.random() < UNKNOWN_USER_SHARE else rng.choice(owners)
    kind = rng.choice(ACCOUNT_TYPES)
    amount = round(rng.lognormvariate(7.5, 1.2), 2)
    return {"userId": owner, "accountType": kind, "balance": -amount if kind in ("credit", "mortgage") else amount}


def _email(rng: random.Random, name: str) -> str:
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower().replace("'", "")
    mailbox = ".".join(plain.split()) or "user"
    return f"{mailbox}{rng.randrange(1000)}@{rng.choice(DOMAINS)}"


def _seasoned(rng: random.Random, fields: Fields) -> Fields:
    """A copy that may lack a field, have one nobody knows, or have no userId: still a good record."""
    seasoned = dict(fields)
    draw = rng.random()
    if draw < MISSING_FIELD_SHARE:
        del seasoned[rng.choice([name for name in seasoned if name != "userId"])]
    elif (draw := draw - MISSING_FIELD_SHARE) < UNKNOWN_FIELD_SHARE:
        name, value = rng.choice(UNKNOWN_FIELDS)
        seasoned[name] = value
    elif (draw := draw - UNKNOWN_FIELD_SHARE) < NULL_KEY_SHARE / 2:
        seasoned["userId"] = None
    elif draw < NULL_KEY_SHARE:
        del seasoned["userId"]
    return seasoned


def _bad_record(
    options: DemoOptions, kind: BadKind, rng: random.Random, users: list[Fields], now_ms: int
) -> DemoRecord:
    user = rng.choice(users)
    fields = dict(user) if kind.role == "user" else _new_account(rng, [user["userId"]])
    return DemoRecord(
        topic=options.topic(kind.role),
        key=fields["userId"].encode(),
        value=kind.spoil(fields),
        timestamp_ms=now_ms,
        role=kind.role,
        bad=kind.name,
    )


def _lateness_ms(rng: random.Random) -> int:
    """Mostly seconds, sometimes minutes."""
    shortest, longest = (math.log(seconds) for seconds in LATE_SECONDS)
    return int(1000 * math.exp(rng.uniform(shortest, longest)))
