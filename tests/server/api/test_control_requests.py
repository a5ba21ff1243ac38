"""Control messages between the threads of clients and the pipeline's."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from livetables.model.errors import RequestError
from livetables.model.wire import ControlRequest, Receipt
from livetables.server.api.control_requests import MAX_WAITING, ControlQueue

LONG = 10.0  # never waited for, unless a test fails


@pytest.fixture
def queue() -> ControlQueue:
    return ControlQueue()


@pytest.fixture
def clients() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(MAX_WAITING + 1) as pool:
        yield pool


def test_a_request_is_taken_and_its_receipt_comes_back(queue: ControlQueue, clients: ThreadPoolExecutor) -> None:
    answer = clients.submit(queue.send, {"joinType": "left"}, LONG)
    (request,) = queue.take(LONG)
    assert request.fields == {"joinType": "left"}
    queue.settle(request.request_id, Receipt("control", 0, 7))
    assert answer.result(LONG) == Receipt("control", 0, 7)


def test_a_refusal_comes_back_too(queue: ControlQueue, clients: ThreadPoolExecutor) -> None:
    answer = clients.submit(queue.send, {}, LONG)
    (request,) = queue.take(LONG)
    queue.settle(request.request_id, RequestError("unavailable", "no broker", "start it"))
    with pytest.raises(RequestError, match="no broker"):
        answer.result(LONG)


def test_each_answer_goes_to_who_asked(queue: ControlQueue, clients: ThreadPoolExecutor) -> None:
    answers = {name: clients.submit(queue.send, {"usersTopic": name}, LONG) for name in ("a", "b", "c")}
    for request in taken(queue, 3):
        queue.settle(request.request_id, Receipt(request.fields["usersTopic"], 0, 0))
    assert {name: answer.result(LONG).topic for name, answer in answers.items()} == {"a": "a", "b": "b", "c": "c"}


def test_nothing_is_taken_twice(queue: ControlQueue, clients: ThreadPoolExecutor) -> None:
    answer = clients.submit(queue.send, {}, LONG)
    (request,) = queue.take(LONG)
    assert queue.take(0) == []
    queue.settle(request.request_id, Receipt("control", 0, 0))
    answer.result(LONG)


def test_to_take_where_nothing_waits_gives_nothing_in_time(queue: ControlQueue) -> None:
    assert queue.take(0) == []
    assert queue.take(0.01) == []


def test_without_a_pipeline_the_client_gets_an_error_and_the_request_is_forgotten(queue: ControlQueue) -> None:
    with pytest.raises(RequestError, match="start the pipeline") as refused:
        queue.send({}, seconds_max=0.01)
    assert refused.value.code == "unavailable"
    assert queue.take(0) == []


def test_an_answer_that_comes_too_late_or_twice_does_no_harm(queue: ControlQueue, clients: ThreadPoolExecutor) -> None:
    answer = clients.submit(queue.send, {}, LONG)
    (request,) = queue.take(LONG)
    queue.settle(request.request_id, Receipt("control", 0, 1))
    queue.settle(request.request_id, Receipt("control", 0, 2))
    assert answer.result(LONG).offset == 1
    queue.settle(request.request_id, RequestError("internal", "late", "none"))
    queue.settle(12345, Receipt("control", 0, 3))


def test_what_waits_has_a_limit_also_when_it_was_taken(queue: ControlQueue, clients: ThreadPoolExecutor) -> None:
    answers: list[Future[Receipt]] = [clients.submit(queue.send, {}, LONG) for _ in range(MAX_WAITING)]
    requests = taken(queue, MAX_WAITING)
    with pytest.raises(RequestError) as refused:
        queue.send({}, LONG)
    assert refused.value.code == "busy"
    for request in requests:
        queue.settle(request.request_id, Receipt("control", 0, request.request_id))
    assert len({answer.result(LONG).offset for answer in answers}) == MAX_WAITING


def test_a_message_is_kept_as_it_was_sent(queue: ControlQueue, clients: ThreadPoolExecutor) -> None:
    fields = {"joinType": "left"}
    answer = clients.submit(queue.send, fields, LONG)
    (request,) = queue.take(LONG)
    fields["joinType"] = "inner"
    assert request.fields == {"joinType": "left"}
    queue.settle(request.request_id, Receipt("control", 0, 0))
    answer.result(LONG)


def taken(queue: ControlQueue, count: int) -> list[ControlRequest]:
    """That many requests, which may come one after the other."""
    requests: list[ControlRequest] = []
    while len(requests) < count:
        more = queue.take(LONG)
        assert more, "the requests did not come"
        requests += more
    return requests


# The same message again


ID = "a-message-of-a-client"


def test_a_message_that_comes_again_is_published_once(queue: ControlQueue, clients: ThreadPoolExecutor) -> None:
    answer = clients.submit(queue.send, {"joinType": "left"}, LONG, ID)
    (request,) = queue.take(LONG)
    assert request.message_id == ID
    queue.settle(request.request_id, Receipt("control", 0, 7))
    assert answer.result(LONG) == Receipt("control", 0, 7)
    assert queue.send({"joinType": "left"}, LONG, ID) == Receipt("control", 0, 7)
    assert queue.take(0) == []


def test_a_message_whose_answer_comes_late_is_answered_when_it_is_sent_again(
    queue: ControlQueue, clients: ThreadPoolExecutor
) -> None:
    first = clients.submit(queue.send, {"joinType": "left"}, 0.2, ID)
    (request,) = queue.take(LONG)
    with pytest.raises(RequestError, match="did not take"):
        first.result(LONG)
    queue.settle(request.request_id, Receipt("control", 0, 7))
    assert queue.send({"joinType": "left"}, LONG, ID) == Receipt("control", 0, 7)


def test_a_message_that_a_dead_pipeline_has_taken_is_given_to_the_next_with_the_same_id(
    queue: ControlQueue, clients: ThreadPoolExecutor
) -> None:
    first = clients.submit(queue.send, {"joinType": "left"}, 0.2, ID)
    queue.take(LONG)
    with pytest.raises(RequestError, match="did not take"):
        first.result(LONG)
    again = clients.submit(queue.send, {"joinType": "left"}, LONG, ID)
    (request,) = queue.take(LONG)
    assert request.message_id == ID
    queue.settle(request.request_id, Receipt("control", 0, 8))
    assert again.result(LONG) == Receipt("control", 0, 8)


def test_an_id_is_for_one_message(queue: ControlQueue, clients: ThreadPoolExecutor) -> None:
    clients.submit(queue.send, {"joinType": "left"}, LONG, ID)
    (request,) = queue.take(LONG)
    with pytest.raises(RequestError, match="another message was sent with the same Idempotency-Key"):
        queue.send({"joinType": "inner"}, LONG, ID)
    queue.settle(request.request_id, Receipt("control", 0, 7))


def test_a_message_that_was_not_published_may_be_sent_again(queue: ControlQueue, clients: ThreadPoolExecutor) -> None:
    refused = clients.submit(queue.send, {}, LONG, ID)
    queue.settle(queue.take(LONG)[0].request_id, RequestError("unavailable", "no broker", "start it"))
    with pytest.raises(RequestError, match="no broker"):
        refused.result(LONG)
    again = clients.submit(queue.send, {}, LONG, ID)
    queue.settle(queue.take(LONG)[0].request_id, Receipt("control", 0, 7))
    assert again.result(LONG).offset == 7


def test_requests_of_a_pipeline_that_was_passed_over_go_to_the_next(
    queue: ControlQueue, clients: ThreadPoolExecutor
) -> None:
    answer = clients.submit(queue.send, {"joinType": "left"}, LONG)
    requests = queue.take(LONG)
    queue.give_back(requests)
    assert queue.take(LONG) == requests
    queue.settle(requests[0].request_id, Receipt("control", 0, 7))
    assert answer.result(LONG).offset == 7
