"""The wheels as a stranger installs them: in clean environments, with an empty cache, in an empty directory."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.support.up import Up, descendants, is_alive
from wheels.build import PAGE, build_client, build_full

INSTALL_SECONDS = 1200.0  # Spark is large

pytestmark = [pytest.mark.chaos, pytest.mark.kafka, pytest.mark.spark]


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment that has the full wheel."""
    return installed(build_full(tmp_path_factory.mktemp("dist"), PAGE), tmp_path_factory.mktemp("full"))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment that has the client wheel."""
    return installed(build_client(tmp_path_factory.mktemp("dist")), tmp_path_factory.mktemp("client"))


def installed(wheel: Path, environment: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    subprocess.run(
        [str(environment / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", str(wheel)],
        timeout=INSTALL_SECONDS,
        check=True,
    )
    return environment / "bin"


def rows(up: Up, table: str) -> int:
    facts = up.facts()
    request = urllib.request.Request(  # noqa: S310  of our own server
        f"{facts['addresses']['http']}/api/tables/{table}/rows", headers={"Authorization": f"Bearer {facts['token']}"}
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
        return len(json.loads(answer.read())["rows"])


def test_the_demo_runs_from_the_wheel_and_the_client_alone_reads_its_status(
    full: Path, client: Path, tmp_path: Path
) -> None:
    cache, directory = tmp_path / "cache", tmp_path / "a_path_too_long_for_a_socket_and_right_for_everything_else"
    directory.mkdir()
    settings = {"XDG_CACHE_HOME": str(cache), "PYTHONPATH": "", "LIVETABLES_SERVER_PORT": "0"}
    settings |= {"LIVETABLES_SERVER_FLIGHT_PORT": "0"}
    with Up(directory, "--demo", settings=settings, command=[str(full / "livetables")]) as up:
        up.wait_ready()
        assert f"fetching the 5 spark jars with Maven into {cache}" in up.steps()
        up.wait(lambda: rows(up, "final_ui") > 0, "there are rows in final_ui")
        up.command = [str(client / "livetables")]
        status = up.run("status")
        assert status.returncode == 0, status.stderr
        assert "users user, accounts account" in status.stdout
        up.command = [str(client / "python")]
        counted = up.run("-c", "import livetables; print(livetables.connect().table('final_ui').count() > 0)")
        assert counted.stdout == "True\n", counted.stderr
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(up.facts()["addresses"]["http"]) as page:
            assert b"<script" in page.read()
        started = descendants(up.pid)
        up.signal(signal.SIGINT)
        assert up.wait_ended() == 0
        assert "nothing is left running" in up.steps()
        assert not any(map(is_alive, started))


def test_the_client_brings_little_along(client: Path) -> None:
    listed = subprocess.run([str(client / "pip"), "list", "--format=json"], capture_output=True, check=True)
    names = {each["name"] for each in json.loads(listed.stdout)}
    assert {"livetables-client", "pyarrow", "rich"} <= names
    assert names.isdisjoint({"livetables", "pyspark", "duckdb", "fastapi", "confluent-kafka", "pandas", "pydantic"})
    for arguments in ([], ["--help"], ["--version"]):
        done = subprocess.run([str(client / "livetables"), *arguments], env={}, capture_output=True, check=False)
        assert b"livetables" in done.stdout + done.stderr
        assert b"Traceback" not in done.stderr
