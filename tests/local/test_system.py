"""`livetables up --demo`, all of it real: it comes up, its verbs work, what is killed comes back, and all of it goes.

Its endpoints are encrypted, with a certificate that nobody else has signed: everything that finds the server trusts it.

One system for all tests, which leave it as they found it; they run in this order.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from livetables.client.http import HttpClient
from livetables.model.errors import RequestError
from tests.support import certificates
from tests.support.kafka import wait_until
from tests.support.pages import ROOT, Reader, blocks
from tests.support.up import Up, descendants, is_alive

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

SETTINGS = {
    "LIVETABLES_SERVER_PORT": "0",
    "LIVETABLES_SERVER_FLIGHT_PORT": "0",
    "LIVETABLES_PIPELINE_MASTER": "local[2]",
    "LIVETABLES_PIPELINE_DRIVER_MEMORY_MEGABYTES": "1024",
}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    directory = tmp_path_factory.mktemp("up")
    settings = SETTINGS | certificates.self_signed(directory, hosts="IP:127.0.0.1").settings
    with Up(directory, "--demo", "--rate", "2", settings=settings) as system:  # a batch now and then, not all the time
        system.wait_ready()
        yield system


def http_client(up: Up) -> HttpClient:
    facts = up.facts()
    token = facts["token"] or Path(facts["token_file"]).read_text().split()[0]
    return HttpClient(facts["addresses"]["http"], token, ca_file=Path(facts["ca_file"]))


def accounts(up: Up) -> int:
    try:
        total: int = http_client(up).get("/api/tables/accounts_ui/rows", {"columns": "_id", "limit": "1"})["total"]
    except Exception:
        return -1
    return total


def wait_moving(up: Up) -> None:
    """Return when rows arrive that were not there a moment ago."""
    up.wait(lambda: accounts(up) >= 0, "tables can be read")
    before = accounts(up)
    up.wait(lambda: accounts(up) > before, "rows move")


def wait_back(up: Up, name: str, pid: int) -> None:
    def is_back() -> bool:
        pids: dict[str, int] = up.facts()["pids"]
        return name in pids and pids[name] != pid

    up.wait(is_back, f"the {name} is back")
    wait_moving(up)


def control(up: Up, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = up.run("control", *arguments, "--json")
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_it_shows_its_steps_one_url_and_the_key(up: Up) -> None:
    facts = up.facts()
    steps = up.steps()
    assert facts["addresses"]["http"].startswith("https://127.0.0.1:")
    assert facts["addresses"]["flight"].startswith("grpc+tls://127.0.0.1:")
    assert f"Kafka is up at {facts['addresses']['kafka']}" in steps
    assert steps.count(f"ready: {facts['addresses']['http']}/#key={facts['token']}\n") == 1
    assert steps.count(facts["token"]) == 1
    assert stat.S_IMODE((up.directory / ".livetables" / "up.json").stat().st_mode) == 0o600


def test_rows_move(up: Up) -> None:
    wait_moving(up)


def test_the_key_is_in_no_process_list(up: Up) -> None:
    token = up.facts()["token"]
    pids = {up.pid, *descendants(up.pid)}
    assert len(pids) >= 5  # the supervisor, the broker, the server, the pipeline and its JVM
    assert [pid for pid in pids if token.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()] == []


def test_the_status_has_every_address_and_what_is_live(up: Up) -> None:
    up.wait(lambda: http_client(up).get("/api/status")["state"] == "live", "it has caught up")  # "ready" comes before
    done = up.run("status", "--json")
    assert done.returncode == 0, done.stderr
    status = json.loads(done.stdout)
    assert status["addresses"] == up.facts()["addresses"]
    assert status["state"] == "live"
    assert status["orchestrator"]["usersTopic"] == "user"
    assert [each["state"] for each in status["history"]] == ["live"]
    for address in status["addresses"].values():
        host, port = address.rpartition("/")[2].split(":")
        socket.create_connection((host, int(port)), timeout=10).close()


def test_the_status_can_be_read_by_people(up: Up) -> None:
    done = up.run("status")
    assert done.returncode == 0, done.stderr
    assert "users user, accounts account" in done.stdout
    assert up.facts()["token"] not in done.stdout


def test_a_second_one_in_the_same_directory_names_who_runs(up: Up) -> None:
    done = up.run("up")
    assert done.returncode == 2
    assert f"already, as process {up.pid}" in done.stderr
    assert up.facts()["pids"]


def test_the_readme_can_be_followed(up: Up) -> None:
    environment = {
        **up.environment,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "CURL_CA_BUNDLE": up.facts()["ca_file"],
    }
    outputs: dict[str, str] = {}
    with Reader(up.directory, environment, replaced={". .venv/bin/activate": "true"}) as reader:
        for block in blocks(ROOT / "README.md"):
            if block.language in ("sh", "python") and block.commands[0] != "make demo":
                outputs[block.text] = reader.follow(block)
    controlled, asked, fetched = outputs.values()
    assert sum(line.startswith("applied: ") for line in controlled.splitlines()) == 3
    assert "accountType\taccounts\tbalance" in controlled
    assert "balance" in asked
    assert len(json.loads(fetched)["rows"]) == 5
    assert json.loads(up.run("status", "--json").stdout)["orchestrator"]["usersTopic"] == "user_2"


def test_control_that_changes_nothing_is_fine(up: Up) -> None:
    code, outcome = control(up, "--topic", "users=user_2")
    assert (code, outcome["outcome"]) == (0, "unchanged")


def test_control_that_is_rejected_says_why_and_fails(up: Up) -> None:
    done = up.run("control", "--users-topic", "no-such-topic")
    assert done.returncode == 1
    assert done.stdout.startswith("rejected: ")
    assert "no-such-topic" in done.stdout


def test_control_goes_back(up: Up) -> None:
    code, outcome = control(up, "--users-topic", "user")
    assert (code, outcome["outcome"]) == (0, "applied")
    wait_moving(up)


def test_a_killed_server_comes_back_at_the_same_address(up: Up) -> None:
    before = up.facts()
    os.kill(before["pids"]["server"], signal.SIGKILL)
    wait_back(up, "server", before["pids"]["server"])
    assert up.facts()["addresses"] == before["addresses"]
    assert "the server was killed by SIGKILL; starting it again in 1 s" in up.steps()


@pytest.mark.chaos
def test_a_killed_pipeline_comes_back(up: Up) -> None:
    pid = up.facts()["pids"]["pipeline"]
    os.killpg(pid, signal.SIGKILL)
    wait_back(up, "pipeline", pid)


def test_a_killed_broker_comes_back_at_the_same_address(up: Up) -> None:
    before = up.facts()
    os.kill(before["pids"]["broker"], signal.SIGKILL)
    wait_back(up, "broker", before["pids"]["broker"])
    assert up.facts()["addresses"] == before["addresses"]


def test_sigterm_stops_everything(up: Up) -> None:
    wait_moving(up)
    started = descendants(up.pid)
    up.signal(signal.SIGTERM)
    assert up.wait_ended() == 0
    assert up.steps().endswith("stopped; nothing is left running\n")
    assert [pid for pid in started if is_alive(pid)] == []
    assert not (up.directory / ".livetables" / "up.json").exists()


def test_without_a_server_the_other_verbs_name_the_fix(up: Up) -> None:
    for verb in (["status"], ["control", "--join", "inner"]):
        done = up.run(*verb)
        assert done.returncode == 2
        assert "LIVETABLES_TOKEN" in done.stderr


def test_started_again_it_resumes_the_generation_that_was_live(up: Up) -> None:
    (up.directory / "keys").write_text("the-first-key-of-the-file\n")
    up.environment["LIVETABLES_SERVER_TOKEN_FILE"] = "keys"  # noqa: S105
    up.start()
    up.wait_ready()
    live: dict[str, Any] = {}

    def is_shown() -> bool:
        nonlocal live
        live, *before = json.loads(up.run("status", "--json").stdout)["history"]
        return live["state"] == "live" and {each["state"] for each in before} == {"retired"}

    up.wait(is_shown, "one generation is live, and all others are shown as retired")
    assert f"building {live['generation']}" not in up.steps()
    wait_moving(up)


def test_a_key_in_a_file_is_nowhere_else(up: Up) -> None:
    assert up.facts()["token"] is None
    for pid in (up.pid, *up.facts()["pids"].values()):
        assert b"the-first-key" not in Path(f"/proc/{pid}/environ").read_bytes()


def test_a_new_key_takes_over_while_everything_runs(up: Up) -> None:
    before, pids = http_client(up), up.facts()["pids"]
    draft = up.directory / "keys.draft"
    draft.write_text("a-second-key\n")
    draft.replace(up.directory / "keys")
    wait_moving(up)  # and so the pipeline has the new key too
    with pytest.raises(RequestError, match="the key is wrong"):
        before.get("/api/tables")
    assert up.run("status").returncode == 0
    assert up.facts()["pids"] == pids


def test_a_killed_supervisor_leaves_no_child(up: Up) -> None:
    started = descendants(up.pid)
    assert len(started) >= 4
    up.signal(signal.SIGKILL)
    up.wait_ended()
    wait_until(lambda: not any(is_alive(pid) for pid in started), "every child is gone")
