"""The configuration, and the table server: its ports, and how the one that runs is."""

from __future__ import annotations

import errno
import os
import socket
import urllib.parse
import urllib.request
from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib import metadata
from pathlib import Path

from livetables.client.http import HttpClient, UnreachableError
from livetables.client.local_system import EVERY_ADDRESS, LocalSystem, reachable
from livetables.config.load import load_config, server_ca, server_keys, server_token
from livetables.doctor.check import Facts, Finding
from livetables.model.errors import RequestError, SetupError
from livetables.tls import ServerCertificate

ANSWER_SECONDS_MAX = 3.0
WELL = ("live", "idle")
APART_SECONDS = 5.0


def configuration(facts: Facts) -> Sequence[Finding]:
    config = facts.config = load_config(facts.config_path, facts.environ)
    running = LocalSystem.read()
    facts.running = running if running and any(map(_is_alive, running.pids.values())) else None
    server_keys(config, facts.environ)
    where = str(facts.config_path) if facts.config_path else "no file: the shipped preset"
    tables, views = (", ".join(each.name for each in part) for part in (config.spec.tables, config.spec.views))
    ignored = f"; not for Spark, and left out: {', '.join(config.kafka.ignored)}" if config.kafka.ignored else ""
    return [Finding("configuration", "ok", f"{where}; tables {tables}; views {views or 'none'}{ignored}")]


def ports(facts: Facts) -> Sequence[Finding]:
    server = facts.sound_config.server
    is_ours = _is_livetables(_configured_url(facts), server_ca(facts.sound_config)) or _runs_here(facts)
    return [
        _port("port", server.host, server.port, "server.port", is_ours),
        _port("Flight port", server.host, server.flight_port, "server.flight_port", is_ours),
    ]


def certificate(facts: Facts) -> Sequence[Finding]:
    """What the server will show its clients, if it is to be encrypted."""
    server = facts.sound_config.server
    if not (server.tls_certificate and server.tls_key):
        return [Finding("certificate", "skipped", "none is configured: connections are not encrypted")]
    shown = ServerCertificate(Path(server.tls_certificate), Path(server.tls_key))  # its SetupError is a finding
    if flaw := shown.flaw():
        return [Finding("certificate", "warning", f"clients will not take it: {flaw}", "renew it")]
    return [Finding("certificate", "ok", f"for {', '.join(shown.names()) or 'hosts by a wildcard'}")]


def server(facts: Facts) -> Sequence[Finding]:
    """The server that runs here, or at the configured address: key, version, freshness."""
    config, running = facts.sound_config, facts.running
    url = running.addresses.http if running else _configured_url(facts)
    ca_file = Path(running.ca_file) if running and running.ca_file else server_ca(config)
    name = "server"
    token = server_token(config, facts.environ)
    if token is None and running:
        token = running.key
    if not running and not _is_livetables(url, ca_file):
        return [Finding(name, "ok", "none runs here; `livetables up` starts one")]
    if token is None:
        cure = "set LIVETABLES_TOKEN to its key, or run this in the directory where `livetables up` runs"
        return [Finding(name, "warning", f"one runs at {url}, but there is no key to ask it with", cure)]
    try:
        status = HttpClient(url, token, ANSWER_SECONDS_MAX, ca_file).get("/api/status")
    except UnreachableError as error:
        cure = "start it again; if it was killed, `livetables up` goes on where it was"
        return [Finding(name, "warning", error.problem, cure)]
    except (RequestError, SetupError) as error:
        return [Finding(name, "broken", f"{url}: {error.problem}", error.cure)]
    _note_clock(facts, url)
    return [_version(url, status["version"]), _freshness(status["state"], status["message"])]


