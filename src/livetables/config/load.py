"""One TOML file and the `LIVETABLES_*` environment become one frozen `Config`.

Each setting comes from the first of these that has it:
1. the environment: `LIVETABLES_PIPELINE_MASTER` is `pipeline.master`, `LIVETABLES_TABLES_USERS_TOPIC` is
   `tables.users.topic`, `LIVETABLES_KAFKA_SECURITY_PROTOCOL` is `security.protocol` under `[kafka]`
2. the file
3. Kafka's `properties_file`, or the presets of tables and views

In any text, `${env:NAME}` and `${file:path}` stand for a secret that is kept elsewhere.
"""

from __future__ import annotations

import ipaddress
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from livetables.config.declarations import (
    PRESETS,
    RETAIN_KEYS,
    TABLE_KEYS,
    VIEW_KEYS,
    read_spec,
    with_presets,
)
from livetables.config.kafka_properties import parse_properties, read_kafka
from livetables.config.settings import Problems, Secret, Section, choice, flattened, guarded, quoted
from livetables.config.values import Config, ControlConfig, GenerationsConfig, PipelineConfig, ServerConfig
from livetables.model.errors import ConfigError
from livetables.model.roles import VARIABLES, Role, RoleKey, role_key
from livetables.model.spec import TOPIC_CURE, GenerationSpec, is_topic_name

SECTIONS = ("kafka", "tables", "views", "pipeline", "server", "control", "generations")
SUBSECTIONS = ("spark", "kafka")
TABLE_SUBSECTIONS = ("columns", "retain")  # of a table or view


def _keys_of(config: type[PipelineConfig | ServerConfig | ControlConfig | GenerationsConfig]) -> dict[str, object]:
    """Return the settings of a section with their defaults; not those that are sections themselves."""
    return {each.name: each.default for each in fields(config) if each.name not in SUBSECTIONS}


PIPELINE_KEYS, SERVER_KEYS = _keys_of(PipelineConfig), _keys_of(ServerConfig)
CONTROL_KEYS, GENERATIONS_KEYS = _keys_of(ControlConfig), _keys_of(GenerationsConfig)
DEFAULTS = PIPELINE_KEYS | SERVER_KEYS | CONTROL_KEYS | GENERATIONS_KEYS
# How the text of an environment variable is read: by the type of the default; tables, views and presets have these too.
NUMBERS = {key for key, default in DEFAULTS.items() if type(default) is int} | {"lookback_seconds", *RETAIN_KEYS}
LISTS = {key for key, default in DEFAULTS.items() if isinstance(default, tuple)} | {"presets", "aliases"}
SWITCHES = {key for key, default in DEFAULTS.items() if isinstance(default, bool)} | {"strict", "keep_generations"}
NEVER = "never"
PREFIX = "LIVETABLES_"
KAFKA_PREFIX = "LIVETABLES_KAFKA_"
CONTROL_KAFKA_PREFIX = "LIVETABLES_CONTROL_KAFKA_"
NOT_SETTINGS = ("LIVETABLES_JARS", *VARIABLES.values(), "LIVETABLES_CONFIG")
ORIGIN = re.compile(r"https?://[^\s/?#@*]+")
FLIGHT_ADDRESS = re.compile(r"grpc(\+tls)?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[1-9][0-9]{0,4})")
LEAST_MEMORY_MEGABYTES = 64
LEAST_BATCH_SECONDS = 5  # the least that Spark accepts
TOPIC_PATTERN = re.compile(r"[A-Za-z0-9._*-]{1,249}")
SYSTEM_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
REFERENCE = re.compile(r"\$\{(env|file):([^}]+)\}")


