"""`livetables up`: what it refuses before anything is started, and how it shows the errors of its processes."""

from __future__ import annotations

import io
import os
import re
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from livetables.cli.up import Steps, with_options
from livetables.config.load import load_config
from livetables.local.system import advertised_host
from tests.support import certificates
from tests.support.certificates import Certificate
from tests.support.up import COMMAND, clean_environment

pytestmark = pytest.mark.processes

NO_BROKER = {"LIVETABLES_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"}


def up(directory: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "up", *arguments],
        cwd=directory,
        env=clean_environment(**settings),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "settings", "problem"),
    [
        (["--demo"], NO_BROKER, "kafka.bootstrap.servers is configured"),
        (["--demo"], {"LIVETABLES_TABLES_USERS_TOPIC": "people"}, "configured otherwise"),
        (["--demo", "--rate", "0"], {}, "--rate is 0"),
    ],
)
def test_a_demo_that_cannot_be_is_refused_before_anything_is_started(
    tmp_path: Path, arguments: list[str], settings: dict[str, str], problem: str
) -> None:
    done = up(tmp_path, *arguments, **settings)
    assert done.returncode == 2
    assert problem in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("presets", [["asof", "default"], ["asof,default"]])
def test_presets_may_be_given_on_the_command_line(presets: list[str]) -> None:
    config = load_config(None, with_options({"LIVETABLES_PRESETS": "default"}, presets, [], None))
    assert {view.name for view in config.spec.views} == {"final_ui", "user_account"}


def test_origins_of_the_command_line_are_beside_the_configured_ones(tmp_path: Path) -> None:
    path = tmp_path / "livetables.toml"
    path.write_text('[server]\norigins = ["https://a.example"]')
    environ = with_options({}, [], ["http://localhost:4200"], path)
    assert load_config(path, environ).server.origins == ("https://a.example", "http://localhost:4200")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--preset", "as-of"], 'unknown preset "as-of"'),
        (["--origin", "localhost:4200"], '"localhost:4200" is not an origin'),
    ],
)
def test_an_invalid_preset_or_origin_is_refused_before_anything_is_started(
    tmp_path: Path, arguments: list[str], problem: str
) -> None:
    done = up(tmp_path, *arguments)
    assert (done.returncode, problem in done.stderr) == (2, True), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_a_process_refuses_ends_everything_with_its_own_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = up(tmp_path, **NO_BROKER, LIVETABLES_SERVER_PORT=port)
    assert done.returncode == 2
    assert f"livetables: cannot listen on 127.0.0.1 port {port}" in done.stderr
    made = list((tmp_path / ".livetables").rglob("*"))
    assert "server.log" in [path.name for path in made]
    assert [path for path in (tmp_path / ".livetables", *made) if path.stat().st_mode & 0o077] == []
    assert "LIVETABLES_SERVER_PORT" in done.stderr
    assert not (tmp_path / ".livetables" / "up.json").exists()


@pytest.mark.parametrize(
    ("shown", "host", "problem"),
    [
        ("signed", "127.0.0.1", "certificate is not valid for '127.0.0.1'"),
        ("signed", "0.0.0.0", "certificate is not valid for '127.0.0.1'"),  # noqa: S104  its only name is a wildcard
        ("expired", "127.0.0.1", "certificate has expired"),
    ],
)
def test_a_certificate_that_its_own_pipeline_would_not_accept_is_refused_before_anything_is_started(
    tmp_path: Path, shown: str, host: str, problem: str
) -> None:
    certificates.signed_by(certificates.authority(tmp_path), tmp_path, hosts="DNS:*.example")
    certificates.expired(tmp_path)
    settings = Certificate(tmp_path / f"{shown}.pem", tmp_path / f"{shown}.key").settings
    done = up(tmp_path, LIVETABLES_SERVER_HOST=host, **settings)
    assert done.returncode == 2
    assert problem in done.stderr
    assert "subjectAltName" in done.stderr
    assert not (tmp_path / ".livetables" / "broker").exists()


def test_on_every_address_the_server_is_called_by_a_name_of_its_certificate(tmp_path: Path) -> None:
    settings = certificates.self_signed(tmp_path, hosts="DNS:*.example,DNS:tables.example").settings
    document = load_config(None, {"LIVETABLES_SERVER_HOST": "0.0.0.0", **settings})  # noqa: S104
    assert advertised_host(document.server) == "tables.example"
    assert advertised_host(replace(document.server, tls_certificate=None, tls_key=None)) == "127.0.0.1"


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / ".livetables").write_text("a file, where the directory should be")
    done = up(tmp_path)
    assert done.returncode == 2
    assert f"{tmp_path / '.livetables' / 'logs'} cannot be used: " in done.stderr
    assert "cure: let this user write there" in done.stderr


def test_steps_are_lines_where_there_is_no_terminal() -> None:
    screen = io.StringIO()
    steps = Steps(Console(file=screen))
    steps.notify("building: 1 of 9")
    steps.notify("building: 2 of 9")
    steps.show("ready")
    assert screen.getvalue() == "building: 1 of 9\nbuilding: 2 of 9\nready\n"


def test_steps_that_differ_in_numbers_only_share_a_line_in_a_terminal() -> None:
    screen = io.StringIO()
    steps = Steps(Console(file=screen, force_terminal=True, width=80))
    for step in ("starting", "building: 1 of 9", "building: 9 of 9"):
        steps.notify(step)
    steps.show("ready")
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", screen.getvalue()).splitlines()
    assert [line for line in lines if line in ("starting", "building: 1 of 9", "building: 9 of 9", "ready")] == [
        "starting",
        "building: 9 of 9",
        "ready",
    ]


@pytest.mark.parametrize("behind", ["a full disk", "a closed pipe"])
def test_steps_that_cannot_be_printed_end_nothing(behind: str) -> None:
    program = """
from rich.console import Console
from livetables.cli.up import Steps
import sys
steps = Steps(Console())
steps.notify("building")
steps.show("ready")
print("went on", file=sys.stderr)
sys.stdout = None  # which Python would flush at its end
"""
    if behind == "a full disk":
        output = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, output = os.pipe()
        os.close(reader)
    try:
        ended = subprocess.run(
            [sys.executable, "-c", program], stdout=output, stderr=subprocess.PIPE, text=True, check=False
        )
    finally:
        os.close(output)
    assert "went on" in ended.stderr, ended.stderr
