"""Secured brokers through everything that talks to Kafka: topics, the control topic, Spark's source, the orchestrator.

One broker has all listeners. Clients are configured as people do it: properties pasted into TOML or kept in a file of
their own, secrets in the environment or in files.
"""

from __future__ import annotations

import json
import random
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from pyarrow import flight
from pyspark.sql import SparkSession

from livetables.client.http import HttpClient
from livetables.config.load import load_config
from livetables.config.values import Config
from livetables.kafka.topics import ControlTopic, KafkaTopics, Topic, TopicProblem
from livetables.model.joins import JoinType
from livetables.pipeline.flow.modes import Mode
from livetables.pipeline.main import run_on
from tests.support.certificates import STORE_PASSWORD, Authority
from tests.support.kafka import create_topic, unique_topic, wait_until
from tests.support.pipeline import Engine, Stage, random_records
from tests.support.secure_broker import (
    CLIENT_ID,
    CLIENT_SECRET,
    CLIENT_STORE_PASSWORD,
    PASSWORD,
    SecureBroker,
    login,
    oauth_login,
    trusting,
)
from tests.support.server import TOKEN, ServerProcess
from tests.support.token_endpoint import AUDIENCE, LIFETIME_SECONDS, TokenEndpoint

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

READ_SECONDS = 30.0
LIVE_SECONDS = 120.0
WRONG = "wrong-and-secret"
MODES: list[Mode] = ["micro_batch", "real_time"]

Properties = dict[str, str]


@dataclass(frozen=True)
class Secured:
    """The broker, and what its clients need."""

    broker: SecureBroker
    endpoint: TokenEndpoint
    authority: Authority
    stranger: Authority  # whom the broker does not know

    def sasl(self, given: Mapping[str, str]) -> Properties:
        return {"bootstrap.servers": self.broker.sasl, "security.protocol": "SASL_PLAINTEXT", **given}

    def sasl_ssl(self, given: Mapping[str, str], store: str = "PEM") -> Properties:
        trusted = trusting(self.authority, store)
        return {"bootstrap.servers": self.broker.sasl_ssl, "security.protocol": "SASL_SSL", **trusted, **given}

    def ssl(self) -> Properties:
        return {
            "bootstrap.servers": self.broker.ssl,
            "security.protocol": "SSL",
            **trusting(self.authority, "PEM"),
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(self.authority.directory / "client.p12"),
            "ssl.keystore.password": CLIENT_STORE_PASSWORD,
            "ssl.key.password": CLIENT_STORE_PASSWORD,
        }

    def oauth(self, client_secret: str = CLIENT_SECRET) -> Properties:
        return oauth_login(self.endpoint.url, client_secret=client_secret)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    authority, stranger = Authority.create(directory / "authority"), Authority.create(directory / "stranger")
    for each in (authority, stranger):
        each.key_store("client", CLIENT_STORE_PASSWORD)
    with (
        TokenEndpoint(directory, CLIENT_ID, CLIENT_SECRET) as endpoint,
        SecureBroker(authority, endpoint) as broker,
    ):
        yield Secured(broker, endpoint, authority, stranger)


# As people write it


def in_toml(directory: Path, properties: Properties, further: str = "") -> Config:
    """Everything pasted into [kafka]."""
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in properties.items())
    return _loaded(directory, f"[kafka]\n{lines}\n{further}", {})


def in_properties_file(directory: Path, properties: Properties, further: str = "") -> Config:
    """In the file that another client has, the JAAS line in two as many have it."""
    lines = "".join(f"{name}={value}\n" for name, value in properties.items())
    (directory / "client.properties").write_text(lines.replace(" required ", " required \\\n    "))
    return _loaded(directory, f'[kafka]\nproperties_file = "client.properties"\n{further}', {})


