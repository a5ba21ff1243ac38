"""A configuration as a commented file: what was found, and every setting that people may want. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

from livetables.config.values import ControlConfig, GenerationsConfig, PipelineConfig, ServerConfig
from livetables.init.inference import VIEW_NAME, JoinProposal, LeftOut, Proposal
from livetables.model.columns import COLUMN_TYPES
from livetables.model.joins import DEFAULT_JOIN, JoinType, join_choices

LEFT_OUT_MAX = 50
NAME_CHARACTERS_MAX = 80

KAFKA = r"""
# A login, for one. Secrets stay elsewhere: ${env:NAME} is read from the environment, ${file:path} from a file.
# security.protocol = "SASL_SSL"
# sasl.mechanism = "PLAIN"
# sasl.jaas.config = '''org.apache.kafka.common.security.plain.PlainLoginModule required
#     username="${env:KAFKA_USER}" password="${env:KAFKA_PASSWORD}";'''
# ssl.truststore.location = "/path/to/truststore.p12"
# ssl.truststore.password = "${file:/path/to/truststore.password}"
"""
PRESET = """
# The shipped tables: users (topic user) and accounts (topic account), published as users_ui and accounts_ui, and their
# join final_ui. What is written here wins over them:
# [tables.users]
# topic = "user"
#
# Tables of your own, by hand, or by `livetables init --bootstrap-servers HOST:PORT --topic NAME`:
# [tables.orders]
# topic = "shop.orders"
# columns = { orderId = "string", amount = "double", pieces = "int64", paid = "bool" }
"""
# What a setting is for; those without a default are shown with an example.
NOTES: Mapping[str, str] = {
    "server.host": "0.0.0.0 for every address of this machine; then use TLS",
    "server.port": "browsers and HTTP; 0: any free one",
    "server.flight_port": "Python and the pipeline; 0: any free one",
    "server.store": 'a file, or ":memory:"',
    "server.memory_megabytes": "of the tables and all queries together, and once more of all open views",
    "server.token_file": "the file with the key of every endpoint; or set LIVETABLES_TOKEN",
    "server.tls_certificate": "with both, every endpoint uses TLS",
    "server.relays": "processes that serve WebSockets beside the server's own, one for each further core",
    "server.origins": "further web origins whose pages may connect",
    "server.proxies": "addresses of proxies whose X-Forwarded-For and X-Forwarded-Proto count",
    "server.dead_letters_max": "of a generation; with more, those of the oldest records go",
    "server.dead_letters_megabytes": "that their values have together; with more, the same",
    "pipeline.master": "any Spark master",
    "pipeline.driver_memory_megabytes": "of Spark's driver",
    "pipeline.checkpoint_directory": "a path, or the URL of storage that all executors share",
    "pipeline.max_records_per_batch": "what is read of a backlog at once",
    "pipeline.max_megabytes_per_batch": "the same in bytes, by a sample of each topic",
    "pipeline.batch_seconds": "between two checkpoints; what a crash reads again",
    "control.topic": "control messages are read here; it is made if it is not there",
    "generations.linger_seconds": "how long the tables before a switch stay, for a rollback",
    "generations.max_lingering": "with more, the oldest goes at once",
    "generations.keep_generations": "if any, so many old ones stay for retire_after_seconds; true for all",
    "generations.retire_after_seconds": 'or "never"',
    "generations.switch_after_seconds": "while nothing is live, a generation is shown by then, caught up or not",
}
SHOWN_AS: Mapping[str, object] = {
    "server.token_file": "livetables.key",
    "server.tls_certificate": "cert.pem",
    "server.tls_key": "key.pem",
}
# Set by `livetables up`, or for measuring only.
NOT_SHOWN = ("pipeline.server", "pipeline.spark", "pipeline.shuffle_partitions", "control.kafka")


@dataclass(frozen=True)
class Contents:
    """What the file is to say."""

    bootstrap_servers: str | None = None
    properties_file: str | None = None
    proposals: Sequence[Proposal] = ()
    join: JoinProposal | None = None
    join_type: JoinType = DEFAULT_JOIN.name
    possible_join: JoinProposal | None = None  # shown, but not made
    name: str = "livetables.toml"


def document(contents: Contents) -> str:
    """The file's text."""
    lines = [
        "# Made by `livetables init`. What begins with # is not in force: a note, or a setting with its default.",
        f"# Check it:  livetables doctor --config {contents.name}",
        f"# Run it:    livetables up --config {contents.name}",
        "",
        f"presets = {_toml([] if contents.proposals else ['default'])}",
        "",
        *_kafka(contents),
    ]
    for proposal in contents.proposals:
        lines += ["", *_table(proposal)]
    if not contents.proposals:
        lines += PRESET.splitlines()
    lines += _view(contents)
    for name, settings in (
        ("control", ControlConfig()),
        ("server", ServerConfig()),
        ("pipeline", PipelineConfig()),
        ("generations", GenerationsConfig()),
    ):
        lines += ["", f"[{name}]", *_defaults(name, settings)]
    return "\n".join(lines) + "\n"