def clock(facts: Facts) -> Sequence[Finding]:
    """The clocks of others are known by what they stamp: records, and the answers of a server elsewhere."""
    now = datetime.now(UTC)
    ahead = {
        f"the newest record of topic {sample.topic}": (sample.newest - now).total_seconds()
        for sample in facts.samples.values()
        if sample.newest
    }
    # A record may be as old as it likes, but not from the future.
    apart = {**{what: max(0.0, seconds) for what, seconds in ahead.items()}, **facts.clock_ahead_seconds}
    if not apart:
        return [Finding("clock", "skipped", "not looked at: there is no record and no other machine to compare with")]
    wrong = [
        f"{what} is {abs(seconds):,.0f} s {'ahead of' if seconds > 0 else 'behind'} this machine's clock"
        for what, seconds in apart.items()
        if abs(seconds) > APART_SECONDS
    ]
    if wrong:
        cure = "set the clocks (NTP) of this machine and of those that write: as-of joins go by these times"
        return [Finding("clock", "warning", "; ".join(wrong), cure)]
    return [Finding("clock", "ok", f"this machine's clock agrees with {', '.join(apart)}")]


def _is_alive(pid: int) -> bool:
    """Whether there is such a process: a system that was killed may have left its note."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _runs_here(facts: Facts) -> bool:
    """Whether what `livetables up` wrote in this directory has the configured port."""
    if facts.running is None:
        return False
    return urllib.parse.urlsplit(facts.running.addresses.http).port == facts.sound_config.server.port


def _configured_url(facts: Facts) -> str:
    server = facts.sound_config.server
    return f"{server.schemes[0]}://{reachable(server.host)}:{server.port}"


def _is_livetables(url: str, ca_file: Path | None) -> bool:
    """Whether a livetables server answers there; it is asked without the key, which nobody else may get."""
    try:
        HttpClient(url, "", ANSWER_SECONDS_MAX, ca_file).get("/api/status")
    except RequestError as error:
        return error.code == "unauthorized"
    except SetupError:
        return False
    return False


def _port(name: str, host: str, port: int, setting: str, is_ours: bool) -> Finding:
    if port == 0:
        return Finding(name, "ok", "any free one")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE and is_ours:
            return Finding(name, "ok", f"{host}:{port} is the running livetables server's")
        if error.errno == errno.EADDRINUSE:
            cure = f"end what listens there (`ss -ltnp 'sport = :{port}'` shows it), or set {setting} to another"
            return Finding(name, "broken", f"{host}:{port} is used by another program", cure)
        if error.errno == errno.EACCES:
            cure = f"set {setting} to one from 1024 on, or give the process the right to use it"
            return Finding(name, "broken", f"this user may not listen at {host}:{port}", cure)
        cure = f"set server.host to an address of this machine: 127.0.0.1, or {' or '.join(EVERY_ADDRESS)} for all"
        return Finding(name, "broken", f"nobody can listen at {host} here: {error.strerror or error}", cure)
    return Finding(name, "ok", f"{host}:{port} is free")


def _note_clock(facts: Facts, url: str) -> None:
    """How far ahead the clock of a server on another machine is. Its answers have the time in whole seconds."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "http" or parts.hostname in ("127.0.0.1", "::1", "localhost"):
        return
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{url}/healthz", timeout=ANSWER_SECONDS_MAX) as answer:
        if date := answer.headers.get("Date"):
            ahead = parsedate_to_datetime(date) - datetime.now(UTC)
            facts.clock_ahead_seconds[f"the server at {url}"] = ahead.total_seconds()


def _version(url: str, version: str) -> Finding:
    ours = metadata.version("livetables")
    if version == ours:
        return Finding("server", "ok", f"runs at {url}, takes the key, and is livetables {version} too")
    cure = "start it again with this version, or use the command of its version"
    return Finding("server", "warning", f"runs at {url}, but is livetables {version}, not {ours}", cure)


def _freshness(state: str, message: str) -> Finding:
    name, found = "freshness", f"{state.replace('_', ' ')}: {message}"
    if state in WELL:
        return Finding(name, "ok", found)
    if state in ("failed", "pipeline_down"):
        cure = (
            "look at the pipeline's log, under `livetables up` in .livetables/logs/pipeline.log; start it if it is down"
        )
        return Finding(name, "broken", found, cure)
    return Finding(name, "warning", found, "wait: it is on its way; `livetables status` shows how far it is")
