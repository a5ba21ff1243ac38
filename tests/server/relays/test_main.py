"""A real server with relays and real WebSockets. What any client sees is tested in test_session.py, with relays too."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from livetables.model.change import Batch, TableChanges, TableShape
from livetables.pipeline.server_client import ServerClient
from tests.server.live.test_session import SCHEMA, START, USERS, Feed, has
from tests.support.kafka import wait_until
from tests.support.server import TOKEN, WITH_RELAYS, LiveClient, ServerProcess

pytestmark = pytest.mark.processes

STORIES_MAX = 5  # a view whose evaluation takes long on a busy machine gets frames with a hint
ODD = pa.schema(
    [
        ("_id", pa.int64()),
        ("text", pa.string()),
        ("large", pa.int64()),
        ("number", pa.float64()),
        ("ok", pa.bool_()),
        ("ts", pa.timestamp("us", tz="UTC")),
    ]
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path, WITH_RELAYS) as running:
        yield running
        assert "Traceback" not in running.log()


@pytest.fixture
def feed(server: ServerProcess) -> Iterator[Feed]:
    """Users, published, with three rows."""
    feeding = Feed(server.sink())
    feeding.rows([1, 2, 3])
    feeding.sink.publish(feeding.generation)
    yield feeding
    feeding.sink.close()


def is_running(pid: int) -> bool:
    """A process that has ended, but nobody has waited for, does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_many_clients_of_one_view_cost_each_relay_one_subscription_and_the_server_one_evaluation(
    server: ServerProcess, feed: Feed
) -> None:
    with ExitStack() as leaving:
        clients = [leaving.enter_context(LiveClient(server.websocket)) for _ in range(20)]
        for client in clients:
            client.subscribe(1, "users_ui", size=10)
            client.receive_type("snapshot")
        assert server.metric("livetables_relays") == len(server.relays()) == 2
        assert server.metric("livetables_relay_subscriptions") == 2
        assert server.metric("livetables_viewports") == 1
        evaluations = server.metric("livetables_viewport_evaluations_total")
        feed.rows([4])
        for client in clients:
            client.receive_until(has(client, 1, lambda rows: len(rows) == 4), "fourth row")
        assert server.metric("livetables_viewport_evaluations_total") == evaluations + 1
        with LiveClient(server.websocket) as late:  # served from the relay's own copy
            late.subscribe(1, "users_ui", size=10)
            assert len(late.receive_type("snapshot")["rows"]) == 4
        assert server.metric("livetables_viewport_evaluations_total") == evaluations + 1
        wait_until(lambda: server.metric("livetables_clients") == 20, "the clients of all relays are counted")
        wait_until(lambda: server.metric("livetables_subscriptions") == 20, "their subscriptions are counted")
        status = json.loads(server.get("/api/status"))
        assert (status["clients"], status["subscriptions"], status["viewports"]) == (20, 20, 1)
    for gone in ("clients", "subscriptions", "viewports", "relay_subscriptions"):
        wait_until(partial(is_zero, server, gone), f"{gone} are none", 10)


def is_zero(server: ServerProcess, name: str) -> bool:
    return server.metric(f"livetables_{name}") == 0


def test_what_relays_send_is_counted_by_the_server(server: ServerProcess, feed: Feed) -> None:
    sent = 'livetables_rows_sent_total{door="websocket",table="users_ui"}'
    with LiveClient(server.websocket) as client:
        client.subscribe(1, "user")  # an alias: its rows are counted as its table's
        client.receive_type("snapshot")
        feed.rows([4])
        client.receive_until(has(client, 1, lambda rows: len(rows) == 4), "fourth row")
        wait_until(lambda: f"{sent} 4.0" in server.get("/metrics"), "rows are counted")
        frames = len(client.frames)
        wait_until(lambda: server.metric("livetables_frames_total") >= frames, "frames are counted")


def test_frames_are_those_of_a_server_without_relays(tmp_path: Path) -> None:
    def frames(settings: dict[str, str]) -> list[Any]:
        for attempt in range(STORIES_MAX):
            directory = tmp_path / f"{len(settings)}-{attempt}"
            directory.mkdir()
            with ServerProcess(directory, settings) as server, LiveClient(server.websocket) as client:
                sink = server.sink()
                story(client, sink)
                arrow = arrow_window(server)
                sink.close()
            kept = ("schema", "snapshot", "patch", "rebound", "error")
            if not any("hint" in frame for frame in client.frames):
                return [*(frame for frame in client.frames if frame["type"] in kept), arrow]
        raise AssertionError("a view was limited in every story: this machine is too busy to compare frames")

    alone, relayed = frames({}), frames(WITH_RELAYS)
    assert relayed == alone
    kinds = [frame["type"] for frame in alone[:-1]]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "error": 2,
        "schema": 2,
        "snapshot": 5,
        "patch": 3,
        "rebound": 1,
    }


