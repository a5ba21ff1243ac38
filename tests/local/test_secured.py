"""`livetables up --config` at a broker with SASL_SSL and OAUTHBEARER, over failing and working logins; and no secret of
it anywhere. One system for all tests, which run in this order.
"""

from __future__ import annotations

import json
import random
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyarrow import flight

from livetables.local.ports import LOOPBACK, free_ports
from livetables.model.joins import JoinType
from tests.support.certificates import STORE_PASSWORD, Authority
from tests.support.kafka import unique_topic
from tests.support.pipeline import Stage, random_records
from tests.support.secure_broker import CLIENT_ID, CLIENT_SECRET, CLIENT_STORE_PASSWORD, MODULES, OAUTH, SecureBroker
from tests.support.server import flight_table
from tests.support.token_endpoint import TokenEndpoint
from tests.support.up import Up, descendants

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.chaos]

LIFETIME_SECONDS = 6  # of a token
SERVER_KEY = "the-servers-own-secret-key"
PIPELINE_KEY = "the-pipelines-own-secret-key"
STORAGE_KEY = "the-secret-key-of-some-storage"
SECRETS = (CLIENT_SECRET, STORE_PASSWORD, CLIENT_STORE_PASSWORD, SERVER_KEY, PIPELINE_KEY, STORAGE_KEY)
WRITTEN_BY_THE_USER = ("livetables.toml", "client.properties", "store-password")

# As it is pasted from another client; only secrets are replaced.
PROPERTIES = f"""\
security.protocol=SASL_SSL
sasl.mechanism=OAUTHBEARER
sasl.login.callback.handler.class={OAUTH}.OAuthBearerLoginCallbackHandler
sasl.oauthbearer.token.endpoint.url=%(endpoint)s
sasl.jaas.config={MODULES["OAUTHBEARER"]} required \\
    clientId="{CLIENT_ID}" \\
    clientSecret="${{env:CLIENT_SECRET}}" \\
    scope="kafka";
sasl.login.retry.backoff.max.ms=2000
ssl.truststore.type=PKCS12
ssl.truststore.location=%(trusted)s
ssl.truststore.password=${{file:store-password}}
ssl.keystore.type=PKCS12
ssl.keystore.location=%(keys)s
ssl.keystore.password={CLIENT_STORE_PASSWORD}
ssl.key.password={CLIENT_STORE_PASSWORD}
auto.offset.reset=earliest
"""
CONFIG = """\
[kafka]
"bootstrap.servers" = "%(servers)s"
properties_file = "client.properties"
[tables.users]
topic = "%(users)s"
[tables.accounts]
topic = "%(accounts)s"
[control]
topic = "%(control)s"
[server]
port = 0
flight_port = 0
[pipeline]
master = "local[2]"
driver_memory_megabytes = 1024
[pipeline.spark]
"spark.ui.enabled" = "true"
"spark.ui.port" = "%(ui)s"
"spark.hadoop.fs.s3a.secret.key" = "${env:STORAGE_KEY}"
"spark.hadoop.fs.some.storage" = "${env:STORAGE_KEY}"
"""
SPARK_SETTINGS = "/api/v1/applications/%(id)s/environment"
SPARK_PAGES = (
    SPARK_SETTINGS,
    "/environment/",
    "/jobs/",
    "/executors/",
    "/SQL/",
    "/StreamingQuery/",
    "/api/v1/applications/%(id)s/sql?details=true&planDescription=true&length=5",
)


