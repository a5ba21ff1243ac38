"""The form of the log: one line an event, in UTC, that programs can take apart."""

from __future__ import annotations

import json
import logging
import re

import pytest

from livetables.log import BURST, LineFormatter, Throttle, log_event

LOG = logging.getLogger("livetables.test")
PAIR = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|[^\s"]+)(?: |$)')


def parsed(line: str) -> dict[str, str]:
    """A line as its keys and values; the whole of it has to be such pairs."""
    assert PAIR.sub("", line) == ""
    return {name: json.loads(value) if value.startswith('"') else value for name, value in PAIR.findall(line)}


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, str]]:
    """What was logged, as it grows."""
    found: list[dict[str, str]] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            line = LineFormatter().format(record)
            assert "\n" not in line
            found.append(parsed(line))

    caplog.set_level(logging.INFO)
    LOG.addHandler(Kept())
    return found


@pytest.fixture(autouse=True)
def clean() -> None:
    LOG.handlers.clear()


def test_an_event_is_a_line_of_keys_and_values(lines: list[dict[str, str]]) -> None:
    odd = 'a "b" = c\\\nd\u00e9'
    log_event(LOG, "switched", generation="g1", why=odd, none=None, empty="", records=3)
    (line,) = lines
    moment = line.pop("time")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", moment)
    assert line == {
        "level": "info",
        "logger": "livetables.test",
        "event": "switched",
        "generation": "g1",
        "why": odd,
        "empty": "",
        "records": "3",
    }


def test_what_is_no_event_has_a_message_and_its_trace_in_the_same_line(lines: list[dict[str, str]]) -> None:
    LOG.warning("%s; trying again", "no answer")
    try:
        raise ValueError("an internal detail")
    except ValueError:
        LOG.exception("it failed")
    assert (lines[0]["level"], lines[0]["message"]) == ("warning", "no answer; trying again")
    assert lines[1]["message"] == "it failed"
    assert lines[1]["trace"].endswith("ValueError: an internal detail")


def test_an_event_that_clients_cause_floods_nothing_and_hides_nothing(lines: list[dict[str, str]]) -> None:
    now = 0.0
    throttle = Throttle(lambda: now)
    for _ in range(1000):
        throttle.log_event(LOG, "login_failed", door="http")
    throttle.log_event(LOG, "client_connected")  # another event is not held back
    assert [line["event"] for line in lines] == ["login_failed"] * BURST + ["client_connected"]
    now = 3600.0
    for _ in range(1000):
        throttle.log_event(LOG, "login_failed", door="http")
    assert len(lines) == 2 * BURST + 1
    assert [line.get("left_out") for line in lines[-BURST:]] == [str(1000 - BURST)] + [None] * (BURST - 1)
