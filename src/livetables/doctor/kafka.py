"""Kafka as this machine and these properties reach it: the network, the login, every topic, the control topic."""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from livetables.doctor.check import Facts, Finding
from livetables.jvm.gateway import started_gateway
from livetables.kafka.clients import Topic
from livetables.kafka.error_catalogue import MissingTopicError
from livetables.kafka.inspection import Inspection, Sample
from livetables.kafka.topics import ARRIVAL_TIME, TIME_TYPE, arrival_cure
from livetables.model.errors import TopicError
from livetables.model.spec import Table

CONNECT_SECONDS_MAX = 3.0
ANSWER_SECONDS_MAX = 10.0
SAMPLE_SECONDS_MAX = 20.0
ADDRESS = re.compile(r"(?:[A-Z_]+://)?\[?(?P<host>[^\]\s]+?)\]?:(?P<port>[0-9]{1,5})")
RETENTION = ("retention.ms", "retention.bytes", "cleanup.policy")
FOR_EVER = "-1"


def broker(facts: Facts) -> Sequence[Finding]:
    """Whether anybody listens at the bootstrap servers."""
    servers = _bootstrap_servers(facts)
    if servers is None:
        return [Finding("broker", "skipped", "none is configured: `livetables up` starts one and makes the topics")]
    return [reached("broker", servers, "kafka")]


def reached(name: str, servers: str, section: str) -> Finding:
    """Whether anybody listens at the bootstrap servers of a section of the configuration."""
    refusals = {address: _refusal(address) for address in servers.split(",")}
    silent = [f"{address} ({why})" for address, why in refusals.items() if why]
    if len(silent) == len(refusals):
        cure = f"check {section}.bootstrap.servers, that the broker runs, and that no firewall is between"
        return Finding(name, "broken", f"cannot be reached: {', '.join(silent)}", cure)
    if silent:
        cure = f"start them, or take them out of {section}.bootstrap.servers"
        return Finding(name, "warning", f"{servers} answers but for {', '.join(silent)}", cure)
    return Finding(name, "ok", f"{servers} takes connections")


def login(facts: Facts) -> Sequence[Finding]:
    """Starts the JVM, and asks with it whether Kafka takes this client."""
    config = facts.sound_config
    properties = {**config.kafka.client_properties(), "bootstrap.servers": _bootstrap_servers(facts) or ""}
    facts.gateway = facts.at_the_end.enter_context(started_gateway(config.pipeline.spark))
    facts.kafka = Inspection(facts.gateway, properties)
    facts.at_the_end.callback(facts.kafka.close)
    return [logged_in(facts.kafka, properties)]


def logged_in(kafka: Inspection, properties: Mapping[str, str]) -> Finding:
    """Whether Kafka takes this client, and can be reached where it says that it is."""
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    try:
        nodes = kafka.nodes(_deadline())
    except TopicError as error:
        return _refused(error, protocol, properties["bootstrap.servers"])
    silent = [f"{host}:{port} ({why})" for host, port in nodes if (why := _refusal(f"{host}:{port}"))]
    if silent:
        found = f"takes this client, but says that its brokers are at {', '.join(silent)}"
        return Finding("login", "broken", found, "correct advertised.listeners of the broker, or the names here")
    return Finding("login", "ok", f"by {protocol}; brokers: {', '.join(f'{host}:{port}' for host, port in nodes)}")


def topics(facts: Facts) -> Sequence[Finding]:
    """The topic of every table: there, readable, and with records."""
    tables = facts.sound_config.spec.tables
    seen = facts.inspection.look({table.topic for table in tables}, _deadline())
    facts.topics = {name: topic for name, topic in seen.items() if isinstance(topic, Topic)}
    found = [_topic(table, seen[table.topic]) for table in tables]
    arrival = [table for table in tables if table.timestamp == "arrival" and table.topic in facts.topics]
    return [*found, *(_arrival(table, facts.inspection) for table in arrival)]


def control(facts: Facts) -> Sequence[Finding]:
    """The control topic on the cluster of the tables; `control_cluster` looks at one that is elsewhere."""
    config = facts.sound_config.control
    return [] if config.kafka else _control_topic(config.topic, facts.inspection)


def control_cluster(facts: Facts) -> Sequence[Finding]:
    """The cluster of [control.kafka], if there is one: its network, the login there, and the control topic."""
    config = facts.sound_config
    if config.control.kafka is None:
        return []
    properties = config.control.kafka.client_properties()
    network = reached("control broker", properties["bootstrap.servers"], "control.kafka")
    if network.state == "broken":
        return [network]
    if facts.gateway is None:
        facts.gateway = facts.at_the_end.enter_context(started_gateway(config.pipeline.spark))
    kafka = Inspection(facts.gateway, properties)
    facts.at_the_end.callback(kafka.close)
    found = replace(logged_in(kafka, properties), name="control login")
    if found.state == "broken":
        return [network, found]
    return [network, found, *_control_topic(config.control.topic, kafka)]