def with_environment(directory: Path, properties: Properties, further: str = "") -> Config:
    """The file names secrets of the environment, and the environment gives a property too."""
    text = _with_references(properties, lambda name: f"${{env:{name}}}")
    environ = {"PASSWORD": PASSWORD, "SECRET": CLIENT_SECRET, "STORE": STORE_PASSWORD}
    environ["LIVETABLES_KAFKA_SECURITY_PROTOCOL"] = properties["security.protocol"]
    return _loaded(directory, f"[kafka]\n{text}\n{further}", environ)


def with_files(directory: Path, properties: Properties, further: str = "") -> Config:
    """Secrets in files beside the configuration, as orchestrators mount them."""
    for name, value in (("PASSWORD", PASSWORD), ("SECRET", CLIENT_SECRET), ("STORE", STORE_PASSWORD)):
        (directory / name).write_text(f"{value}\n")
    text = _with_references(properties, lambda name: f"${{file:{name}}}")
    return _loaded(directory, f"[kafka]\n{text}\n{further}", {})


def _with_references(properties: Properties, reference: Callable[[str], str]) -> str:
    text = "".join(f"{name} = {json.dumps(value)}\n" for name, value in properties.items())
    for secret, name in ((PASSWORD, "PASSWORD"), (CLIENT_SECRET, "SECRET"), (STORE_PASSWORD, "STORE")):
        text = text.replace(secret, reference(name))
    return text


def _loaded(directory: Path, text: str, environ: Mapping[str, str]) -> Config:
    path = directory / "livetables.toml"
    path.write_text(text)
    return load_config(path, environ)


# What works


@pytest.mark.parametrize(
    ("configured", "properties"),
    [
        pytest.param(in_toml, lambda it: it.sasl(login("PLAIN")), marks=pytest.mark.chaos),
        (with_environment, lambda it: it.sasl_ssl(login("PLAIN"), "JKS")),
        pytest.param(in_properties_file, lambda it: it.sasl(login("SCRAM-SHA-256")), marks=pytest.mark.chaos),
        pytest.param(with_files, lambda it: it.sasl_ssl(login("SCRAM-SHA-512"), "PKCS12"), marks=pytest.mark.chaos),
        (in_properties_file, lambda it: it.sasl(it.oauth())),
        pytest.param(with_environment, lambda it: it.sasl_ssl(it.oauth()), marks=pytest.mark.chaos),
        (in_toml, lambda it: it.ssl()),
    ],
    ids=["plain", "plain-ssl-jks", "scram-256", "scram-512-ssl-pkcs12", "oauth", "oauth-ssl-pem", "mutual-tls"],
)
def test_a_secured_broker_is_read_as_any_other(
    spark: SparkSession,
    secured: Secured,
    server: ServerProcess,
    tmp_path: Path,
    configured: Callable[[Path, Properties], Config],
    properties: Callable[[Secured], Properties],
) -> None:
    client = configured(tmp_path, {**properties(secured), "auto.offset.reset": "earliest"}).kafka.client_properties()
    stage = Stage.open(secured.broker.bootstrap_servers)
    stage.send(random_records(random.Random(1), 60))
    with KafkaTopics(spark, client) as topics:
        seen = topics.look(stage.topics.values())
        assert sum(topic.records for topic in seen.values() if isinstance(topic, Topic)) == 60, seen
    with ControlTopic(spark, client, unique_topic("control")) as control:
        control.create_if_missing()
        control.send({"joinType": "inner"})
        assert [record.value for record in control.read(READ_SECONDS)] == [b'{"joinType": "inner"}']
    spec, bootstrap, checkpoint = stage.spec(["left"]), stage.bootstrap, tmp_path / "checkpoint"
    with Engine(spark, server, spec, bootstrap, checkpoint, kafka_properties=client) as engine:
        for mode in MODES:  # each reads in a way of its own
            engine.start(mode)
            engine.settle(len(stage.sent))
            stage.send(random_records(random.Random(2), 20))
        engine.settle(len(stage.sent))
        assert stage.differences(engine, ["left"]) == {}


# What does not