def load_config(path: Path | None, environ: Mapping[str, str]) -> Config:
    """Read the file, if there is one, and the environment; a ConfigError lists every problem."""
    problems = Problems()
    outside = _Outside(environ, path.parent if path else Path(), problems)
    overrides = {name.upper(): text for name, text in environ.items() if name.upper().startswith(PREFIX)}

    document = _parsed_file(path) if path else {}
    if "LIVETABLES_PRESETS" in overrides:
        document["presets"] = _value("presets", overrides.pop("LIVETABLES_PRESETS"))
    presets = _presets(outside.resolved(document.pop("presets", ["default"]), "presets"), problems)
    for name in sorted(document.keys() - set(SECTIONS)):
        problems.add(name, "unknown key", choice(name, ("presets", *SECTIONS)))
    for name in SECTIONS:
        Section(name, document.setdefault(name, {}), problems)
    problems.raise_if_any()

    document = with_presets(document, presets)
    _override(document, overrides, problems)
    document = outside.resolved(document, "")
    problems.raise_if_any()

    sections = {name: Section(name, document[name], problems) for name in SECTIONS}
    kafka, default_start = read_kafka(_kafka_properties(sections["kafka"], outside), problems)
    pipeline = _pipeline(sections["pipeline"], outside.directory)
    server = _server(sections["server"], outside.directory)
    control = _control(sections["control"], outside, problems)
    generations = _generations(sections["generations"])
    spec = read_spec(sections["tables"], sections["views"], default_start, problems)
    _check_control_topic(control, spec, sections["control"])
    problems.raise_if_any()
    return Config(kafka, spec, pipeline, server, control, generations)


def server_keys(config: Config, environ: Mapping[str, str]) -> tuple[RoleKey, ...]:
    """Return all keys of the server: those of the environment, and of the token file unless LIVETABLES_TOKEN is set."""
    token_file = server_token_file(config, environ)
    of_file = keys_in(token_file) if token_file else ()
    of_environment = [RoleKey(token, role) for role in VARIABLES if (token := _token_of(role, environ))]
    keys = (*of_file, *of_environment)
    for key in keys:
        if any(other.token == key.token and other.role != key.role for other in keys):
            raise ConfigError(
                f"the same key has two roles, {key.role} and another",
                f"give each role its own key ({', '.join(VARIABLES.values())}, or the lines of server.token_file)",
            )
    return keys


def server_token(config: Config, environ: Mapping[str, str]) -> str | None:
    """Return the key for clients on this machine: LIVETABLES_TOKEN, or else the token file's; None without both."""
    if token_file := server_token_file(config, environ):
        return token_in(token_file)
    return _token_of("operator", environ)


