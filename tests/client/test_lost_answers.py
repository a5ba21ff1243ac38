"""A control message whose answer got lost: it is sent again with the same id, until there is an answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from livetables.client.control import send
from livetables.client.http import HttpClient, UnreachableError
from livetables.model.errors import RequestError

RECEIPT = {"topic": "control", "partition": 0, "offset": 7}
ROW = {"outcome": "applied", "why": None, "generation": "g1"}


@contextmanager
def server(*answers: int | None) -> Iterator[tuple[str, list[str]]]:
    """A server that answers control messages with these statuses, None being a lost answer; its URL, and the ids."""
    ids: list[str] = []
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            ids.append(self.headers["Idempotency-Key"])
            status = left.pop(0)
            if status is None:
                self.close_connection = True
            else:
                problem = {"code": "unavailable" if status == 503 else "forbidden", "problem": "no", "cure": "wait"}
                self._answer(status, RECEIPT if status == 202 else problem)

        def do_GET(self) -> None:
            self._answer(200, {"rows": [ROW]})

        def _answer(self, status: int, body: object) -> None:
            data = json.dumps(body).encode()
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


def test_two_messages_have_two_ids() -> None:
    with server(202, 202) as (url, ids):
        for _ in range(2):
            send(HttpClient(url, "key"), {"joinType": "inner"}, 10.0, lambda _: None)
    assert len(set(ids)) == 2


def test_a_refusal_is_final() -> None:
    with server(403) as (url, ids), pytest.raises(RequestError, match="no"):
        send(HttpClient(url, "key"), {"joinType": "inner"}, 10.0, lambda _: None)
    assert len(ids) == 1


def test_a_server_that_is_not_there_is_an_error_at_once() -> None:
    with server() as (url, _):
        pass
    with pytest.raises(UnreachableError):
        send(HttpClient(url, "key"), {"joinType": "inner"}, 10.0, lambda _: None)