def reason_of(problem: object) -> str:
    """The reason of a problem, without secrets and without Java's own exceptions."""
    assert isinstance(problem, TopicProblem), problem
    for hidden in (WRONG, PASSWORD, CLIENT_SECRET, STORE_PASSWORD, CLIENT_STORE_PASSWORD, "Exception", "\n"):
        assert hidden not in problem.reason
    return problem.reason


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        (
            lambda it: it.sasl(login("PLAIN", password=WRONG)),
            r"refuses this client: .*Invalid username or password; check .*kafka\.sasl\.jaas\.config",
        ),
        (
            lambda it: it.sasl_ssl(login("SCRAM-SHA-512", password=WRONG)),
            r"refuses this client: .*invalid credentials .*; check .*kafka\.sasl\.jaas\.config",
        ),
        (
            lambda it: it.sasl(login("SCRAM-SHA-256", user="nobody")),
            r"refuses this client: .*invalid credentials .*; check .*kafka\.sasl\.jaas\.config",
        ),
        (
            lambda it: it.sasl(it.oauth(client_secret=WRONG)),
            r"no OAuth token for the Kafka broker: .*401.*invalid_client.*; check .*clientSecret",
        ),
        (
            lambda it: {**it.sasl_ssl(login("PLAIN")), **trusting(it.stranger, "PEM")},
            r"do not trust each other: .*; check kafka\.ssl\.truststore",
        ),
        (
            lambda it: {**it.ssl(), "ssl.keystore.location": str(it.stranger.directory / "client.p12")},
            r"do not trust each other: .*; check .*kafka\.ssl\.keystore",
        ),
        (
            lambda it: {**it.sasl_ssl(login("PLAIN"), "JKS"), "ssl.truststore.password": WRONG},
            r"Password verification failed; fix the kafka",
        ),
        (
            lambda it: {**it.sasl_ssl(login("PLAIN")), "ssl.truststore.location": "/not/there.pem"},
            r"no such file /not/there\.pem; fix the kafka",
        ),
        (
            lambda it: {"bootstrap.servers": it.broker.sasl_ssl, "security.protocol": "PLAINTEXT"},
            r"did not answer .*; check .*kafka\.security\.protocol",
        ),
        (
            lambda it: {"bootstrap.servers": it.broker.sasl},
            r"did not answer .*; check .*kafka\.security\.protocol",
        ),
    ],
    ids=[
        "plain-password",
        "scram-password",
        "scram-user",
        "oauth-secret",
        "untrusted-broker",
        "untrusted-client",
        "store-password",
        "no-store",
        "plaintext-to-tls",
        "plaintext-to-sasl",
    ],
)
def test_what_is_wrong_is_an_error_with_its_cure(
    spark: SparkSession, secured: Secured, properties: Callable[[Secured], Properties], reason: str
) -> None:
    with KafkaTopics(spark, properties(secured), seconds_max=3.0) as topics:
        assert re.search(reason, reason_of(topics.look(["user"])["user"]))


def fail(endpoint: TokenEndpoint) -> None:
    endpoint.failure = (503, "overloaded")


def refuse(endpoint: TokenEndpoint) -> None:
    endpoint.failure = (401, "invalid_client")


def give_others(endpoint: TokenEndpoint) -> None:
    endpoint.audience = "somebody-else"


def give_expired(endpoint: TokenEndpoint) -> None:
    endpoint.lifetime_seconds = -5


