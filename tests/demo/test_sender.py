"""Demo records are repeatable, mostly good, bad in every way there is, and all of them arrive."""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from rich.console import Console

from livetables.cli.demo_data import add_arguments, run
from livetables.config.load import load_config
from livetables.demo.records import BAD_KINDS, LATE_SECONDS, BadKind, DemoOptions, DemoRecord, demo_records
from livetables.demo.sender import Tally, produce
from livetables.formats.json import reason
from livetables.local.broker import Broker
from livetables.model.errors import BrokerError, ConfigError
from tests.support.kafka import WAIT_SECONDS, create_topic, end_offsets, unique_topic, wait_until

NO_REASON = "the record does not match the table"  # of a value that has nothing wrong with it
NOW_MS = 1_700_000_000_000


def records(options: DemoOptions) -> list[DemoRecord]:
    return list(demo_records(options, lambda: NOW_MS))


def good_fields(options: DemoOptions) -> Iterator[tuple[str, dict[str, object]]]:
    for record in records(options):
        if record.bad is None:
            assert record.value is not None
            yield record.role, json.loads(record.value)


def test_the_same_seed_gives_the_same_records() -> None:
    options = DemoOptions(accounts=2000, bad_share=0.05)
    assert records(options) == records(options)


def test_another_seed_gives_other_records() -> None:
    assert records(DemoOptions(accounts=100, seed=1)) != records(DemoOptions(accounts=100, seed=2))


def test_every_user_comes_once_before_the_first_account() -> None:
    options = DemoOptions(users=50, accounts=100, bad_share=0)
    first = records(options)[:50]
    assert {record.role for record in first} == {"user"}
    named = {json.loads(record.value or b"{}").get("userId") for record in first} - {None}
    assert len(named) >= 48  # a few have no userId


def test_users_are_updated_under_the_same_id() -> None:
    emails: dict[object, set[object]] = {}
    for role, fields in good_fields(DemoOptions(users=20, accounts=2000)):
        if role == "user" and fields.get("userId"):
            emails.setdefault(fields["userId"], set()).add(fields.get("email"))
    assert set(emails) == {f"u{number:06d}" for number in range(20)}
    assert max(len(seen) for seen in emails.values()) > 3


def test_accounts_are_counted_without_the_bad_ones() -> None:
    made = records(DemoOptions(users=10, accounts=500, bad_share=0.3))
    assert sum(record.role == "account" and record.bad is None for record in made) == 500


def test_without_a_number_of_accounts_there_is_no_end() -> None:
    endless = demo_records(DemoOptions(users=10), lambda: NOW_MS)
    assert len(list(itertools.islice(endless, 5000))) == 5000


def test_the_bad_share_is_kept() -> None:
    made = records(DemoOptions(accounts=20_000, bad_share=0.05))
    assert sum(record.bad is not None for record in made) / len(made) == pytest.approx(0.05, rel=0.15)


def test_the_late_share_is_kept_and_late_means_in_the_past() -> None:
    made = [record for record in records(DemoOptions(accounts=20_000, late_share=0.05)) if record.bad is None]
    late = [record for record in made if record.late]
    assert len(late) / len(made) == pytest.approx(0.05, rel=0.15)
    shortest_ms, longest_ms = (1000 * seconds for seconds in LATE_SECONDS)
    assert all(shortest_ms - 1 <= NOW_MS - record.timestamp_ms <= longest_ms for record in late)
    assert {record.timestamp_ms for record in made if not record.late} == {NOW_MS}


def test_no_share_means_none() -> None:
    made = records(DemoOptions(accounts=5000, bad_share=0, late_share=0))
    assert not any(record.bad or record.late for record in made)


def test_every_way_of_being_bad_takes_its_turn() -> None:
    made = Counter(record.bad for record in records(DemoOptions(accounts=2000, bad_share=0.1)) if record.bad)
    assert set(made) == {kind.name for kind in BAD_KINDS}
    assert max(made.values()) - min(made.values()) <= 1


@pytest.mark.parametrize("kind", BAD_KINDS, ids=lambda kind: kind.name)
def test_no_bad_record_could_pass_for_a_good_one_or_be_converted_into_one(kind: BadKind) -> None:
    bad = next(record for record in records(DemoOptions(accounts=2000, bad_share=0.1)) if record.bad == kind.name)
    assert not is_row(bad)
    users, accounts = load_config(None, {}).spec.tables
    assert not reason(bad.value, users if bad.role == "user" else accounts).startswith(NO_REASON)


def test_every_good_record_is_a_row() -> None:
    made = records(DemoOptions(accounts=5000, bad_share=0.05))
    assert all(is_row(record) for record in made if record.bad is None)


def test_good_records_include_missing_and_unknown_fields_null_keys_and_names_beyond_ascii() -> None:
    good = list(good_fields(DemoOptions(accounts=10_000)))
    accounts = [fields for role, fields in good if role == "account"]
    users = [fields for role, fields in good if role == "user"]
    assert any("balance" not in fields for fields in accounts)
    assert any("age" not in fields for fields in users)
    assert any(fields.keys() - {"userId", "accountType", "balance"} for fields in accounts)
    assert any("userId" not in fields for fields in accounts)
    assert any("userId" in fields and fields["userId"] is None for fields in accounts)
    assert any(not str(fields.get("name", "")).isascii() for fields in users)


