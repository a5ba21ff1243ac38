"""Control messages between the threads of clients and the pipeline's."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from livetables.model.errors import RequestError
from livetables.model.wire import ControlRequest, Receipt
from livetables.server.api.control_requests import MAX_WAITING, ControlDoor

LONG = 10.0  # never waited for, unless a test fails


@pytest.fixture
def door() -> ControlDoor:
    return ControlDoor()


@pytest.fixture
def clients() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(MAX_WAITING + 1) as pool:
        yield pool


def test_a_request_is_taken_and_its_receipt_comes_back(door: ControlDoor, clients: ThreadPoolExecutor) -> None:
    answer = clients.submit(door.send, {"joinType": "left"}, LONG)
    (request,) = door.take(LONG)
    assert request.fields == {"joinType": "left"}
    door.settle(request.request_id, Receipt("control", 0, 7))
    assert answer.result(LONG) == Receipt("control", 0, 7)


def test_a_refusal_comes_back_too(door: ControlDoor, clients: ThreadPoolExecutor) -> None:
    answer = clients.submit(door.send, {}, LONG)
    (request,) = door.take(LONG)
    door.settle(request.request_id, RequestError("unavailable", "no broker", "start it"))
    with pytest.raises(RequestError, match="no broker"):
        answer.result(LONG)


def test_each_answer_goes_to_who_asked(door: ControlDoor, clients: ThreadPoolExecutor) -> None:
    answers = {name: clients.submit(door.send, {"usersTopic": name}, LONG) for name in ("a", "b", "c")}
    for request in taken(door, 3):
        door.settle(request.request_id, Receipt(request.fields["usersTopic"], 0, 0))
    assert {name: answer.result(LONG).topic for name, answer in answers.items()} == {"a": "a", "b": "b", "c": "c"}


def test_nothing_is_taken_twice(door: ControlDoor, clients: ThreadPoolExecutor) -> None:
    answer = clients.submit(door.send, {}, LONG)
    (request,) = door.take(LONG)
    assert door.take(0) == []
    door.settle(request.request_id, Receipt("control", 0, 0))
    answer.result(LONG)


def test_to_take_where_nothing_waits_gives_nothing_in_time(door: ControlDoor) -> None:
    assert door.take(0) == []
    assert door.take(0.01) == []


def test_without_a_pipeline_the_client_is_told_and_the_request_forgotten(door: ControlDoor) -> None:
    with pytest.raises(RequestError, match="start the pipeline") as refused:
        door.send({}, seconds_max=0.01)
    assert refused.value.code == "unavailable"
    assert door.take(0) == []


def test_an_answer_that_comes_too_late_or_twice_does_no_harm(door: ControlDoor, clients: ThreadPoolExecutor) -> None:
    answer = clients.submit(door.send, {}, LONG)
    (request,) = door.take(LONG)
    door.settle(request.request_id, Receipt("control", 0, 1))
    door.settle(request.request_id, Receipt("control", 0, 2))
    assert answer.result(LONG).offset == 1
    door.settle(request.request_id, RequestError("internal", "late", "none"))
    door.settle(12345, Receipt("control", 0, 3))


def test_what_waits_has_a_limit_also_when_it_was_taken(door: ControlDoor, clients: ThreadPoolExecutor) -> None:
    answers: list[Future[Receipt]] = [clients.submit(door.send, {}, LONG) for _ in range(MAX_WAITING)]
    requests = taken(door, MAX_WAITING)
    with pytest.raises(RequestError) as refused:
        door.send({}, LONG)
    assert refused.value.code == "busy"
    for request in requests:
        door.settle(request.request_id, Receipt("control", 0, request.request_id))
    assert len({answer.result(LONG).offset for answer in answers}) == MAX_WAITING


def test_a_message_is_kept_as_it_was_sent(door: ControlDoor, clients: ThreadPoolExecutor) -> None:
    fields = {"joinType": "left"}
    answer = clients.submit(door.send, fields, LONG)
    (request,) = door.take(LONG)
    fields["joinType"] = "inner"
    assert request.fields == {"joinType": "left"}
    door.settle(request.request_id, Receipt("control", 0, 0))
    answer.result(LONG)


def taken(door: ControlDoor, count: int) -> list[ControlRequest]:
    """That many requests, which may come one after the other."""
    requests: list[ControlRequest] = []
    while len(requests) < count:
        more = door.take(LONG)
        assert more, "the requests did not come"
        requests += more
    return requests


# The same message again


ID = "a-message-of-a-client"


def test_a_message_that_comes_again_is_published_once(door: ControlDoor, clients: ThreadPoolExecutor) -> None:
    answer = clients.submit(door.send, {"joinType": "left"}, LONG, ID)
    (request,) = door.take(LONG)
    assert request.message_id == ID
    door.settle(request.request_id, Receipt("control", 0, 7))
    assert answer.result(LONG) == Receipt("control", 0, 7)
    assert door.send({"joinType": "left"}, LONG, ID) == Receipt("control", 0, 7)
    assert door.take(0) == []


def test_a_message_whose_answer_comes_late_is_answered_when_it_is_sent_again(
    door: ControlDoor, clients: ThreadPoolExecutor
) -> None:
    first = clients.submit(door.send, {"joinType": "left"}, 0.2, ID)
    (request,) = door.take(LONG)
    with pytest.raises(RequestError, match="did not take"):
        first.result(LONG)
    door.settle(request.request_id, Receipt("control", 0, 7))
    assert door.send({"joinType": "left"}, LONG, ID) == Receipt("control", 0, 7)


def test_a_message_that_a_dead_pipeline_has_taken_is_given_to_the_next_with_the_same_id(
    door: ControlDoor, clients: ThreadPoolExecutor
) -> None:
    first = clients.submit(door.send, {"joinType": "left"}, 0.2, ID)
    door.take(LONG)
    with pytest.raises(RequestError, match="did not take"):
        first.result(LONG)
    again = clients.submit(door.send, {"joinType": "left"}, LONG, ID)
    (request,) = door.take(LONG)
    assert request.message_id == ID
    door.settle(request.request_id, Receipt("control", 0, 8))
    assert again.result(LONG) == Receipt("control", 0, 8)


def test_an_id_is_for_one_message(door: ControlDoor, clients: ThreadPoolExecutor) -> None:
    clients.submit(door.send, {"joinType": "left"}, LONG, ID)
    (request,) = door.take(LONG)
    with pytest.raises(RequestError, match="another message was sent with the same Idempotency-Key"):
        door.send({"joinType": "inner"}, LONG, ID)
    door.settle(request.request_id, Receipt("control", 0, 7))


def test_a_message_that_was_not_published_may_be_sent_again(door: ControlDoor, clients: ThreadPoolExecutor) -> None:
    refused = clients.submit(door.send, {}, LONG, ID)
    door.settle(door.take(LONG)[0].request_id, RequestError("unavailable", "no broker", "start it"))
    with pytest.raises(RequestError, match="no broker"):
        refused.result(LONG)
    again = clients.submit(door.send, {}, LONG, ID)
    door.settle(door.take(LONG)[0].request_id, Receipt("control", 0, 7))
    assert again.result(LONG).offset == 7


def test_requests_of_a_pipeline_that_was_passed_over_go_to_the_next(
    door: ControlDoor, clients: ThreadPoolExecutor
) -> None:
    answer = clients.submit(door.send, {"joinType": "left"}, LONG)
    requests = door.take(LONG)
    door.give_back(requests)
    assert door.take(LONG) == requests
    door.settle(requests[0].request_id, Receipt("control", 0, 7))
    assert answer.result(LONG).offset == 7