def _control_topic(topic: str, kafka: Inspection) -> Sequence[Finding]:
    """Whether it is there or can be made, can be written, and keeps its messages for ever."""
    seen = kafka.look([topic], _deadline())[topic]
    name = "control topic"
    if isinstance(seen, MissingTopicError):
        kafka.check_creation(topic, _deadline())
        return [Finding(name, "ok", f"{topic} is not there yet; it can be made, and the pipeline does so")]
    if isinstance(seen, TopicError):
        raise seen
    allowed = kafka.operations(topic, _deadline())
    if allowed and "WRITE" not in allowed:
        cure = "grant this client's user Write on it, or nobody can switch topics or joins from here"
        return [Finding(name, "warning", f"{topic} may be read, but not written", cure)]
    try:
        settings = kafka.settings(topic, RETENTION, _deadline())
    except TopicError as error:
        cure = "make sure yourself that it has retention.ms=-1, or grant DescribeConfigs on it"
        return [Finding(name, "warning", f"{topic}: how long it keeps messages is not shown: {error.problem}", cure)]
    if "compact" in settings.get("cleanup.policy", ""):
        cure = f"kafka-configs --alter --entity-type topics --entity-name {topic} --add-config cleanup.policy=delete"
        return [Finding(name, "broken", f"{topic} is compacted, and takes no messages without a key", cure)]
    kept = [f"{each}={settings[each]}" for each in RETENTION[:2] if settings.get(each, FOR_EVER) != FOR_EVER]
    if kept:
        cure = (
            f"kafka-configs --alter --entity-type topics --entity-name {topic} "
            "--add-config retention.ms=-1,retention.bytes=-1"
        )
        return [Finding(name, "warning", f"{topic} forgets messages ({', '.join(kept)}), and so what was chosen", cure)]
    return [Finding(name, "ok", f"{topic} can be read and written, has {seen.records:,} messages, and keeps them")]


def samples(facts: Facts) -> dict[str, Sample | TopicError]:
    """The last records of the topics that can be read."""
    found: dict[str, Sample | TopicError] = {}
    deadline = time.monotonic() + SAMPLE_SECONDS_MAX
    for name, topic in facts.topics.items():
        try:
            found[name] = facts.inspection.sample(topic, facts.sample_records, deadline)
        except TopicError as error:
            found[name] = error
    return found


def _bootstrap_servers(facts: Facts) -> str | None:
    """Those that are configured, or else of the broker that `livetables up` runs in this directory."""
    configured = facts.sound_config.kafka.bootstrap_servers
    return configured or (facts.running.addresses.kafka if facts.running else None)


def _topic(table: Table, seen: Topic | TopicError) -> Finding:
    name = f"topic of {table.name}"
    if isinstance(seen, TopicError):
        return Finding(name, "broken", seen.problem, seen.cure)
    found = f"{table.topic} has {len(seen.ends)} partitions and {seen.records:,} records, and can be read"
    if not seen.records:
        return Finding(name, "warning", found, "send records to it, or name the topic that has them")
    if table.start == "latest":
        return Finding(name, "ok", f"{found}; by start = latest, only new ones become rows")
    return Finding(name, "ok", found)


def _arrival(table: Table, kafka: Inspection) -> Finding:
    """Whether the records of a table's topic have the time at which the broker took them."""
    name = f"arrival of {table.name}"
    kept = kafka.settings(table.topic, [TIME_TYPE], _deadline()).get(TIME_TYPE)
    if kept == ARRIVAL_TIME:
        return Finding(name, "ok", f"{table.topic} has {TIME_TYPE}={kept}")
    found = f"{table.topic} has {TIME_TYPE}={kept}: its records do not have the time of arrival"
    return Finding(name, "broken", found, arrival_cure(table.topic))


def _refused(error: TopicError, protocol: str, servers: str) -> Finding:
    """Why Kafka does not take a client whose connection it took. To one that speaks TLS wrongly it says nothing."""
    speaks_tls = any(_speaks_tls(address) for address in servers.split(","))
    if speaks_tls and not protocol.endswith("SSL"):
        found = f"TLS failure: the broker speaks TLS, and this client, by {protocol}, does not"
        fitting = "SASL_SSL" if protocol.startswith("SASL") else "SSL, or SASL_SSL for a login"
        return Finding("login", "broken", found, f"set security.protocol to {fitting}")
    if protocol.endswith("SSL") and not speaks_tls:
        found = f"TLS failure: this client, by {protocol}, speaks TLS, and the broker does not"
        cure = f"set security.protocol to {protocol.replace('SSL', 'PLAINTEXT')}, or name the port that has TLS"
        return Finding("login", "broken", found, cure)
    return Finding("login", "broken", error.problem.replace(' about topic "*"', ""), error.cure)


def _refusal(address: str) -> str | None:
    """Why there is no connection to an address; None if there is one."""
    match = ADDRESS.fullmatch(address.strip())
    if match is None:
        return "not host:port"
    try:
        socket.create_connection((match["host"], int(match["port"])), CONNECT_SECONDS_MAX).close()
    except socket.gaierror:
        return "no such host"
    except TimeoutError:
        return "no answer"
    except (OSError, OverflowError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None


def _speaks_tls(address: str) -> bool:
    """Whether TLS is spoken there at all: nothing is sent over it, so nobody has to be trusted."""
    match = ADDRESS.fullmatch(address.strip())
    if match is None:
        return False
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection((match["host"], int(match["port"])), CONNECT_SECONDS_MAX) as connection:
            connection.settimeout(CONNECT_SECONDS_MAX)
            context.wrap_socket(connection).close()
    except ssl.SSLError as error:
        # One that wants a certificate of the client's, or a newer version, answers in TLS too.
        return "alert" in str(error).lower()
    except OSError:
        return False
    return True


def _deadline() -> float:
    return time.monotonic() + ANSWER_SECONDS_MAX