def pipeline_token(config: Config, environ: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Return the key that the pipeline writes with, and the file that it comes from, if any: the key there may change.

    Without a key of its own, it is the operator's: the server accepts that for writing where no pipeline has a key.
    """
    if token := _token_of("pipeline", environ):
        return token, None
    token_file = server_token_file(config, environ)
    return (token_in(token_file, "pipeline") if token_file else _token_of("operator", environ)), token_file


def server_token_file(config: Config, environ: Mapping[str, str]) -> str | None:
    """Return the file that has the keys, which may change; None where they come from elsewhere."""
    return None if "LIVETABLES_TOKEN" in environ else config.server.token_file


def token_in(token_file: str, *roles: Role) -> str:
    """Return the key in a token file to log in with: of the first of these roles that has one."""
    keys = keys_in(token_file)
    found = (key.token for role in (*roles, "operator", "viewer", "pipeline") for key in keys if key.role == role)
    return next(found)


def keys_in(token_file: str) -> tuple[RoleKey, ...]:
    """Return the keys in a token file, one per line: `role key`, or an operator's key alone."""
    where = f"server.token_file: the file {quoted(token_file)}"
    try:
        lines = Path(token_file).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(
            f"{where} cannot be read ({why})", "put the key there, correct the path, or set LIVETABLES_TOKEN"
        ) from None
    found = (role_key(line) for line in lines if line.strip() and not line.lstrip().startswith("#"))
    keys = tuple(RoleKey(Secret(key.token), key.role) for key in found)
    if not keys:
        raise ConfigError(f"{where} is empty", "put a long random text into it; lines that begin with # are comments")
    return keys


def _token_of(role: Role, environ: Mapping[str, str]) -> str | None:
    """Return the key of a role in the environment."""
    name = VARIABLES[role]
    if name not in environ:
        return None
    token = environ[name].strip()
    if not token:
        raise ConfigError(f"{name} is empty", "set it to a long random text, or unset it")
    return Secret(token)


def server_ca(config: Config) -> Path | None:
    """Return the certificates to trust: the configured file, or else the server's own; None: the system's."""
    ca_file = config.pipeline.server_ca or config.server.tls_certificate
    return Path(ca_file) if ca_file else None


@dataclass(frozen=True)
class _Outside:
    """Resolver of references in a configuration: to the environment, and to files relative to its own."""

    environ: Mapping[str, str]
    directory: Path
    problems: Problems

    def text(self, path: str, key: str) -> str:
        try:
            return (self.directory / path).read_text(encoding="utf-8-sig")
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            cure = f"put it there, or correct the path; it is relative to {self.directory}"
            self.problems.add(key, f"cannot read the file {quoted(path)} ({why})", cure)
            return ""

    def resolved(self, value: Any, key: str) -> Any:
        """Return the value with every `${...}` replaced; text that had one is a secret from then on."""
        if isinstance(value, dict):
            return {name: self.resolved(inner, f"{key}.{name}".lstrip(".")) for name, inner in value.items()}
        if isinstance(value, list):
            return [self.resolved(inner, key) for inner in value]
        if isinstance(value, str) and REFERENCE.search(value):
            return Secret(REFERENCE.sub(lambda reference: self._secret(reference[1], reference[2], key), value))
        return value

    def _secret(self, kind: str, name: str, key: str) -> str:
        if kind == "file":
            return self.text(name, key).removesuffix("\n")
        if name not in self.environ:
            self.problems.add(key, f"the environment variable {name} is not set", f"set {name}")
        return self.environ.get(name, "")


def _parsed_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except tomllib.TOMLDecodeError as error:
        cure = "correct the TOML there; if the key is the beginning of another, put both in quotes"
        raise ConfigError(f"{path}: {error}", cure) from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", "give the path of a configuration file") from None
    except ValueError:
        raise ConfigError(f"{path}: not UTF-8 text", "save it as UTF-8") from None


def _presets(value: object, problems: Problems) -> list[str]:
    if not isinstance(value, list):
        problems.add("presets", f"must be a list, not {quoted(value)}", f"list any of {', '.join(PRESETS)}")
        return []
    for name in value:
        if not isinstance(name, str) or name not in PRESETS:
            problems.add("presets", f"unknown preset {quoted(name)}", f"list any of {', '.join(PRESETS)}")
    return value


def _override(document: dict[str, Any], overrides: Mapping[str, str], problems: Problems) -> None:
    """Set in the document the values that the environment has."""
    document["kafka"] = dict(flattened(document["kafka"]))
    control_kafka = document["control"].get("kafka", {})
    if isinstance(control_kafka, dict):
        control_kafka = dict(flattened(control_kafka))
        for name in [name for name in overrides if name.startswith(CONTROL_KAFKA_PREFIX)]:
            control_kafka[_property_name(name.removeprefix(CONTROL_KAFKA_PREFIX))] = overrides[name]
        if control_kafka:
            document["control"]["kafka"] = control_kafka
    settable: dict[str, tuple[dict[str, Any], str]] = {}
    for name, keys in (
        ("pipeline", PIPELINE_KEYS),
        ("server", SERVER_KEYS),
        ("control", CONTROL_KEYS),
        ("generations", GENERATIONS_KEYS),
    ):
        for key in keys:
            settable[f"{PREFIX}{name}_{key}".upper()] = document[name], key
    for kind, own_keys in (("tables", TABLE_KEYS), ("views", VIEW_KEYS)):
        for name, section in document[kind].items():
            for key in own_keys:
                if isinstance(section, dict) and key not in TABLE_SUBSECTIONS:
                    settable[f"{PREFIX}{kind}_{name}_{key}".upper()] = section, key
            if kind == "tables" and isinstance(section, dict) and isinstance(section.setdefault("retain", {}), dict):
                for key in RETAIN_KEYS:
                    settable[f"{PREFIX}{kind}_{name}_retain_{key}".upper()] = section["retain"], key
    for variable, text in overrides.items():
        if variable in settable:
            section, key = settable[variable]
            section[key] = _value(key, text)
        elif variable.startswith(KAFKA_PREFIX):
            document["kafka"][_property_name(variable.removeprefix(KAFKA_PREFIX))] = text
        elif variable not in NOT_SETTINGS and not variable.startswith(CONTROL_KAFKA_PREFIX):
            known = [*settable, *NOT_SETTINGS, "LIVETABLES_PRESETS", "LIVETABLES_KAFKA_BOOTSTRAP_SERVERS"]
            problems.add(variable, "unknown setting in the environment", choice(variable, known))


def _property_name(suffix: str) -> str:
    """Return the Java name of a Kafka property in the environment."""
    return "properties_file" if suffix == "PROPERTIES_FILE" else suffix.lower().replace("_", ".")


def _value(key: str, text: str) -> object:
    """Return the text of an environment variable as the TOML value of that key; it is validated when it is read."""
    if key in SWITCHES and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if key in LISTS:
        return [item.strip() for item in text.split(",") if item.strip()]
    return int(text) if key in NUMBERS and re.fullmatch("[0-9]{1,18}", text) else text


def _kafka_properties(section: Section, outside: _Outside) -> dict[str, str]:
    """Return the section's properties, over those of its `properties_file`."""
    properties = section.properties()
    path = properties.pop("properties_file", None)
    for name in properties:
        if "_" in name and "." not in name:
            dotted = name.replace("_", ".")
            section.add(name, "unknown key", f'use Java\'s name: did you mean "{dotted}", or "properties_file"?')
    if path is None:
        return properties
    try:
        below = parse_properties(outside.text(path, f"{section.key}.properties_file"))
    except ValueError as error:
        section.add("properties_file", f"{quoted(path)} has {error}", "write \\uXXXX, or \\\\ for a backslash")
        return properties
    return {**outside.resolved(below, section.key), **properties}


def _pipeline(section: Section, directory: Path) -> PipelineConfig:
    default = PipelineConfig()
    section.only((*PIPELINE_KEYS, "spark"))
    pipeline = PipelineConfig(
        master=section.text("master", default.master),
        driver_memory_megabytes=section.count("driver_memory_megabytes", default.driver_memory_megabytes),
        shuffle_partitions=section.count("shuffle_partitions", default.shuffle_partitions),
        checkpoint_directory=section.text("checkpoint_directory", default.checkpoint_directory),
        max_records_per_batch=section.count("max_records_per_batch", default.max_records_per_batch),
        max_megabytes_per_batch=section.count("max_megabytes_per_batch", default.max_megabytes_per_batch),
        batch_seconds=section.count("batch_seconds", default.batch_seconds, LEAST_BATCH_SECONDS),
        server=section.text("server", default.server),
        spark=section.section("spark").properties(),
        server_ca=_file(section, "server_ca", directory),
    )
    address = FLIGHT_ADDRESS.fullmatch(pipeline.server)
    if pipeline.server and not (address and int(address["port"]) <= 65535):
        problem = f"{quoted(guarded('server', pipeline.server))} is not the address of a Flight endpoint"
        section.add("server", problem, "write grpc://host:port or grpc+tls://host:port")
    return pipeline


def _server(section: Section, directory: Path) -> ServerConfig:
    default = ServerConfig()
    section.only(SERVER_KEYS)
    server = ServerConfig(
        host=section.text("host", default.host),
        port=section.port("port", default.port),
        flight_port=section.port("flight_port", default.flight_port),
        store=section.text("store", default.store),
        memory_megabytes=section.count("memory_megabytes", default.memory_megabytes, LEAST_MEMORY_MEGABYTES),
        token_file=_file(section, "token_file", directory),
        origins=section.texts("origins"),
        tls_certificate=_file(section, "tls_certificate", directory),
        tls_key=_file(section, "tls_key", directory),
        relays=section.count("relays", default.relays, 0),
        proxies=section.texts("proxies"),
        hide_raw_from_viewers=section.switch("hide_raw_from_viewers", default.hide_raw_from_viewers),
        dead_letters_max=section.count("dead_letters_max", default.dead_letters_max),
        dead_letters_megabytes=section.count("dead_letters_megabytes", default.dead_letters_megabytes),
    )
    for name, other in (("tls_certificate", "tls_key"), ("tls_key", "tls_certificate")):
        if getattr(server, name) and not getattr(server, other):
            section.add(other, f"is missing, but server.{name} is there", "give both for TLS, or none")
    if server.relays and server.tls_certificate:
        cure = "let a proxy in front of the server speak TLS, or write relays = 0"
        section.add("relays", "an encrypted connection cannot be passed to a relay", cure)
    if server.port and server.port == server.flight_port:
        section.add("flight_port", f"is the same as server.port, {server.port}", "choose another port, or 0 for any")
    for origin in server.origins:
        if not ORIGIN.fullmatch(origin):
            problem = f"{quoted(origin)} is not an origin"
            section.add("origins", problem, "write it as a browser does, https://host or https://host:port")
    for proxy in server.proxies:
        if not _is_network(proxy):
            problem = f"{quoted(proxy)} is not an address or a network"
            section.add("proxies", problem, "write the addresses of your proxies, like 127.0.0.1 or 10.1.0.0/16")
    return server


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return True


def _control(section: Section, outside: _Outside, problems: Problems) -> ControlConfig:
    section.only((*CONTROL_KEYS, "kafka"))
    topic = section.text("topic", ControlConfig().topic)
    if topic and not is_topic_name(topic):
        section.add("topic", f"Kafka has no topic named {quoted(topic)}", TOPIC_CURE)
    topics = section.texts("topics")
    for pattern in topics:
        if not TOPIC_PATTERN.fullmatch(pattern):
            problem = f"{quoted(pattern)} is not a pattern of topics"
            section.add("topics", problem, "write names of topics, in which * stands for any text, like shop.*")
    system = section.text("system") if "system" in section.raw else None
    if system and not SYSTEM_NAME.fullmatch(system):
        section.add("system", f"{quoted(system)} is not a valid name", "use 1 to 100 of A-Z a-z 0-9 . _ -")
    if "kafka" not in section.raw:
        return ControlConfig(topic, topics, system)
    own = section.section("kafka")
    kafka, _ = read_kafka(_kafka_properties(own, outside), problems, own.key)
    if kafka.bootstrap_servers is None and isinstance(section.raw["kafka"], dict):
        cure = "name the cluster that has the control topic, or remove [control.kafka]: it is then that of the tables"
        own.add("bootstrap.servers", "is missing", cure)
    return ControlConfig(topic, topics, system, kafka)


def _check_control_topic(control: ControlConfig, spec: GenerationSpec, section: Section) -> None:
    """Check that the control topic is not also the topic of a table."""
    for table in spec.tables:
        if control.topic and table.topic == control.topic and control.kafka is None:
            cure = f"give control.topic or tables.{table.name}.topic another topic"
            section.add("topic", f"{quoted(control.topic)} is also the topic of tables.{table.name}", cure)


def _generations(section: Section) -> GenerationsConfig:
    default = GenerationsConfig()
    section.only(GENERATIONS_KEYS)
    return GenerationsConfig(
        linger_seconds=section.count("linger_seconds", default.linger_seconds, 0),
        max_lingering=section.count("max_lingering", default.max_lingering, 0),
        keep_generations=_kept(section, default.keep_generations),
        retire_after_seconds=_retired(section, default.retire_after_seconds),
        switch_after_seconds=section.count("switch_after_seconds", default.switch_after_seconds),
    )


def _kept(section: Section, default: int | Literal[True]) -> int | Literal[True]:
    """Return how many old generations stay: a number, true for all, false for none."""
    value = section.raw.get("keep_generations", default)
    if value is True:
        return True
    if value is False:
        return 0
    if isinstance(value, int) and value >= 0:
        return value
    problem = f"must be a whole number from 0 on, or true for all, not {quoted(value)}"
    section.add("keep_generations", problem, "write keep_generations = true, or a number")
    return default


def _retired(section: Section, default: int | Literal["never"]) -> int | Literal["never"]:
    """Return after how many seconds a kept generation is retired: a number, or never."""
    value = section.raw.get("retire_after_seconds", default)
    if value == NEVER:
        return "never"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    problem = f'must be a whole number from 1 on, or "{NEVER}", not {quoted(value)}'
    section.add("retire_after_seconds", problem, f'write retire_after_seconds = 900, or "{NEVER}"')
    return default


def _file(section: Section, name: str, directory: Path) -> str | None:
    """Return a path relative to the configuration's own file as an absolute one; a secret stays one."""
    path = section.text(name) if name in section.raw else ""
    return type(path)((directory / path).absolute()) if path else None