def story(client: LiveClient, sink: ServerClient) -> None:
    """One step after the other, each awaited: but for hints of limited views, frames do not depend on the machine."""

    def put(generation: str, batch_id: int, rows: list[dict[str, Any]], deletes: tuple[int, ...] = ()) -> None:
        schema = ODD if "text" in rows[0] else SCHEMA
        keys = pa.table({"_id": pa.array(deletes, pa.int64())}) if deletes else pa.table({})
        changes = TableChanges("users_ui", pa.Table.from_pylist(rows, schema=schema), keys)
        sink.put(Batch(generation, batch_id, (changes,)))

    client.subscribe(1, "users_ui", sort=[{"column": "_id"}], size=20)
    client.receive_type("error")  # there is no such table yet
    sink.begin("g1", [TableShape("users_ui", ODD, ("_id",))])
    put("g1", 0, [odd(number) for number in range(8)])
    sink.publish("g1")
    client.receive_type("snapshot")
    put("g1", 1, [odd(3) | {"text": "another"}, odd(9)], deletes=(1, 5))
    client.receive_type("patch")
    put("g1", 2, [odd(4) | {"large": None}])
    client.receive_type("patch")
    client.send({"type": "resync", "sub": 1})
    client.receive_type("snapshot")
    client.subscribe(2, "users_ui", filters=[{"column": "ok", "op": "equals", "value": True}])
    client.receive_type("snapshot")
    client.send({"type": "unsubscribe", "sub": 2})
    sink.begin("g2", [TableShape("users_ui", ODD, ("_id",))])
    put("g2", 0, [odd(1), odd(2)])
    sink.publish("g2")
    client.receive_type("rebound")
    client.receive_type("snapshot")
    put("g2", 1, [odd(2) | {"number": float("inf")}])
    client.receive_type("patch")
    client.send({"type": "set", "sub": 1, "revision": 1, "sort": [{"column": "text", "descending": True}]})
    client.receive_until(lambda frame: frame.get("revision") == 1 and frame["type"] == "snapshot", "another view")
    sink.begin("g3", [USERS])
    sink.publish("g3")
    client.receive_type("error")  # its column is gone


def odd(number: int) -> dict[str, Any]:
    """A row of values that JSON has in a way of its own, or not at all."""
    return {
        "_id": number,
        "text": [None, "", 'quote " and \\', "é😀"][number % 4],
        "large": 2**53 + number,
        "number": [0.1, -0.0, float("nan"), 1e22][number % 4],
        "ok": [True, False, None][number % 3],
        "ts": START.replace(microsecond=number % 2),
    }


def arrow_window(server: ServerProcess) -> tuple[dict[str, Any], str]:
    """The header, and the table as text, in which NaN equals itself."""
    with connect(server.websocket) as socket:
        socket.send(json.dumps({"type": "hello", "protocol": 1, "token": TOKEN}))
        socket.send(json.dumps({"type": "subscribe", "sub": 1, "table": "users_ui", "format": "arrow"}))
        while isinstance(frame := socket.recv(timeout=10), str):
            pass
    header_end = 4 + int.from_bytes(frame[:4], "little")
    table = pa.ipc.open_stream(frame[header_end:]).read_all()
    return json.loads(frame[4:header_end]), f"{table.schema} {table.to_pylist()}"


def test_clients_of_a_relay_that_is_killed_come_back_and_end_with_the_newest_rows(
    server: ServerProcess, feed: Feed
) -> None:
    first = set(server.relays())
    with ExitStack() as leaving:
        clients = [leaving.enter_context(LiveClient(server.websocket)) for _ in range(10)]
        for client in clients:
            client.subscribe(1, "users_ui")
            client.receive_type("snapshot")
        killed = min(first)
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: not is_running(killed), "the relay is dead")
        feed.rows([4])
        lost = 0
        for number, client in enumerate(clients):
            try:
                client.receive_until(has(client, 1, lambda rows: len(rows) == 4), "fourth row")
            except ConnectionClosed:
                lost += 1
                clients[number] = again = leaving.enter_context(LiveClient(server.websocket))
                again.subscribe(1, "users_ui")
                again.receive_until(has(again, 1, lambda rows: len(rows) == 4), "fourth row")
        assert lost == 5, "each relay had half of them"
        wait_until(lambda: server.metric("livetables_relays") == 2, "the relay is back", 20)
        assert killed not in server.relays()
        assert len(set(server.relays()) - first) == 1
        assert server.metric("livetables_relay_restarts_total") == 1
        assert "event=relay_ended relay=" in server.log()
        assert "was killed by SIGKILL" in server.log()
        feed.rows([5])
        for client in clients:
            client.receive_until(has(client, 1, lambda rows: len(rows) == 5), "fifth row")
        wait_until(lambda: server.metric("livetables_clients") == 10, "nobody is counted twice")
        for _ in range(5):  # the new relay has the fewest
            new = leaving.enter_context(LiveClient(server.websocket))
            new.subscribe(1, "users_ui")
            new.receive_type("snapshot")
        assert server.metric("livetables_relay_subscriptions") == 2