@pytest.mark.parametrize(
    ("disturb", "reason"),
    [
        (fail, r"no OAuth token for the Kafka broker: .*503.*overloaded.*; check .*token\.endpoint\.url"),
        (refuse, r"no OAuth token for the Kafka broker: .*401.*invalid_client.*; check .*clientSecret"),
        (TokenEndpoint.stop, r"no OAuth token for the Kafka broker: Connection refused; check .*token\.endpoint\.url"),
        (give_others, r"refuses this client: .*invalid_token.*; check .*tokens"),
        (give_expired, r"refuses this client: .*invalid_token.*; check .*tokens"),
    ],
)
def test_a_token_that_cannot_be_had_is_reported_and_had_later(
    spark: SparkSession, secured: Secured, disturb: Callable[[TokenEndpoint], None], reason: str
) -> None:
    topic, endpoint = unique_topic("user"), secured.endpoint
    create_topic(secured.broker.bootstrap_servers, topic)
    properties = secured.sasl({**secured.oauth(), "sasl.login.retry.backoff.max.ms": "500"})
    with KafkaTopics(spark, properties) as topics:
        disturb(endpoint)
        try:
            problem = topics.look([topic])[topic]
            assert re.search(reason, reason_of(problem))
            assert isinstance(problem, TopicProblem)
            assert problem.is_passing  # no control message is rejected for it
        finally:
            endpoint.stop()
            endpoint.failure, endpoint.audience, endpoint.lifetime_seconds = None, AUDIENCE, LIFETIME_SECONDS
            endpoint.start()
        wait_until(lambda: isinstance(topics.look([topic])[topic], Topic), "the topic can be read")


# The whole pipeline


class Pipeline:
    """A pipeline on the session of all tests, with a server in a process of its own."""

    def __init__(self, spark: SparkSession, server: ServerProcess, config: Config) -> None:
        self.notices: list[str] = []
        self._server = server
        self._stop = threading.Event()
        self._thread = threading.Thread(target=run_on, args=(spark, config, TOKEN, self._stop, self.notices.append))

    def rows(self, table: str, generation: str | None = None) -> list[dict[str, Any]]:
        assert generation is None, "the server shows what is published"
        try:
            rows: list[dict[str, Any]] = self._server.table(table).to_pylist()
        except flight.FlightError:
            return []
        return rows

    def wait_for_status(self, state: str, message: str) -> None:
        def is_shown() -> bool:
            return [
                row["state"] == state and message in row["message"] for row in self.rows("orchestrator_status")
            ] == [True]

        wait_until(is_shown, f"the status is {state}: {message}", LIVE_SECONDS)

    def wait_for_tables(self, stage: Stage, join: JoinType) -> None:
        def are_right() -> bool:
            return self.rows("users_ui") != [] and not stage.view_differences(self, {"final_ui": join}, None)

        wait_until(are_right, f"the tables are those of {join}", LIVE_SECONDS)

    def __enter__(self) -> Pipeline:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()


def pipeline_of(stage: Stage, directory: Path, server: ServerProcess) -> str:
    return f"""
[tables.users]
topic = "{stage.topics["users"]}"
[tables.accounts]
topic = "{stage.topics["accounts"]}"
[control]
topic = "{unique_topic("control")}"
[pipeline]
server = "{server.flight}"
checkpoint_directory = "{directory / "checkpoints"}"
"""


@pytest.mark.chaos
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_pipeline_fills_its_tables_and_takes_messages(
    spark: SparkSession, secured: Secured, tmp_path: Path, mechanism: str
) -> None:
    stage = Stage.open(secured.broker.bootstrap_servers)
    stage.send(random_records(random.Random(2), 60))
    with ServerProcess(tmp_path) as server:
        config = with_files(tmp_path, secured.sasl_ssl(login(mechanism)), pipeline_of(stage, tmp_path, server))
        if mechanism != "PLAIN":
            secured.broker.set_scram_password("another-one")
        try:
            with Pipeline(spark, server, config) as pipeline:
                if mechanism != "PLAIN":
                    pipeline.wait_for_status("failed", "refuses this client")
                    assert PASSWORD not in "".join(pipeline.notices)
                    secured.broker.set_scram_password(PASSWORD)
                pipeline.wait_for_tables(stage, "left")
                HttpClient(server.http, TOKEN).post("/api/control", {"joinType": "natural"})
                stage.send(random_records(random.Random(3), 20))
                pipeline.wait_for_tables(stage, "natural")
                pipeline.wait_for_status("live", "")
        finally:
            secured.broker.set_scram_password(PASSWORD)
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "PASSWORD"]
    assert len(kept) > 10, "a store, a checkpoint and a log"
    assert [path for path in kept if PASSWORD.encode() in path.read_bytes()] == []
