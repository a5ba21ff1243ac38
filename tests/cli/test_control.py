"""`livetables control` against a real server. The pipeline behind it is a stand-in that decides as the test says."""

from __future__ import annotations

import argparse
import json
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from livetables.cli.control import add_arguments, run
from livetables.config.load import load_config
from livetables.model.errors import ConfigError, SinkError
from livetables.model.wire import Receipt
from livetables.pipeline.reporting import status
from tests.support.server import TOKEN, ServerProcess
from tests.support.up import COMMAND, clean_environment

pytestmark = pytest.mark.processes

SECONDS = 60


class StandIn:
    """Takes control messages from the server and gives each the outcome that its join names."""

    def __init__(self, server: ServerProcess) -> None:
        self.taken: list[Mapping[str, Any]] = []
        self._sink = server.sink()
        self._shapes = status.shapes(load_config(None, {}).spec)
        self._batches = 0
        self._closing = threading.Event()
        self._sink.begin("status", self._shapes)
        self._put(orchestrator_status={"_id": 0, "state": "catching_up", "message": "building g2: 5 of 9 records"})
        self._sink.publish("status")
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._sink.close()
        self._thread.join()

    def _take(self) -> None:
        with suppress(SinkError):
            while not self._closing.is_set():
                for request in self._sink.control_requests(1):
                    offset = len(self.taken)
                    self.taken.append(request.fields)
                    self._sink.control_settled(request.request_id, Receipt("control", 0, offset))
                    raw = json.dumps({**request.fields, "messageId": request.message_id})
                    row = {"_id": offset, "partition": 0, "offset": offset, "raw": raw}
                    self._put(control_raw={**row, "outcome": None})
                    outcome = request.fields.get("joinType", "applied")
                    if outcome != "undecided":
                        self._put(control_raw={**row, "outcome": outcome, "why": f"because of {offset}"})

    def _put(self, **rows: Mapping[str, Any]) -> None:
        changed = {table: [row] for table, row in rows.items()}
        self._sink.put(status.batch("status", self._batches, self._shapes, changed))
        self._batches += 1


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def stand_in(server: ServerProcess) -> Iterator[StandIn]:
    running = StandIn(server)
    yield running
    running.close()


def control(server: ServerProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "control", "--url", server.http, *arguments],
        env=clean_environment(LIVETABLES_TOKEN=TOKEN),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


@pytest.mark.parametrize(
    ("outcome", "code"), [("applied", 0), ("unchanged", 0), ("superseded", 1), ("rejected", 1), ("failed", 1)]
)
def test_the_outcome_of_exactly_this_message_is_printed(
    server: ServerProcess, stand_in: StandIn, outcome: str, code: int
) -> None:
    done = control(server, "--join", outcome)
    assert done.stdout == f"{outcome}: because of {len(stand_in.taken) - 1}\n"
    assert done.returncode == code


def test_what_was_asked_for_is_what_is_sent(server: ServerProcess, stand_in: StandIn) -> None:
    control(server, "--users-topic", "a", "--accounts-topic", "b", "--topic", "orders=c")
    assert stand_in.taken[-1] == {"usersTopic": "a", "accountsTopic": "b", "ordersTopic": "c"}
    control(server, "--join", "natural", "--view", "orders_by_city")
    assert stand_in.taken[-1] == {"orders_by_cityJoin": "natural"}
    control(server, "--rollback")
    assert stand_in.taken[-1] == {"rollback": True}
    control(server, "--discard", "g7-1f3a9c2e")
    assert stand_in.taken[-1] == {"discard": "g7-1f3a9c2e"}


def test_the_outcome_as_json_has_the_place_too(server: ServerProcess, stand_in: StandIn) -> None:
    printed = json.loads(control(server, "--users-topic", "a", "--json").stdout)
    assert (printed["outcome"], printed["offset"]) == ("applied", len(stand_in.taken) - 1)


@pytest.mark.usefixtures("stand_in")
def test_what_is_not_decided_in_time_is_an_error_with_what_the_pipeline_does(server: ServerProcess) -> None:
    done = control(server, "--join", "undecided", "--timeout", "0.1")
    assert done.returncode == 2
    assert "building g2: 5 of 9 records" in done.stderr
    assert "it is not lost" in done.stderr


def test_a_wrong_key_is_an_error_at_once(server: ServerProcess) -> None:
    command = [*COMMAND, "control", "--url", server.http, "--join", "left"]
    environment = clean_environment(LIVETABLES_TOKEN="wrong")  # noqa: S106
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 2
    assert "the key is wrong" in done.stderr


def test_a_server_that_is_not_there_is_an_error_with_its_cure(tmp_path: Path) -> None:
    command = [*COMMAND, "control", "--url", "http://127.0.0.1:1", "--join", "left"]
    environment = clean_environment(LIVETABLES_TOKEN=TOKEN)
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 2
    assert "no livetables server answers at http://127.0.0.1:1" in done.stderr
    assert "livetables up" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "nothing to change"),
        (["--rollback", "--join", "left"], "a rollback goes alone"),
        (["--discard", "g7-1f3a9c2e", "--rollback"], "goes alone"),
        (["--topic", "orders"], "--topic is 'orders'"),
        (["--view", "orders_by_city", "--rollback"], "no join is given"),
        (["--view", "orders-by-city", "--join", "left"], "does not name a view"),
    ],
)
def test_missing_conflicting_and_invalid_options_are_refused(
    arguments: list[str], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIVETABLES_TOKEN", TOKEN)
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    with pytest.raises(ConfigError, match=problem):
        run(parser.parse_args([*arguments, "--url", "http://127.0.0.1:1"]))