def test_a_client_is_served_also_while_the_only_relay_is_being_started(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, {"LIVETABLES_SERVER_RELAYS": "1"}) as server:
        (relay,) = server.relays()
        os.kill(relay, signal.SIGKILL)
        wait_until(lambda: "event=relay_ended" in server.log(), "the server has noticed")
        with LiveClient(server.websocket) as client:
            client.subscribe(1, "users_ui")
            assert client.receive_type("error")["code"] == "unknown_table"
        wait_until(lambda: server.metric("livetables_relays") == 1, "the relay is back", 20)


def test_a_relay_that_does_not_read_gets_the_newest_state_and_costs_the_server_little(
    server: ServerProcess, feed: Feed
) -> None:
    feed.rows(list(range(1, 3001)))
    with ExitStack() as leaving:
        clients = [leaving.enter_context(LiveClient(server.websocket)) for _ in range(2)]
        for client in clients:  # one with each relay
            client.subscribe(1, "users_ui", size=3000)
            client.receive_type("snapshot")
        stalled = min(server.relays())
        os.kill(stalled, signal.SIGSTOP)
        try:
            before = server.rss_megabytes()
            for age in range(1, 101):
                feed.rows(list(range(1, 3001)), age=age)
            newest = server.rows("users_ui", "limit=1")
            assert newest[0]["age"] == 100
            grown = server.rss_megabytes() - before
        finally:
            os.kill(stalled, signal.SIGCONT)
        for client in clients:
            done = has(client, 1, lambda rows: rows[0]["age"] == rows[-1]["age"] == 100)
            client.receive_until(done, "newest state", 60)
        assert clients[0].windows[1].rows == clients[1].windows[1].rows
        assert grown < 100  # 100 windows of 3,000 rows would be as much; DuckDB's memory moves a little as well
        assert len(server.relays()) == 2
        wait_until(lambda: server.metric("livetables_frames_skipped_total") > 0, "states were skipped")


@pytest.mark.parametrize("end", [ServerProcess.stop, ServerProcess.kill], ids=["stopped", "killed"])
def test_relays_end_with_the_server_and_notify_their_clients(
    tmp_path: Path, end: Callable[[ServerProcess], object]
) -> None:
    with ServerProcess(tmp_path, WITH_RELAYS) as server, LiveClient(server.websocket) as client:
        client.receive_type("status")
        relays = server.relays()
        end(server)
        client.receive_to_the_end()
        assert client.socket.close_code == 1012
        wait_until(lambda: not any(map(is_running, relays)), "the relays have ended", 10)
        assert "Traceback" not in server.log()
        server.start()  # with relays of its own
        assert server.metric("livetables_relays") == 2
        assert not set(relays) & set(server.relays())


def test_a_relay_that_is_stopped_notifies_its_clients(server: ServerProcess) -> None:
    with LiveClient(server.websocket) as one, LiveClient(server.websocket) as other:
        for client in (one, other):
            client.receive_type("status")
        for pid in server.relays():
            os.kill(pid, signal.SIGTERM)
        for client in (one, other):
            client.receive_to_the_end()
            assert client.socket.close_code == 1012
    wait_until(lambda: server.metric("livetables_relay_restarts_total") == 2, "they are started again")
    assert re.search(r'event=relay_ended .*cause="ended with code 0"', server.log())


def test_other_paths_are_answered_by_the_server(server: ServerProcess) -> None:
    with pytest.raises(InvalidStatus) as refused:
        connect(server.websocket.replace("/ws", "/elsewhere"))
    assert refused.value.response.status_code == 403
    with LiveClient(f"{server.websocket}?any=thing") as client:
        assert client.receive_type("hello")