def _kafka(contents: Contents) -> Iterator[str]:
    yield "[kafka]"
    yield "# Kafka client properties under their Java names, as they are in a client that works."
    if contents.bootstrap_servers:
        yield f"bootstrap.servers = {_toml(contents.bootstrap_servers)}"
    elif not contents.properties_file:
        yield '# bootstrap.servers = "localhost:9092"  # without it, `livetables up` starts a broker of its own'
    if contents.properties_file:
        yield f"properties_file = {_toml(contents.properties_file)}  # what is written here wins over it"
    else:
        yield '# properties_file = "client.properties"  # the properties of a client that works, as they are'
    yield from KAFKA.strip().splitlines()


def _table(proposal: Proposal) -> Iterator[str]:
    table = proposal.table
    # A table without columns is invalid: it is there to be completed.
    mark = "" if table.columns else "# "
    yield f"{mark}[tables.{table.name}]"
    yield f"{mark}topic = {_toml(table.topic)}"
    yield f"# publish = {_toml(table.publish)}  # what readers call it"
    yield "# aliases = []  # further names for it"
    yield '# start = "earliest"  # or "latest", or a time such as 2024-05-31T12:00:00Z'
    yield "# strict = false  # true: values of another type are not converted, not even without loss"
    yield '# timestamp = "kafka"  # or "arrival": the time at which the broker took the record (LogAppendTime)'
    yield "# retain = { rows = 1_000_000, days = 30, megabytes = 500 }  # any of them: older records are not kept"
    seen = f"# By the last {proposal.records:,} records" if proposal.records else "# The topic has no records yet"
    yield seen + (f"; {proposal.unreadable:,} of them are no JSON object" if proposal.unreadable else "")
    yield f"{mark}[tables.{table.name}.columns]  # {_alternatives(COLUMN_TYPES)}"
    for column in table.columns:
        yield f"{column.name} = {_toml(column.type)}"
    for field in proposal.left_out[:LEFT_OUT_MAX]:
        yield f"# {_shown(field)} = {_toml(field.type)}  # {field.why}"
    if len(proposal.left_out) > LEFT_OUT_MAX:
        yield f"# … and {len(proposal.left_out) - LEFT_OUT_MAX:,} other fields"


def _view(contents: Contents) -> Iterator[str]:
    join = contents.join or contents.possible_join
    if join is None:
        return
    mark = "" if contents.join else "# "
    yield ""
    if join.shared:
        yield f"# {join.on}: {join.shared:,} values were seen in both tables."
    else:
        yield f"# {join.on} is in both tables, but no value of it was seen in both."
    yield f"{mark}[views.{VIEW_NAME}]"
    yield f"{mark}join = {_toml(contents.join_type)}  # {join_choices(with_notes=True)}"
    yield f"{mark}left = {_toml(join.left)}"
    yield f"{mark}right = {_toml(join.right)}"
    yield f"{mark}on = {_toml(join.on)}"


def _defaults(section: str, settings: object) -> Iterator[str]:
    """Every setting of a section, not in force, with the default that the code has."""
    for field in fields(settings):  # type: ignore[arg-type]
        key = f"{section}.{field.name}"
        value = SHOWN_AS.get(key, getattr(settings, field.name))
        if key not in NOT_SHOWN and value is not None:
            note = f"  # {NOTES[key]}" if key in NOTES else ""
            yield f"# {field.name} = {_toml(value)}{note}"


def _alternatives(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _shown(field: LeftOut) -> str:
    """A field's name, whatever it is, on one line of a comment."""
    name = json.dumps(field.name).replace("\x7f", "\\u007f")
    return name if len(name) <= NAME_CHARACTERS_MAX else f"{name[:NAME_CHARACTERS_MAX]}…"


def _toml(value: object) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
