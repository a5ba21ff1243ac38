"""Who may try keys: what counts as a guess, who has to wait, for how long, and what is remembered of it."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from livetables.model.errors import RequestError
from livetables.server.access import logins as module
from livetables.server.access.key import Key, TooManyLoginsError
from livetables.server.access.logins import WINDOW_SECONDS, WRONG_KEYS_MAX, Logins, Peer

HERE, THERE = Peer("10.0.0.1"), Peer("10.0.0.2")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def key(clock: Clock) -> Key:
    return Key("right", "right too", clock=clock)


def outcome(key: Key, peer: Peer, token: str | None) -> str:
    try:
        key.check(peer, token)
    except TooManyLoginsError:
        return "wait"
    except RequestError as problem:
        return {"unauthorized": "wrong"}[problem.code]
    return "in"


def guess(key: Key, peer: Peer, count: int = WRONG_KEYS_MAX) -> None:
    for number in range(count):
        assert outcome(key, peer, f"wrong {number}") == "wrong"


def test_after_too_many_different_wrong_keys_further_ones_have_to_wait(key: Key) -> None:
    guess(key, HERE)
    assert [outcome(key, HERE, token) for token in ("one more", "wrong 0")] == ["wait"] * 2


def test_the_right_key_is_never_refused_because_of_wrong_ones(key: Key) -> None:
    guess(key, HERE)
    assert [outcome(key, HERE, token) for token in ("one more", "right", "right too")] == ["wait", "in", "in"]


def test_the_right_key_does_not_allow_more_guesses(key: Key) -> None:
    guess(key, HERE)
    assert [outcome(key, HERE, token) for token in ("right", "one more")] == ["in", "wait"]


def test_others_do_not_wait(key: Key) -> None:
    guess(key, HERE)
    assert outcome(key, THERE, "a wrong one") == "wrong"


def test_the_wait_is_in_the_error_and_ends(key: Key, clock: Clock) -> None:
    guess(key, HERE)
    clock.now += 12.5
    with pytest.raises(TooManyLoginsError, match="try again in 48 s") as caught:
        key.check(HERE, "one more")
    assert (caught.value.code, caught.value.wait_seconds) == ("busy", 48)
    clock.now += 47.5
    assert outcome(key, HERE, "one more") == "wrong"


def test_to_try_while_waiting_does_not_make_it_longer(key: Key, clock: Clock) -> None:
    guess(key, HERE)
    for _ in range(120):
        clock.now += WINDOW_SECONDS / 120
        found = outcome(key, HERE, "still wrong")
    assert found == "wrong"


def test_the_same_wrong_key_is_one_guess_however_often_it_comes(key: Key) -> None:
    assert {outcome(key, HERE, "an old one") for _ in range(1000)} == {"wrong"}


@pytest.mark.parametrize("token", [None, ""])
def test_a_missing_key_is_no_guess_and_never_waits(key: Key, token: str | None) -> None:
    assert {outcome(key, HERE, token) for _ in range(1000)} == {"wrong"}
    guess(key, HERE)
    assert outcome(key, HERE, token) == "wrong"


@pytest.mark.parametrize(
    ("one", "other"),
    [("2001:db8::1", "2001:db8::ffff:2"), ("::ffff:10.0.0.1", "10.0.0.1"), ("fe80::1%eth0", "fe80::2%eth1")],
)
def test_addresses_that_one_client_can_choose_from_count_as_one(key: Key, one: str, other: str) -> None:
    guess(key, Peer(one))
    assert outcome(key, Peer(other), "one more") == "wait"


def test_networks_of_others_do_not(key: Key) -> None:
    guess(key, Peer("2001:db8:0:1::1"))
    assert outcome(key, Peer("2001:db8:0:2::1"), "one more") == "wrong"


def test_what_is_no_address_counts_as_itself(key: Key) -> None:
    guess(key, Peer("unix:/a"))
    assert outcome(key, Peer("unix:/a"), "one more") == "wait"
    assert outcome(key, Peer("unix:/b"), "one more") == "wrong"


def test_no_key_is_kept(clock: Clock) -> None:
    logins = Logins(clock)
    logins.failed(HERE, "a wrong key")
    assert "wrong key" not in repr(vars(logins))


def test_memory_has_a_bound(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ADDRESSES_MAX", 10)
    logins = Logins(clock)
    for number in range(100):
        logins.failed(Peer(f"10.0.0.{number}"), "wrong")
    assert len(logins._wrong) == 10


STEPS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.5, 1.0, 5.0, 30.0, 59.5, 60.0]),  # seconds that pass before; sums of them are exact
        st.sampled_from(["10.0.0.1", "10.0.0.2"]),
        st.integers(0, 30),  # a key; 0 is the right one
    ),
    max_size=300,
)


@given(STEPS)
def test_in_any_window_at_most_so_many_different_wrong_keys_of_an_address_are_counted(
    steps: list[tuple[float, str, int]],
) -> None:
    """Nobody waits who has presented fewer in the window that ends now, or who presents the right one."""
    clock = Clock()
    key = Key("0", clock=clock)
    looked_at: dict[str, deque[tuple[float, int]]] = {"10.0.0.1": deque(), "10.0.0.2": deque()}
    for passed, address, number in steps:
        clock.now += passed
        seen = looked_at[address]
        recent = {wrong for at, wrong in seen if clock.now - at < WINDOW_SECONDS}
        found = outcome(key, Peer(address), str(number))
        expected = "wait" if len(recent) >= WRONG_KEYS_MAX else "wrong"
        assert found == ("in" if number == 0 else expected)
        if found == "wrong":
            seen.append((clock.now, number))