def test_some_users_have_no_account_and_some_accounts_no_user() -> None:
    good = list(good_fields(DemoOptions(users=200, accounts=10_000)))
    users = {fields.get("userId") for role, fields in good if role == "user"} - {None}
    owners = {fields.get("userId") for role, fields in good if role == "account"} - {None}
    assert users - owners
    assert owners - users


@pytest.mark.kafka
def test_what_the_tally_says_is_what_arrived(broker: Broker) -> None:
    options = DemoOptions(unique_topic("user"), unique_topic("account"), users=200, accounts=3000, bad_share=0.05)
    screen = io.StringIO()

    tally = produce(
        broker.bootstrap_servers, options, stop=threading.Event(), console=Console(file=screen), partitions=3, rate=0
    )

    users = end_offsets(broker.bootstrap_servers, options.users_topic)
    accounts = end_offsets(broker.bootstrap_servers, options.accounts_topic)
    bad_users = sum(tally.bad[kind.name] for kind in BAD_KINDS if kind.role == "user")
    assert sum(users.values()) == tally.users + bad_users
    assert sum(accounts.values()) == 3000 + tally.bad.total() - bad_users
    assert len(users) == len(accounts) == 3
    assert f"{tally.records:,} records" in screen.getvalue()
    assert all(kind.name in screen.getvalue() for kind in BAD_KINDS)


@pytest.mark.kafka
def test_a_run_without_end_ends_when_it_is_stopped_with_everything_delivered(broker: Broker) -> None:
    options = DemoOptions(unique_topic("user"), unique_topic("account"), users=10)
    stop = threading.Event()
    with running(broker, options, stop) as outcome:
        stop.set()
        tally = outcome.result(WAIT_SECONDS)
    assert arrived(broker, options) == tally.records


@pytest.mark.kafka
def test_topics_that_exist_keep_their_partitions(broker: Broker) -> None:
    options = DemoOptions(unique_topic("user"), unique_topic("account"), users=5, accounts=0)
    for partitions in (1, 4):
        produce(
            broker.bootstrap_servers,
            options,
            stop=threading.Event(),
            console=Console(quiet=True),
            partitions=partitions,
        )
    assert len(end_offsets(broker.bootstrap_servers, options.users_topic)) == 1


def test_an_unreachable_broker_is_named_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("livetables.demo.sender.REACH_SECONDS", 0.1)
    with socket.socket() as nobody_listens:
        nobody_listens.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody_listens.getsockname()[1]}"
        with pytest.raises(BrokerError, match=f"no Kafka broker answers at {address}") as failure:
            run(parsed(["--bootstrap-servers", address]))
    assert "--bootstrap-servers" in failure.value.cure


@pytest.mark.kafka
def test_a_refused_topic_name_is_named_with_the_cure(broker: Broker) -> None:
    with pytest.raises(BrokerError, match="topic a topic could not be created") as failure:
        run(parsed(["--bootstrap-servers", broker.bootstrap_servers, "--users-topic", "a topic", "--seconds", "1"]))
    assert "--users-topic" in failure.value.cure


@pytest.mark.kafka
def test_a_broker_that_goes_away_is_an_error_and_not_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("livetables.demo.sender.DELIVERY_SECONDS", 1.0)
    with Broker() as doomed, running(doomed, DemoOptions(users=10), threading.Event()) as outcome:
        doomed.kill()
        with pytest.raises(BrokerError, match=r"not taken|not acknowledged"):
            outcome.result(WAIT_SECONDS)


@pytest.mark.parametrize(
    "wrong",
    [["--users", "0"], ["--rate", "-1"], ["--bad-share", "1"], ["--late-share", "1.1"], ["--partitions", "0"]],
    ids=lambda wrong: " ".join(wrong),
)
def test_an_invalid_number_is_named_with_the_cure(wrong: list[str]) -> None:
    with pytest.raises(ConfigError, match=f"{wrong[0]} is ") as failure:
        run(parsed(["--bootstrap-servers", "127.0.0.1:1", *wrong]))
    assert wrong[0] in failure.value.cure


@contextlib.contextmanager
def running(broker: Broker, options: DemoOptions, stop: threading.Event) -> Iterator[Future[Tally]]:
    """A run in another thread, of which the first records have arrived."""
    for topic in (options.users_topic, options.accounts_topic):
        create_topic(broker.bootstrap_servers, topic)
    with ThreadPoolExecutor(1) as pool:
        outcome = pool.submit(
            produce, broker.bootstrap_servers, options, stop=stop, console=Console(quiet=True), rate=1000
        )
        try:
            wait_until(lambda: outcome.done() or arrived(broker, options) > 20, "records arrive")
            yield outcome
        finally:
            stop.set()


def arrived(broker: Broker, options: DemoOptions) -> int:
    """How many records are on both topics."""
    topics = (options.users_topic, options.accounts_topic)
    return sum(sum(end_offsets(broker.bootstrap_servers, topic).values()) for topic in topics)


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(arguments)


def is_row(record: DemoRecord) -> bool:
    """Whether the record becomes a row by the rules of the preset, read strictly."""
    types = (
        {"userId": str, "name": str, "email": str, "age": int}
        if record.role == "user"
        else {"userId": str, "accountType": str, "balance": float}
    )
    try:
        fields = json.loads((record.value or b"").decode())
    except ValueError:
        return False
    return isinstance(fields, dict) and all(
        type(value) is types[name] and not (isinstance(value, int) and abs(value) >= 2**63)
        for name, value in fields.items()
        if name in types and value is not None
    )
