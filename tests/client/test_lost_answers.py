"""A control message on a bad way: it is sent again with the same id, and its outcome waited for, until it is there.

The server is a fake, as is the proxy in front of it: what they answer is what the test wants.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from livetables.client.control import send
from livetables.client.http import HttpClient, UnreachableError
from livetables.model.errors import RequestError

Row = dict[str, Any]

RECEIPT = {"topic": "control", "partition": 0, "offset": 7}
ROW = {"outcome": "applied", "why": None, "generation": "g1"}
OLD = {**ROW, "outcome": "rejected", "raw": '{"joinType": "outer", "messageId": "that-of-another"}'}
PROXY = "a page of a proxy"
CODES = {503: "unavailable", 429: "busy", 504: "timeout", 413: "limit", 500: "internal", 403: "forbidden"}

Answer = int | tuple[int, str] | None  # a status, with a body that is not livetables' own; None: the answer is lost


@contextmanager
def server(*answers: Answer, outcomes: Sequence[Answer | list[Row]] = ()) -> Iterator[tuple[str, list[str]]]:
    """A server that gives these answers to control messages, and then to questions for what became of them.

    Its URL, and the ids that it was sent.
    """
    ids: list[str] = []
    left, later = list(answers), list(outcomes)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            ids.append(self.headers["Idempotency-Key"])
            self._answer(left.pop(0), RECEIPT)

        def do_GET(self) -> None:
            if "control_raw" not in self.path:
                self._answer(200, {"rows": []})
                return
            found = later.pop(0) if later else [{**ROW, "raw": json.dumps({"joinType": "inner", "messageId": ids[-1]})}]
            if isinstance(found, list):
                self._answer(200, {"rows": found})
            else:
                self._answer(found, None)

        def _answer(self, answer: Answer, body: object) -> None:
            if answer is None:
                self.close_connection = True
                return
            status, text = answer if isinstance(answer, tuple) else (answer, None)
            if text is None and status in CODES:
                body = {"code": CODES[status], "problem": "no", "cure": "wait"}
            data = (text or json.dumps(body)).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        serving = threading.Thread(target=http.serve_forever)
        serving.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}", ids
        finally:
            http.shutdown()
            serving.join()


def test_a_lost_answer_is_asked_for_again_with_the_same_id() -> None:
    with server(None, 503, None, 202) as (url, ids):
        outcome = send(HttpClient(url, "key"), {"joinType": "inner"}, 10.0, lambda _: None)
    assert (outcome.outcome, outcome.offset) == ("applied", 7)
    assert len(ids) == 4
    assert len(set(ids)) == 1


@pytest.mark.parametrize("answer", [(502, PROXY), (503, PROXY), (504, PROXY), 503, 504, 429])
def test_what_may_pass_is_waited_for(answer: Answer) -> None:
    with server(answer, 202) as (url, ids):
        outcome = send(HttpClient(url, "key"), {"joinType": "inner"}, 10.0, lambda _: None)
    assert (outcome.outcome, outcome.offset) == ("applied", 7)
    assert len(ids) == 2
    assert len(set(ids)) == 1


@pytest.mark.parametrize("answer", [(502, PROXY), (503, PROXY), (404, PROXY), 503, 504, 429, 413, 500, None])
def test_the_outcome_of_a_message_that_was_sent_is_waited_for(answer: Answer) -> None:
    heard: list[str] = []
    with server(202, outcomes=[answer, answer]) as (url, _):
        outcome = send(HttpClient(url, "key"), {"joinType": "inner"}, 10.0, heard.append)
    assert outcome.outcome == "applied"
    assert heard, "whoever waits learns why"


def test_a_key_that_was_removed_meanwhile_is_an_error() -> None:
    with server(202, outcomes=[403]) as (url, _), pytest.raises(RequestError, match="no"):
        send(HttpClient(url, "key"), {"joinType": "inner"}, 10.0, lambda _: None)


def test_the_outcome_of_an_older_message_at_the_same_offset_is_not_taken() -> None:
    """The control topic was created again, or another one is used: offsets begin at 0, and rows are still there."""
    with server(202, outcomes=[[OLD], [{**OLD, "raw": None}], []]) as (url, _):
        outcome = send(HttpClient(url, "key"), {"joinType": "inner"}, 10.0, lambda _: None)
    assert outcome.outcome == "applied"


def test_two_messages_have_two_ids() -> None:
    with server(202, 202) as (url, ids):
        for _ in range(2):
            send(HttpClient(url, "key"), {"joinType": "inner"}, 10.0, lambda _: None)
    assert len(set(ids)) == 2


def test_a_refusal_is_final() -> None:
    with server(403) as (url, ids), pytest.raises(RequestError, match="no"):
        send(HttpClient(url, "key"), {"joinType": "inner"}, 10.0, lambda _: None)
    assert len(ids) == 1


def test_another_server_at_the_address_is_an_error_at_once() -> None:
    with server((404, PROXY)) as (url, _), pytest.raises(RequestError, match="answered with status 404"):
        send(HttpClient(url, "key"), {"joinType": "inner"}, 10.0, lambda _: None)


def test_a_server_that_is_not_there_is_an_error_at_once() -> None:
    with server() as (url, _):
        pass
    with pytest.raises(UnreachableError):
        send(HttpClient(url, "key"), {"joinType": "inner"}, 10.0, lambda _: None)
