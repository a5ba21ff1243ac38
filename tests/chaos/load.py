"""A producer of many records whose tables are known without keeping them: every user has an id of its own."""

from __future__ import annotations

import json
import random
import threading
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaError, Message, Producer

from tests.support.system import WAIT_SECONDS

TICK_SECONDS = 0.02
USERS_EVERY = 5  # one record in so many is a user's; the others are accounts of users that are there


@dataclass
class Pair:
    """Two topics, and what was sent to them."""

    users: str
    accounts: str
    users_sent: int = 0
    accounts_sent: int = 0
    with_account: set[int] = field(default_factory=set)

    @property
    def rows(self) -> dict[str, int]:
        """How many rows each table must have, with a left join: a user is a row for each account, or one alone."""
        alone = self.users_sent - len(self.with_account)
        return {
            "users_ui": self.users_sent,
            "accounts_ui": self.accounts_sent,
            "final_ui": self.accounts_sent + alone,
        }


class Load:
    """Sends records to a pair of topics at a steady rate, which may be changed, as the topics may."""

    def __init__(self, bootstrap: str, pair: Pair, rate: float, seed: int) -> None:
        self.pair, self.rate = pair, rate
        self.failure: BaseException | None = None
        self.sent = 0
        self._chance = random.Random(seed)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "queue.buffering.max.messages": 1_000_000,
                "on_delivery": self._delivered,
            }
        )
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def point(self, pair: Pair) -> None:
        with self._lock:
            self.pair = pair

    def stop(self) -> None:
        """Send nothing more; everything that was sent is with Kafka when this returns."""
        self._closing.set()
        self._thread.join()
        assert self._producer.flush(WAIT_SECONDS) == 0, "not all records were taken"
        assert self.failure is None, self.failure

    def _run(self) -> None:
        due, last = 0.0, time.monotonic()
        while not self._closing.wait(TICK_SECONDS):
            now = time.monotonic()
            due, last = min(due + self.rate * (now - last), self.rate), now
            count = int(due)
            due -= count
            with self._lock:
                for _ in range(count):
                    self._send(self.pair)
            self._producer.poll(0)

    def _send(self, pair: Pair) -> None:
        number = pair.users_sent + pair.accounts_sent
        if number % USERS_EVERY == 0:
            user = pair.users_sent
            value = {"userId": f"u{user}", "name": f"{pair.users} {user}", "age": user % 90}
            pair.users_sent += 1
            topic = pair.users
        else:
            user = self._chance.randrange(pair.users_sent)
            value = {"userId": f"u{user}", "accountType": pair.accounts, "balance": number / 2}
            pair.with_account.add(user)
            pair.accounts_sent += 1
            topic = pair.accounts
        while True:
            try:
                self._producer.produce(topic, json.dumps(value).encode(), partition=number % 2)
            except BufferError:
                self._producer.poll(0.05)
            else:
                break
        self.sent += 1

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self.failure = AssertionError(f"a record was not taken: {error}")