@dataclass
class Secured:
    """What runs, and what was sent."""

    up: Up
    endpoint: TokenEndpoint
    stage: Stage
    spark_pages: str
    join: JoinType = "left"

    def rows(self, table: str, generation: str | None = None) -> list[dict[str, Any]]:
        """A table, as the oracle's comparison reads it."""
        assert generation is None, "the server shows what is published"
        try:
            found = flight_table(self.up.facts()["addresses"]["flight"], SERVER_KEY, table)
        except flight.FlightError:  # it is not there yet
            return []
        rows: list[dict[str, Any]] = found.to_pylist()
        return rows

    def status(self) -> dict[str, Any]:
        answer = json.loads(self.up.run("status", "--json").stdout)
        return {**(answer["orchestrator"] or {}), "seen": answer["message"]}

    def send(self, count: int) -> None:
        self.stage.send(random_records(random.Random(len(self.stage.sent)), count))

    def become_live(self) -> None:
        """Let tokens be had, and return when the tables are there."""
        self.endpoint.failure, self.endpoint.lifetime_seconds = None, LIFETIME_SECONDS
        self.up.wait_ready()
        self.wait_for_tables()

    def wait_for_tables(self) -> None:
        views = {"final_ui": self.join}
        expected = self.stage.expected(views)
        self.up.wait(
            lambda: (
                all(len(self.rows(name)) == len(rows) for name, rows in expected.items())
                and not self.stage.view_differences(self, views, None)
            ),
            "the tables are the oracle's",
        )


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Started while the endpoint refuses. Its tokens live for seconds."""
    keys, directory = tmp_path_factory.mktemp("keys"), tmp_path_factory.mktemp("secured")
    authority = Authority.create(keys / "authority")
    endpoint = TokenEndpoint(keys, CLIENT_ID, CLIENT_SECRET)
    endpoint.lifetime_seconds = LIFETIME_SECONDS
    endpoint.failure = (401, "invalid_client")
    with endpoint, SecureBroker(authority, endpoint, LIFETIME_SECONDS) as broker:
        stage = Stage.open(broker.bootstrap_servers)
        (port,) = free_ports(1)
        places: dict[str, object] = {
            "endpoint": endpoint.url,
            "trusted": authority.trust_store("PKCS12"),
            "keys": authority.key_store("client", CLIENT_STORE_PASSWORD),
            "servers": broker.sasl_ssl,
            "control": unique_topic("control"),
            "ui": port,
            "users": stage.topics["users"],
            "accounts": stage.topics["accounts"],
        }
        (directory / "livetables.toml").write_text(CONFIG % places)
        (directory / "client.properties").write_text(PROPERTIES % places)
        (directory / "store-password").write_text(f"{STORE_PASSWORD}\n")
        settings = {
            "CLIENT_SECRET": CLIENT_SECRET,
            "STORAGE_KEY": STORAGE_KEY,
            "LIVETABLES_TOKEN": SERVER_KEY,
            "LIVETABLES_PIPELINE_TOKEN": PIPELINE_KEY,
        }
        with Up(directory, "--config", "livetables.toml", settings=settings) as up:
            started = Secured(up, endpoint, stage, f"http://{LOOPBACK}:{port}")
            started.send(80)
            yield started


def test_a_refused_login_is_reported_and_waited_for(secured: Secured) -> None:
    up = secured.up
    up.wait(lambda: "no OAuth token" in up.steps(), "the log has what it waits for")
    up.wait(lambda: "no OAuth token" in secured.status().get("message", ""), "the status has it too")
    message = secured.status()["message"]
    assert "clientSecret" in message, "the cure"
    assert "Exception" not in up.steps() + message
    assert message in up.run("status").stdout.replace("\n", " ")


def test_when_it_is_granted_the_tables_fill(secured: Secured) -> None:
    secured.become_live()


def test_a_control_message_is_applied(secured: Secured) -> None:
    done = secured.up.run("control", "--join", "inner")
    assert done.returncode == 0, done.stderr
    secured.join = "inner"
    secured.wait_for_tables()


def test_tokens_are_renewed_while_it_runs(secured: Secured) -> None:
    generation, minted = secured.status()["generation"], len(secured.endpoint.tokens)
    secured.up.wait(lambda: len(secured.endpoint.tokens) >= minted + 3, "tokens were renewed")
    secured.send(20)
    secured.wait_for_tables()
    status = secured.status()
    assert (status["generation"], status["state"]) == (generation, "live"), status


def fail(endpoint: TokenEndpoint) -> None:
    endpoint.failure = (503, "temporarily_unavailable")


def give_expired(endpoint: TokenEndpoint) -> None:
    endpoint.lifetime_seconds = -5


@pytest.mark.parametrize("disturb", [fail, give_expired])
def test_an_endpoint_that_fails_for_a_while_loses_and_doubles_nothing(
    secured: Secured, disturb: Callable[[TokenEndpoint], None]
) -> None:
    secured.become_live()
    generation = secured.status()["generation"]
    disturb(secured.endpoint)
    secured.send(20)
    secured.up.wait(lambda: secured.status()["state"] == "failed", "the status has it")
    assert "token" in secured.status()["message"]
    secured.send(20)
    secured.become_live()
    secured.up.wait(lambda: secured.status()["state"] == "live", "it is live again")
    assert secured.status()["generation"] == generation


def test_no_secret_is_anywhere(secured: Secured) -> None:
    up = secured.up
    seen: dict[str, bytes] = {}
    for process in descendants(up.pid):
        seen[f"process {process}"] = Path(f"/proc/{process}/cmdline").read_bytes()
    for path in up.directory.rglob("*"):
        if path.is_file() and path.name not in (*WRITTEN_BY_THE_USER, "up.json"):
            seen[str(path)] = path.read_bytes()
    for table in ("orchestrator_status", "control_raw", "generations", "dead_letters", "kafka_topics"):
        seen[table] = repr(secured.rows(table)).encode()
    for arguments in (
        ("status",),
        ("status", "--json"),
        ("pipeline", "--config", "livetables.toml", "--spark-properties"),
    ):
        done = up.run(*arguments)
        seen[" ".join(arguments)] = (done.stdout + done.stderr).encode()
    application = json.loads(_page(f"{secured.spark_pages}/api/v1/applications"))[0]["id"]
    for page in SPARK_PAGES:
        seen[page] = _page(secured.spark_pages + page % {"id": application})
    assert b"spark.hadoop.fs.some.storage" in seen[SPARK_SETTINGS], "a page that shows settings at all"
    assert any(b"org.apache.spark.deploy.SparkSubmit" in content for content in seen.values()), "the JVM was looked at"
    secrets = [secret.encode() for secret in (*SECRETS, *secured.endpoint.tokens)]
    leaks = {(where, secret) for where, content in seen.items() for secret in secrets if secret in content}
    assert leaks == set()


def _page(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as response:  # noqa: S310
        content: bytes = response.read()
        return content
