"""One TOML file and the environment become one Config; every error names its key and its cure."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from livetables.config.load import (
    keys_in,
    load_config,
    pipeline_token,
    server_ca,
    server_keys,
    server_token,
    server_token_file,
)
from livetables.config.values import Config, ControlConfig, GenerationsConfig, PipelineConfig, ServerConfig
from livetables.model.errors import ConfigError
from livetables.model.roles import RoleKey
from livetables.model.spec import Column, GenerationSpec, Retain, Table, View, joined_column_names, view_columns
from tests.support.toml import describe

USER_COLUMNS = (Column("userId", "string"), Column("name", "string"), Column("email", "string"), Column("age", "int64"))
ACCOUNT_COLUMNS = (Column("userId", "string"), Column("accountType", "string"), Column("balance", "double"))
USERS = Table("users", "user", USER_COLUMNS, "users_ui", ("user",))
ACCOUNTS = Table("accounts", "account", ACCOUNT_COLUMNS, "accounts_ui", ("account",))
FINAL_UI = View("final_ui", "left", "users", "accounts", "userId")
USER_ACCOUNT = View(
    "user_account",
    "asof",
    "users",
    "accounts",
    "userId",
    columns=(
        *((name, name) for name in ("userId", "accountType", "balance")),
        ("ts", "accounts_ts"),
        *((name, name) for name in ("name", "email", "age")),
    ),
)

TWO_TABLES = """
presets = []
[tables.a]
topic = "a"
columns = { id = "string", x = "int64" }
[tables.b]
topic = "b"
columns = { id = "string", y = "int64" }
"""


def load(directory: Path, toml: str, **environ: str) -> Config:
    path = directory / "livetables.toml"
    path.write_text(toml, encoding="utf-8")
    return load_config(path, environ)


def failure(directory: Path, toml: str, **environ: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(directory, toml, **environ)
    return caught.value


# Presets


def test_without_a_file_there_is_the_default_preset() -> None:
    assert load_config(None, {}).spec == GenerationSpec((USERS, ACCOUNTS), (FINAL_UI,))


def test_asof_preset_alone_publishes_under_its_own_names(tmp_path: Path) -> None:
    users = dataclasses.replace(USERS, publish="user", aliases=())
    accounts = dataclasses.replace(ACCOUNTS, publish="account", aliases=())
    assert load(tmp_path, 'presets = ["asof"]').spec == GenerationSpec((users, accounts), (USER_ACCOUNT,))


@pytest.mark.parametrize("presets", ['["default", "asof"]', '["asof", "default"]'])
def test_both_presets_share_the_tables_of_the_default_one(tmp_path: Path, presets: str) -> None:
    spec = load(tmp_path, f"presets = {presets}").spec
    assert (set(spec.tables), set(spec.views)) == ({USERS, ACCOUNTS}, {FINAL_UI, USER_ACCOUNT})


def test_no_preset_leaves_only_what_the_file_declares(tmp_path: Path) -> None:
    assert [table.name for table in load(tmp_path, TWO_TABLES).spec.tables] == ["a", "b"]


def test_a_file_overrides_single_keys_of_a_preset(tmp_path: Path) -> None:
    spec = load(tmp_path, '[tables.users]\ntopic = "user_v2"\n[views.final_ui]\njoin = "natural"').spec
    assert spec.tables[0] == dataclasses.replace(USERS, topic="user_v2")
    assert spec.views == (dataclasses.replace(FINAL_UI, join="natural"),)


def test_columns_of_a_file_replace_those_of_the_preset(tmp_path: Path) -> None:
    spec = load(tmp_path, '[tables.users.columns]\nuserId = "string"\ncity = "string"').spec
    assert [column.name for column in spec.table("users").columns] == ["userId", "city"]


def test_a_file_adds_tables_and_views_to_a_preset(tmp_path: Path) -> None:
    toml = """
        [tables.orders]
        topic = "orders"
        columns = { userId = "string", amount = "double", paid = "bool" }
        [views.user_orders]
        join = "inner"
        left = "users"
        right = "orders"
        on = "userId"
    """
    spec = load(tmp_path, toml).spec
    assert {table.name for table in spec.tables} == {"users", "accounts", "orders"}
    assert {view.name for view in spec.views} == {"final_ui", "user_orders"}


# Tables and views


def test_a_table_is_published_with_ui_after_its_name(tmp_path: Path) -> None:
    assert load(tmp_path, TWO_TABLES).spec.table("a").publish == "a_ui"


@pytest.mark.parametrize(("given", "join"), [("join", "inner"), ("LEFT OUTER", "left"), ("aj", "asof")])
def test_a_join_is_known_by_the_beginning_of_its_name(tmp_path: Path, given: str, join: str) -> None:
    assert load(tmp_path, f'[views.final_ui]\njoin = "{given}"').spec.views[0].join == join


def test_a_table_converts_values_and_has_kafkas_time_by_default(tmp_path: Path) -> None:
    users = load(tmp_path, "").spec.table("users")
    assert (users.strict, users.timestamp) == (False, "kafka")


def test_a_table_may_be_strict_and_have_the_time_of_arrival(tmp_path: Path) -> None:
    environ = {"LIVETABLES_TABLES_ACCOUNTS_STRICT": "true", "LIVETABLES_TABLES_ACCOUNTS_TIMESTAMP": "arrival"}
    spec = load(tmp_path, '[tables.users]\nstrict = true\ntimestamp = "arrival"', **environ).spec
    assert [(table.strict, table.timestamp) for table in spec.tables] == [(True, "arrival")] * 2


def test_a_view_may_choose_and_name_its_columns(tmp_path: Path) -> None:
    toml = '[views.final_ui.columns]\npaid = "balance"\nwho = "userId"'
    (view,) = load(tmp_path, toml).spec.views
    assert view.columns == (("paid", "balance"), ("who", "userId"))
    names = [column.name for column in view_columns(view, USERS, ACCOUNTS)]
    assert names == ["_left_id", "_right_id", "paid", "who", "_users_ts", "_accounts_ts"]


def test_asof_takes_a_lookback(tmp_path: Path) -> None:
    toml = 'presets = ["asof"]\n[views.user_account]\nlookback_seconds = 60'
    assert load(tmp_path, toml).spec.views[0].lookback_seconds == 60


@pytest.mark.parametrize("start", ['"2024-05-31T12:00:00Z"', "2024-05-31T12:00:00Z", "2024-05-31T14:00:00+02:00"])
def test_a_start_is_a_timestamp_as_text_or_as_toml(tmp_path: Path, start: str) -> None:
    spec = load(tmp_path, f"[tables.users]\nstart = {start}").spec
    assert spec.table("users").start == datetime(2024, 5, 31, 12, tzinfo=UTC)


def test_auto_offset_reset_starts_the_tables_that_do_not_say_it_themselves(tmp_path: Path) -> None:
    toml = '[kafka]\nauto.offset.reset = "latest"\n[tables.users]\nstart = "earliest"'
    assert [table.start for table in load(tmp_path, toml).spec.tables] == ["earliest", "latest"]


def joined(left: Table, right: Table, on: str) -> list[str]:
    """The joined columns that a record can clash with: no field of one starts with _."""
    return [name for name in joined_column_names(left, right, on) if not name.startswith("_")]


def test_joined_columns_are_left_then_right_without_the_key_then_both_timestamps() -> None:
    names = ["userId", "name", "email", "age", "accountType", "balance", "users_ts", "accounts_ts"]
    assert joined(USERS, ACCOUNTS, "userId") == names


def test_a_joined_column_that_both_sides_have_carries_the_right_tables_name() -> None:
    left = Table("a", "a", (Column("id", "string"), Column("x", "int64")), "a_ui")
    right = Table("b", "b", (Column("id", "string"), Column("x", "int64")), "b_ui")
    assert joined(left, right, "id") == ["id", "x", "b_x", "a_ts", "b_ts"]


# Pipeline


def test_the_pipeline_has_defaults() -> None:
    assert load_config(None, {}).pipeline == PipelineConfig(
        "local[*]", 2048, 2, ".livetables/checkpoints", 200_000, 300, "grpc://127.0.0.1:8766", {}
    )


def test_spark_settings_are_passed_as_they_are_quoted_or_not(tmp_path: Path) -> None:
    toml = '[pipeline.spark]\nspark.sql.ansi.enabled = true\n"spark.executor.memory" = "2g"'
    assert load(tmp_path, toml).pipeline.spark == {"spark.sql.ansi.enabled": "true", "spark.executor.memory": "2g"}


@pytest.mark.parametrize(
    "address",
    ["grpc://127.0.0.1:1", "grpc+tls://tables.example:65535", "grpc://table_server:8766", "grpc://[::1]:8766"],
)
def test_the_pipeline_takes_the_address_of_the_server(tmp_path: Path, address: str) -> None:
    assert load(tmp_path, f'[pipeline]\nserver = "{address}"').pipeline.server == address


def test_the_environment_overrides_the_address_of_the_server(tmp_path: Path) -> None:
    config = load(tmp_path, '[pipeline]\nserver = "grpc://a:1"', LIVETABLES_PIPELINE_SERVER="grpc+tls://b:2")
    assert config.pipeline.server == "grpc+tls://b:2"


# Server


def test_the_server_has_defaults() -> None:
    server = ServerConfig("127.0.0.1", 8765, 8766, ".livetables/store.duckdb", 1024, None, ())
    assert load_config(None, {}).server == server


def test_the_server_takes_its_settings(tmp_path: Path) -> None:
    toml = """
        [server]
        host = "::"
        port = 0
        flight_port = 0
        store = ":memory:"
        memory_megabytes = 64
        origins = ["https://a.example", "http://localhost:4200"]
    """
    origins = ("https://a.example", "http://localhost:4200")
    assert load(tmp_path, toml).server == ServerConfig("::", 0, 0, ":memory:", 64, None, origins)


def test_the_environment_overrides_every_setting_of_the_server(tmp_path: Path) -> None:
    environ = {
        "LIVETABLES_SERVER_HOST": "0.0.0.0",  # noqa: S104
        "LIVETABLES_SERVER_PORT": "65535",
        "LIVETABLES_SERVER_FLIGHT_PORT": "0",
        "LIVETABLES_SERVER_STORE": ":memory:",
        "LIVETABLES_SERVER_MEMORY_MEGABYTES": "2048",
        "LIVETABLES_SERVER_TOKEN_FILE": "/run/key",
        "LIVETABLES_SERVER_ORIGINS": "https://a.example, https://b.example",
        "LIVETABLES_SERVER_RELAYS": "3",
        "LIVETABLES_SERVER_PROXIES": "::1, 10.1.0.0/16",
        "LIVETABLES_SERVER_DEAD_LETTERS_MAX": "10",
        "LIVETABLES_SERVER_DEAD_LETTERS_MEGABYTES": "1",
    }
    origins, proxies = ("https://a.example", "https://b.example"), ("::1", "10.1.0.0/16")
    server = ServerConfig(
        "0.0.0.0",  # noqa: S104
        65535,
        0,
        ":memory:",
        2048,
        "/run/key",
        origins,
        relays=3,
        proxies=proxies,
        dead_letters_max=10,
        dead_letters_megabytes=1,
    )
    assert load(tmp_path, "[server]\nport = 1", **environ).server == server


def test_a_table_keeps_everything_unless_it_has_limits(tmp_path: Path) -> None:
    toml = "[tables.users]\nretain = { rows = 1_000, days = 2, megabytes = 3 }\n[tables.accounts]\nretain = {}"
    users, accounts = load(tmp_path, toml).spec.tables
    assert users.retain == Retain(rows=1000, seconds=2 * 24 * 60 * 60, bytes=3 * 1024**2)
    assert accounts.retain is None
    assert all(table.retain is None for table in load(tmp_path, "").spec.tables)


def test_the_environment_sets_limits_of_tables(tmp_path: Path) -> None:
    environ = {"LIVETABLES_TABLES_USERS_RETAIN_DAYS": "7"}
    users, accounts = load(tmp_path, "[tables.users]\nretain = { rows = 9 }", **environ).spec.tables
    assert (users.retain, accounts.retain) == (Retain(rows=9, seconds=7 * 24 * 60 * 60), None)


def test_a_token_file_lies_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(" s3cret\n")
    config = load(tmp_path, '[server]\ntoken_file = "key"')
    assert config.server.token_file == str(tmp_path / "key")
    assert server_token(config, {}) == "s3cret"


def test_a_token_file_may_have_several_keys_and_the_first_is_used(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("\ufeff# of today\n\n new \r\n  # before\nold#1\n", encoding="utf-8")
    config = load(tmp_path, '[server]\ntoken_file = "key"')
    token_file = server_token_file(config, {})
    assert token_file == str(tmp_path / "key")
    assert keys_in(token_file) == (RoleKey("new"), RoleKey("old#1"))
    assert server_token(config, {}) == "new"
    assert "old" not in repr(keys_in(token_file))


def test_a_token_file_may_have_keys_with_roles(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("viewer looks\nPipeline\twrites\noperator  acts too\nhas spaces\nviewer\n")
    config = load(tmp_path, '[server]\ntoken_file = "key"')
    assert server_keys(config, {}) == (
        RoleKey("looks", "viewer"),
        RoleKey("writes", "pipeline"),
        RoleKey("acts too", "operator"),
        RoleKey("has spaces", "operator"),
        RoleKey("viewer", "operator"),  # a key alone
    )
    assert server_token(config, {}) == "acts too"
    assert pipeline_token(config, {}) == ("writes", str(tmp_path / "key"))


def test_the_pipeline_has_the_operators_key_where_it_has_none_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("viewer looks\nacts\n")
    config = load(tmp_path, '[server]\ntoken_file = "key"')
    assert pipeline_token(config, {}) == ("acts", str(tmp_path / "key"))
    assert pipeline_token(config, {"LIVETABLES_TOKEN": "acts"}) == ("acts", None)
    assert pipeline_token(config, {"LIVETABLES_PIPELINE_TOKEN": "writes"}) == ("writes", None)


def test_the_environment_has_a_key_for_each_role() -> None:
    environ = {"LIVETABLES_TOKEN": "o", "LIVETABLES_VIEWER_TOKEN": "v", "LIVETABLES_PIPELINE_TOKEN": "p"}
    keys = server_keys(load_config(None, environ), environ)
    assert {key.role: key.token for key in keys} == {"operator": "o", "viewer": "v", "pipeline": "p"}


def test_a_key_with_two_roles_is_an_error() -> None:
    environ = {"LIVETABLES_TOKEN": "same", "LIVETABLES_VIEWER_TOKEN": "same"}
    with pytest.raises(ConfigError, match="the same key has two roles"):
        server_keys(load_config(None, environ), environ)


def test_a_token_of_the_environment_is_in_no_file(tmp_path: Path) -> None:
    config = load(tmp_path, '[server]\ntoken_file = "key"')
    assert server_token_file(config, {"LIVETABLES_TOKEN": "s3cret"}) is None


def test_certificates_lie_beside_the_file_and_make_addresses_encrypted(tmp_path: Path) -> None:
    config = load(tmp_path, '[server]\ntls_certificate = "cert.pem"\ntls_key = "/run/key.pem"')
    assert config.server.tls_certificate == str(tmp_path / "cert.pem")
    assert config.server.tls_key == "/run/key.pem"
    assert config.server.schemes == ("https", "grpc+tls")
    assert server_ca(config) == tmp_path / "cert.pem"


def test_an_authority_goes_before_the_certificate_itself(tmp_path: Path) -> None:
    text = '[server]\ntls_certificate = "cert.pem"\ntls_key = "key.pem"\n[pipeline]\nserver_ca = "ca.pem"'
    assert server_ca(load(tmp_path, text)) == tmp_path / "ca.pem"


def test_without_certificates_addresses_are_plain(tmp_path: Path) -> None:
    config = load(tmp_path, "")
    assert (config.server.schemes, server_ca(config)) == (("http", "grpc"), None)


def test_the_token_of_the_environment_goes_before_that_of_the_file(tmp_path: Path) -> None:
    config = load(tmp_path, '[server]\ntoken_file = "absent"')
    assert server_token(config, {"LIVETABLES_TOKEN": "s3cret\n"}) == "s3cret"


def test_without_a_token_there_is_none() -> None:
    assert server_token(load_config(None, {}), {}) is None


def test_a_token_is_not_shown_by_repr() -> None:
    assert "s3cret" not in repr(server_token(load_config(None, {}), {"LIVETABLES_TOKEN": "s3cret"}))


@pytest.mark.parametrize("token", ["", " \n"])
def test_an_empty_token_of_the_environment_is_an_error(token: str) -> None:
    with pytest.raises(ConfigError, match=r"LIVETABLES_TOKEN is empty\n  cure: set it to a long random text, or unset"):
        server_token(load_config(None, {}), {"LIVETABLES_TOKEN": token})


@pytest.mark.parametrize(
    ("content", "problem", "cure"),
    [
        (None, 'key" cannot be read (No such file or directory)', "put the key there, correct the path, or set"),
        (b"\xff", 'key" cannot be read (not UTF-8 text)', "put the key there, correct the path, or set"),
        (b"\n", 'key" is empty', "put a long random text into it"),
        (b" # key\n", 'key" is empty', "lines that begin with # are comments"),
    ],
)
def test_a_token_file_without_a_token_is_an_error(
    tmp_path: Path, content: bytes | None, problem: str, cure: str
) -> None:
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    config = load(tmp_path, '[server]\ntoken_file = "key"')
    with pytest.raises(ConfigError) as caught:
        server_token(config, {})
    assert caught.value.problem.startswith("server.token_file: the file ")
    assert problem in caught.value.problem
    assert cure in caught.value.cure


def test_a_token_file_by_reference_is_not_shown_when_it_cannot_be_read(tmp_path: Path) -> None:
    config = load(tmp_path, '[server]\ntoken_file = "${env:WHERE}"', WHERE="s3cret")
    with pytest.raises(ConfigError) as caught:
        server_token(config, {})
    assert "s3cret" not in str(caught.value)


# Control


def test_the_control_topic_has_a_default() -> None:
    assert load_config(None, {}).control == ControlConfig("control")


def test_the_control_topic_can_be_set(tmp_path: Path) -> None:
    assert load(tmp_path, '[control]\ntopic = "team.control-1"').control == ControlConfig("team.control-1")


def test_the_environment_overrides_the_control_topic(tmp_path: Path) -> None:
    config = load(tmp_path, '[control]\ntopic = "a"', LIVETABLES_CONTROL_TOPIC="b")
    assert config.control == ControlConfig("b")


def test_a_table_may_have_the_default_control_topic_if_control_has_another(tmp_path: Path) -> None:
    config = load(tmp_path, '[tables.users]\ntopic = "control"\n[control]\ntopic = "other"')
    assert (config.spec.table("users").topic, config.control.topic) == ("control", "other")


CONTROL_CLUSTER = """
    [kafka]
    bootstrap.servers = "data:9092"
    sasl.jaas.config = "of the tables"
    [control.kafka]
    bootstrap.servers = "control:9092"
    sasl.jaas.config = "required password=hush;"
"""


def test_the_control_topic_may_be_on_another_cluster(tmp_path: Path) -> None:
    config = load(tmp_path, CONTROL_CLUSTER)
    assert config.control.kafka
    assert config.control.kafka.client_properties() == {
        "bootstrap.servers": "control:9092",
        "sasl.jaas.config": "required password=hush;",
    }
    assert config.kafka.bootstrap_servers == "data:9092"


def test_secrets_of_the_control_cluster_are_never_shown(tmp_path: Path) -> None:
    config = load(tmp_path, CONTROL_CLUSTER)
    assert "hush" not in f"{config!r} {describe(config)}"
    assert '"sasl.jaas.config" = "<redacted>"' in describe(config)


def test_the_environment_sets_properties_of_the_control_cluster(tmp_path: Path) -> None:
    (tmp_path / "client.properties").write_text("client.id=${env:NAME}\n")
    environ = {
        "LIVETABLES_CONTROL_KAFKA_BOOTSTRAP_SERVERS": "other:9092",
        "LIVETABLES_CONTROL_KAFKA_PROPERTIES_FILE": "client.properties",
        "NAME": "me",
    }
    kafka = load(tmp_path, CONTROL_CLUSTER, **environ).control.kafka
    assert kafka
    properties = kafka.client_properties()
    assert (properties["bootstrap.servers"], properties["client.id"]) == ("other:9092", "me")


def test_on_another_cluster_the_control_topic_may_be_called_like_a_tables_topic(tmp_path: Path) -> None:
    config = load(tmp_path, CONTROL_CLUSTER + '[tables.users]\ntopic = "control"')
    assert config.spec.table("users").topic == config.control.topic


# Generations


@pytest.mark.parametrize(
    ("given", "kept"), [("true", True), ("false", 0), ("2", 2)], ids=["all of them", "none", "a number"]
)
def test_old_generations_can_be_kept(tmp_path: Path, given: str, kept: int | bool) -> None:
    by_file = load(tmp_path, f'[generations]\nkeep_generations = {given}\nretire_after_seconds = "never"').generations
    by_environment = load(
        tmp_path,
        "",
        LIVETABLES_GENERATIONS_KEEP_GENERATIONS=given,
        LIVETABLES_GENERATIONS_RETIRE_AFTER_SECONDS="never",
    ).generations
    assert by_file == by_environment
    assert (by_file.keep_generations is kept, by_file.retire_after_seconds) == (True, "never")


def test_the_generations_have_defaults() -> None:
    assert load_config(None, {}).generations == GenerationsConfig(8, 2, 0, 900, 30)


def test_the_generations_take_their_settings(tmp_path: Path) -> None:
    toml = """
        [generations]
        linger_seconds = 0
        max_lingering = 0
        keep_generations = 3
        retire_after_seconds = 1
        switch_after_seconds = 1
    """
    assert load(tmp_path, toml).generations == GenerationsConfig(0, 0, 3, 1, 1)


def test_the_environment_overrides_every_setting_of_the_generations(tmp_path: Path) -> None:
    environ = {
        "LIVETABLES_GENERATIONS_LINGER_SECONDS": "0",
        "LIVETABLES_GENERATIONS_MAX_LINGERING": "4",
        "LIVETABLES_GENERATIONS_KEEP_GENERATIONS": "5",
        "LIVETABLES_GENERATIONS_RETIRE_AFTER_SECONDS": "60",
        "LIVETABLES_GENERATIONS_SWITCH_AFTER_SECONDS": "7",
    }
    config = load(tmp_path, "[generations]\nmax_lingering = 1", **environ)
    assert config.generations == GenerationsConfig(0, 4, 5, 60, 7)


# Environment


def test_the_environment_overrides_the_file(tmp_path: Path) -> None:
    config = load(tmp_path, '[pipeline]\nmaster = "local[2]"', LIVETABLES_PIPELINE_MASTER="spark://host:7077")
    assert config.pipeline.master == "spark://host:7077"


def test_the_environment_overrides_a_key_of_a_preset() -> None:
    config = load_config(None, {"LIVETABLES_TABLES_USERS_TOPIC": "user_v2"})
    assert config.spec.table("users").topic == "user_v2"


def test_an_override_finds_names_with_underscores_in_any_case() -> None:
    assert load_config(None, {"livetables_views_Final_UI_join": "natural"}).spec.views[0].join == "natural"


def test_a_number_in_the_environment_is_a_number() -> None:
    assert load_config(None, {"LIVETABLES_PIPELINE_SHUFFLE_PARTITIONS": "4"}).pipeline.shuffle_partitions == 4


def test_a_list_in_the_environment_is_separated_by_commas() -> None:
    config = load_config(None, {"LIVETABLES_TABLES_USERS_ALIASES": "user, people"})
    assert config.spec.table("users").aliases == ("user", "people")


def test_presets_can_come_from_the_environment() -> None:
    assert load_config(None, {"LIVETABLES_PRESETS": "asof"}).spec.views == (USER_ACCOUNT,)


@pytest.mark.parametrize("name", ["LIVETABLES_JARS", "LIVETABLES_TOKEN", "LIVETABLES_CONFIG"])
def test_variables_of_others_are_left_alone(name: str) -> None:
    assert load_config(None, {name: "x"}) == load_config(None, {})


def test_an_override_makes_the_reference_it_replaces_unneeded(tmp_path: Path) -> None:
    config = load(tmp_path, '[kafka]\nclient.id = "${env:ABSENT}"', LIVETABLES_KAFKA_CLIENT_ID="me")
    assert config.kafka.client_properties() == {"client.id": "me"}


# Kafka


def test_kafka_properties_are_the_java_names_quoted_or_not(tmp_path: Path) -> None:
    toml = '[kafka]\nsecurity.protocol = "SASL_SSL"\n"sasl.mechanism" = "OAUTHBEARER"'
    properties = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    assert load(tmp_path, toml).kafka.client_properties() == properties


def test_kafka_numbers_and_booleans_become_their_java_text(tmp_path: Path) -> None:
    toml = "[kafka]\nmax.poll.records = 50_000\ncheck.crcs = false\nsasl.login.refresh.window.factor = 0.5"
    properties = {"max.poll.records": "50000", "check.crcs": "false", "sasl.login.refresh.window.factor": "0.5"}
    assert load(tmp_path, toml).kafka.client_properties() == properties


def test_without_bootstrap_servers_there_are_none() -> None:
    assert load_config(None, {}).kafka.bootstrap_servers is None


def test_the_environment_sets_a_kafka_property_by_its_name_with_underscores() -> None:
    kafka = load_config(None, {"LIVETABLES_KAFKA_BOOTSTRAP_SERVERS": "host:9092"}).kafka
    assert (kafka.bootstrap_servers, kafka.client_properties()) == ("host:9092", {"bootstrap.servers": "host:9092"})


def test_a_properties_file_lies_beside_the_file_and_below_its_section(tmp_path: Path) -> None:
    (tmp_path / "client.properties").write_text("client.id=file\nretries 3\n", encoding="utf-8")
    config = load(tmp_path, '[kafka]\nproperties_file = "client.properties"\nclient.id = "section"')
    assert config.kafka.client_properties() == {"client.id": "section", "retries": "3"}


def test_a_properties_file_can_be_named_by_the_environment(tmp_path: Path) -> None:
    (tmp_path / "client.properties").write_text("client.id=file", encoding="utf-8")
    config = load(tmp_path, "", LIVETABLES_KAFKA_PROPERTIES_FILE="client.properties")
    assert config.kafka.client_properties() == {"client.id": "file"}


# References


def test_a_reference_to_the_environment_is_replaced(tmp_path: Path) -> None:
    config = load(tmp_path, "[kafka]\nsasl.jaas.config = \"Login password='${env:PW}';\"", PW="s3cret")
    assert config.kafka.client_properties()["sasl.jaas.config"] == "Login password='s3cret';"


def test_a_reference_to_a_file_is_replaced_without_its_last_newline(tmp_path: Path) -> None:
    (tmp_path / "pw").write_bytes(b"line 1\nline 2\r\n")
    config = load(tmp_path, '[kafka]\nssl.key.password = "${file:pw}"')
    assert config.kafka.client_properties()["ssl.key.password"] == "line 1\nline 2"


def test_a_reference_in_a_properties_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "client.properties").write_text("ssl.key.password=${env:PW}", encoding="utf-8")
    config = load(tmp_path, '[kafka]\nproperties_file = "client.properties"', PW="s3cret")
    assert config.kafka.client_properties() == {"ssl.key.password": "s3cret"}


def test_what_a_reference_gives_is_not_searched_for_references(tmp_path: Path) -> None:
    config = load(tmp_path, '[kafka]\nclient.id = "${env:A}"', A="${env:B}")
    assert config.kafka.client_properties() == {"client.id": "${env:B}"}


# Errors: (file, the problem with its key, the cure)

ERRORS = {
    "unknown section": ("[piplines]", "piplines: unknown key", 'did you mean "pipeline"?'),
    "section of another type": ("pipeline = 3", "pipeline: must be a section, not 3", "write it as [pipeline]"),
    "unknown preset": ('presets = ["x"]', 'presets: unknown preset "x"', "list any of default, asof"),
    "preset of another type": ("presets = [[]]", "presets: unknown preset a list", "list any of default, asof"),
    "presets not a list": ('presets = "x"', 'presets: must be a list, not "x"', "list any of default, asof"),
    "no tables": ("presets = []", "tables: none is declared", 'use presets = ["default"]'),
    "unknown table key": ('[tables.users]\ntopc = "x"', "tables.users.topc: unknown key", 'did you mean "topic"?'),
    "far-off table key": ('[tables.users]\nzzz = "x"', "tables.users.zzz: unknown key", "use one of topic, publish"),
    "missing topic": (
        'presets = []\n[tables.a.columns]\nid = "string"',
        "tables.a.topic: is missing",
        'add topic = "..." under [tables.a]',
    ),
    "topic not text": ("[tables.users]\ntopic = 5", "tables.users.topic: must be text, not 5", 'write topic = "..."'),
    "empty topic": ('[tables.users]\ntopic = ""', 'tables.users.topic: must be text, not ""', 'write topic = "..."'),
    "illegal topic": (
        '[tables.users]\ntopic = "a b"',
        'tables.users.topic: Kafka has no topic named "a b"',
        "use 1 to 249 of A-Z a-z 0-9 . _ -",
    ),
    "dots as topic": ('[tables.users]\ntopic = ".."', 'tables.users.topic: Kafka has no topic named ".."', "1 to 249"),
    "long topic": (f'[tables.users]\ntopic = "{"a" * 250}"', "tables.users.topic: Kafka has no topic", "1 to 249"),
    "illegal published name": (
        '[tables.users]\npublish = "1x"',
        'tables.users.publish: "1x" is not a name',
        "use letters, digits and _, and no digit first",
    ),
    "name that ends in a newline": (
        '[tables.users]\npublish = "x\\n"',
        'tables.users.publish: "x\\n" is not a name',
        "use letters, digits and _",
    ),
    "illegal table name": (
        'presets = []\n[tables.a-b]\ntopic = "t"\ncolumns = { id = "string" }',
        'tables.a-b: "a-b" is not a name',
        "use letters, digits and _",
    ),
    "illegal alias": (
        '[tables.users]\naliases = ["a b"]',
        'tables.users.aliases: "a b" is not a name',
        "use letters, digits and _",
    ),
    "alias not in a list": (
        '[tables.users]\naliases = "x"',
        'tables.users.aliases: must be a list of texts, not "x"',
        'write aliases = ["...", "..."]',
    ),
    "unknown start": (
        '[tables.users]\nstart = "soon"',
        'tables.users.start: unknown start "soon"',
        "use earliest, latest or a timestamp such as",
    ),
    "start without a time zone": (
        "[tables.users]\nstart = 2024-05-31T12:00:00",
        "tables.users.start: is not a timestamp with a time zone",
        "end the timestamp with Z or an offset such as +02:00",
    ),
    "start as text without a time zone": (
        '[tables.users]\nstart = "2024-05-31T12:00:00"',
        "tables.users.start: is not a timestamp with a time zone",
        "end the timestamp with Z or an offset such as +02:00",
    ),
    "unknown column type": (
        '[tables.users.columns]\nuserId = "string"\nage = "int"',
        'tables.users.columns.age: unknown type "int"',
        "use one of string, int64, double, bool",
    ),
    "no columns": (
        "[tables.users]\ncolumns = {}",
        "tables.users.columns: a table needs at least one column",
        'add <column> = "string" under [tables.users.columns]',
    ),
    "table with a reserved name": (
        '[tables._key]\ntopic = "t"\ncolumns = { a = "string" }',
        'tables._key.topic: the table\'s name "_key" is reserved',
        "do not begin a table's name with _",
    ),
    "column with an underscore first": (
        '[tables.users.columns]\nuserId = "string"\n_id = "int64"',
        "tables.users.columns._id: the name is reserved",
        "leave it out",
    ),
    "column named ts": (
        '[tables.users.columns]\nuserId = "string"\nTs = "int64"',
        "tables.users.columns.Ts: the name is reserved",
        "leave it out",
    ),
    "illegal column name": (
        '[tables.users.columns]\nuserId = "string"\n"a b" = "int64"',
        'tables.users.columns.a b: "a b" is not a name',
        "use letters, digits and _",
    ),
    "columns that differ in case": (
        '[tables.users.columns]\nuserId = "string"\nuserid = "string"',
        'tables.users.columns.userid: differs from "userId" only in case',
        "leave one of them out",
    ),
    "tables that differ in case": (
        '[tables.Users]\ntopic = "x"\npublish = "x"\ncolumns = { userId = "string" }',
        'tables.Users: the name "Users" is taken by tables.users',
        "choose another name",
    ),
    "name published twice": (
        '[tables.users]\npublish = "Accounts_UI"',
        'tables.accounts.publish: the name "accounts_ui" is taken by tables.users.publish',
        "choose another name",
    ),
    "alias taken": (
        '[tables.users]\naliases = ["final_ui"]',
        'views.final_ui: the name "final_ui" is taken by tables.users.aliases',
        "choose another name",
    ),
    "alias given twice": (
        '[views.final_ui]\naliases = ["x", "X"]',
        'views.final_ui.aliases: the name "X" is taken by views.final_ui.aliases',
        "choose another name",
    ),
    "status table": (
        '[tables.users]\npublish = "Generations"',
        'tables.users.publish: the name "Generations" is taken by a status table',
        "choose another name",
    ),
    "unknown view key": (
        "[views.final_ui]\nkey = 1",
        "views.final_ui.key: unknown key",
        "use one of join, left, right",
    ),
    "a control cluster without an address": (
        '[control.kafka]\nclient.id = "me"',
        "control.kafka.bootstrap.servers: is missing",
        "name the cluster that has the control topic",
    ),
    "a control cluster that is no section": (
        '[control]\nkafka = "host:9092"',
        'control.kafka: must be a section, not "host:9092"',
        "write it as [control.kafka]",
    ),
    "an unknown key of the control cluster": (
        '[control.kafka]\nbootstrap.servers = "a:1"\nbootstrap_servers = "host:9092"',
        "control.kafka.bootstrap_servers: unknown key",
        'did you mean "bootstrap.servers"',
    ),
    "an invalid switch": (
        '[tables.users]\nstrict = "yes"',
        'tables.users.strict: must be true or false, not "yes"',
        "write strict = true",
    ),
    "an invalid limit": (
        "[tables.users]\nretain = { rows = 0 }",
        "tables.users.retain.rows: must be a whole number from 1 on, not 0",
        "write rows = 1 or more",
    ),
    "an unknown limit": (
        "[tables.users]\nretain = { day = 30 }",
        "tables.users.retain.day: unknown key",
        'did you mean "days"',
    ),
    "limits that are no section": (
        "[tables.users]\nretain = 30",
        "tables.users.retain: must be a section, not 30",
        "write it as [tables.users.retain]",
    ),
    "unknown timestamp": (
        '[tables.users]\ntimestamp = "now"',
        'tables.users.timestamp: unknown timestamp "now"',
        "use one of kafka, arrival",
    ),
    "a view with a column that there is not": (
        '[views.final_ui.columns]\npaid = "balanse"',
        'views.final_ui.columns.paid: there is no joined column "balanse"',
        'did you mean "balance"?',
    ),
    "a view without columns": (
        "[views.final_ui]\ncolumns = {}",
        "views.final_ui.columns: a view needs at least one column",
        "leave columns out to have all",
    ),
    "a view with a reserved column": (
        '[views.final_ui.columns]\n_x = "balance"',
        "views.final_ui.columns._x: the name is reserved",
        "do not begin",
    ),
    "a view with an internal column": (
        '[views.final_ui.columns]\nx = "_left_id"',
        'views.final_ui.columns.x: there is no joined column "_left_id"',
        "use one of userId, name",
    ),
    "unknown join": (
        '[views.final_ui]\njoin = "outer"',
        'views.final_ui.join: unknown join "outer"',
        "use a name that begins with inner, join, left, natural, asof, aj",
    ),
    "lookback of another join": (
        "[views.final_ui]\nlookback_seconds = 5",
        "views.final_ui.lookback_seconds: left joins have none",
        'remove it, or use join = "asof"',
    ),
    "unknown table of a view": (
        '[views.final_ui]\nleft = "user"',
        'views.final_ui.left: there is no table "user"',
        'did you mean "users"?',
    ),
    "view of one table": (
        '[views.final_ui]\nleft = "accounts"',
        "views.final_ui.right: is the same table as left",
        "name another table",
    ),
    "unknown key of a view": (
        '[views.final_ui]\non = "age"',
        'views.final_ui.on: "age" is not a column of tables.accounts',
        "use one of userId, accountType, balance",
    ),
    "keys of two types": (
        '[tables.accounts.columns]\nuserId = "int64"',
        'views.final_ui.on: "userId" is string on the left and int64 on the right',
        "give tables.users.columns and tables.accounts.columns the same type for it",
    ),
    "clash of joined columns": (
        '[tables.users.columns]\nuserId = "string"\nAccounts_ts = "int64"',
        'views.final_ui.right: the joined columns would have "accounts_ts" twice',
        "leave the column out of tables.users or tables.accounts, or name the table otherwise",
    ),
    "unknown pipeline key": (
        "[pipeline]\nmastr = 1",
        "pipeline.mastr: unknown key",
        'did you mean "master"?',
    ),
    "count as text": (
        '[pipeline]\nmax_records_per_batch = "10"',
        'pipeline.max_records_per_batch: must be a whole number from 1 on, not "10"',
        "write max_records_per_batch = 1 or more",
    ),
    "count of zero": (
        "[pipeline]\nshuffle_partitions = 0",
        "pipeline.shuffle_partitions: must be a whole number from 1 on, not 0",
        "write shuffle_partitions = 1 or more",
    ),
    "count as boolean": (
        "[pipeline]\nshuffle_partitions = true",
        "pipeline.shuffle_partitions: must be a whole number from 1 on, not true",
        "write shuffle_partitions = 1 or more",
    ),
    "server of another scheme": (
        '[pipeline]\nserver = "http://host:8766"',
        'pipeline.server: "http://host:8766" is not the address of a Flight endpoint',
        "write grpc://host:port or grpc+tls://host:port",
    ),
    "server without a port": (
        '[pipeline]\nserver = "grpc://host"',
        'pipeline.server: "grpc://host" is not the address',
        "write grpc://host:port",
    ),
    "server without a host": (
        '[pipeline]\nserver = "grpc://:8766"',
        'pipeline.server: "grpc://:8766" is not the address',
        "write grpc://host:port",
    ),
    "server at any port": (
        '[pipeline]\nserver = "grpc://host:0"',
        'pipeline.server: "grpc://host:0" is not the address',
        "write grpc://host:port",
    ),
    "server at too large a port": (
        '[pipeline]\nserver = "grpc://host:65536"',
        'pipeline.server: "grpc://host:65536" is not the address',
        "write grpc://host:port",
    ),
    "server with a path": (
        '[pipeline]\nserver = "grpc://host:8766/"',
        'pipeline.server: "grpc://host:8766/" is not the address',
        "write grpc://host:port",
    ),
    "server not text": (
        "[pipeline]\nserver = 8766",
        "pipeline.server: must be text, not 8766",
        'write server = "..."',
    ),
    "unknown server key": (
        "[server]\nprot = 1",
        "server.prot: unknown key",
        'did you mean "port"?',
    ),
    "port too large": (
        "[server]\nport = 65536",
        "server.port: must be a port, not 65536",
        "write port = 1 to 65535, or 0 for any free port",
    ),
    "negative port": ("[server]\nflight_port = -1", "server.flight_port: must be a port, not -1", "write flight_port"),
    "port as text": ('[server]\nport = "80"', 'server.port: must be a port, not "80"', "write port = 1 to 65535"),
    "port as boolean": ("[server]\nport = true", "server.port: must be a port, not true", "write port = 1 to 65535"),
    "one port for both": (
        "[server]\nport = 8766",
        "server.flight_port: is the same as server.port, 8766",
        "choose another port, or 0 for any",
    ),
    "little memory": (
        "[server]\nmemory_megabytes = 63",
        "server.memory_megabytes: must be a whole number from 64 on, not 63",
        "write memory_megabytes = 64 or more",
    ),
    "empty store": ('[server]\nstore = ""', 'server.store: must be text, not ""', 'write store = "..."'),
    "empty token file": (
        '[server]\ntoken_file = ""',
        'server.token_file: must be text, not ""',
        'write token_file = "..."',
    ),
    "origins not a list": (
        '[server]\norigins = "https://a.example"',
        "server.origins: must be a list of texts",
        'write origins = ["...", "..."]',
    ),
    "origin with a path": (
        '[server]\norigins = ["https://a.example/"]',
        'server.origins: "https://a.example/" is not an origin',
        "https://host or https://host:port",
    ),
    "any origin": ('[server]\norigins = ["*"]', 'server.origins: "*" is not an origin', "write it as a browser does"),
    "any proxy": (
        '[server]\nproxies = ["*"]',
        'server.proxies: "*" is not an address',
        "like 127.0.0.1 or 10.1.0.0/16",
    ),
    "proxy by name": ('[server]\nproxies = ["p.example"]', '"p.example" is not an address', "like 127.0.0.1"),
    "network with a host": ('[server]\nproxies = ["10.1.2.3/16"]', '"10.1.2.3/16" is not an address', "10.1.0.0/16"),
    "unknown control key": ('[control]\ntopc = "x"', "control.topc: unknown key", 'did you mean "topic"?'),
    "control topic not text": ("[control]\ntopic = 5", "control.topic: must be text, not 5", 'write topic = "..."'),
    "certificate without key": (
        '[server]\ntls_certificate = "cert.pem"',
        "server.tls_key: is missing, but server.tls_certificate is there",
        "give both for TLS, or none",
    ),
    "key without certificate": (
        '[server]\ntls_key = "key.pem"',
        "server.tls_certificate: is missing, but server.tls_key is there",
        "give both for TLS, or none",
    ),
    "relays and TLS": (
        '[server]\nrelays = 2\ntls_certificate = "cert.pem"\ntls_key = "key.pem"',
        "server.relays: an encrypted connection cannot be passed to a relay",
        "let a proxy in front of the server speak TLS, or write relays = 0",
    ),
    "negative relays": (
        "[server]\nrelays = -1",
        "server.relays: must be a whole number from 0 on, not -1",
        "write relays = 0 or more",
    ),
    "empty control topic": ('[control]\ntopic = ""', 'control.topic: must be text, not ""', 'write topic = "..."'),
    "illegal control topic": (
        '[control]\ntopic = "a b"',
        'control.topic: Kafka has no topic named "a b"',
        "use 1 to 249 of A-Z a-z 0-9 . _ -",
    ),
    "dots as control topic": ('[control]\ntopic = "."', 'control.topic: Kafka has no topic named "."', "1 to 249"),
    "long control topic": (f'[control]\ntopic = "{"a" * 250}"', "control.topic: Kafka has no topic", "1 to 249"),
    "control topic of a table": (
        '[control]\ntopic = "account"',
        'control.topic: "account" is also the topic of tables.accounts',
        "give control.topic or tables.accounts.topic another topic",
    ),
    "table with the default control topic": (
        '[tables.users]\ntopic = "control"',
        'control.topic: "control" is also the topic of tables.users',
        "give control.topic or tables.users.topic another topic",
    ),
    "unknown generations key": (
        "[generations]\nlinger_second = 1",
        "generations.linger_second: unknown key",
        'did you mean "linger_seconds"?',
    ),
    "negative linger": (
        "[generations]\nlinger_seconds = -1",
        "generations.linger_seconds: must be a whole number from 0 on, not -1",
        "write linger_seconds = 0 or more",
    ),
    "negative number of lingering": (
        "[generations]\nmax_lingering = -1",
        "generations.max_lingering: must be a whole number from 0 on, not -1",
        "write max_lingering = 0 or more",
    ),
    "fraction of a generation": (
        "[generations]\nkeep_generations = 1.5",
        "generations.keep_generations: must be a whole number from 0 on, or true for all, not 1.5",
        "write keep_generations = true, or a number",
    ),
    "retired after no time": (
        "[generations]\nretire_after_seconds = 0",
        'generations.retire_after_seconds: must be a whole number from 1 on, or "never", not 0',
        'write retire_after_seconds = 900, or "never"',
    ),
    "switched after no time": (
        "[generations]\nswitch_after_seconds = 0",
        "generations.switch_after_seconds: must be a whole number from 1 on, not 0",
        "write switch_after_seconds = 1 or more",
    ),
    "list as a property": (
        "[kafka]\nclient.id = [1]",
        "kafka.client.id: must be text, a number or a boolean, not a list",
        "write it as text",
    ),
    "kafka name with underscores": (
        '[kafka]\nbootstrap_servers = "h:1"',
        "kafka.bootstrap_servers: unknown key",
        'did you mean "bootstrap.servers"',
    ),
    "empty bootstrap servers": (
        '[kafka]\nbootstrap.servers = ""',
        "kafka.bootstrap.servers: is empty",
        "remove it to have a broker started",
    ),
    "unknown offset reset": (
        '[kafka]\nauto.offset.reset = "none"',
        'kafka.auto.offset.reset: unknown start "none"',
        "use earliest or latest, or set start for each table",
    ),
    "missing properties file": (
        '[kafka]\nproperties_file = "absent"',
        'kafka.properties_file: cannot read the file "absent" (No such file or directory)',
        "put it there, or correct the path",
    ),
    "missing variable": (
        '[kafka]\nsasl.jaas.config = "${env:ABSENT}"',
        "kafka.sasl.jaas.config: the environment variable ABSENT is not set",
        "set ABSENT",
    ),
    "missing file": (
        '[tables.users]\naliases = ["${file:absent}"]',
        'tables.users.aliases: cannot read the file "absent" (No such file or directory)',
        "put it there, or correct the path",
    ),
    "not TOML": ("[tables", "livetables.toml: ", "correct the TOML there"),
}


@pytest.mark.parametrize(("toml", "problem", "cure"), ERRORS.values(), ids=ERRORS.keys())
def test_an_error_names_its_key_and_its_cure(tmp_path: Path, toml: str, problem: str, cure: str) -> None:
    error = failure(tmp_path, toml, HERE="/somewhere")
    assert problem in error.problem
    assert cure in error.cure


def test_a_properties_file_with_a_malformed_escape_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "client.properties").write_text("client.id=\\u12", encoding="utf-8")
    error = failure(tmp_path, '[kafka]\nproperties_file = "client.properties"')
    assert error.problem.startswith('kafka.properties_file: "client.properties" has a \\u escape')
    assert error.cure == "write \\uXXXX, or \\\\ for a backslash"


def test_a_secret_file_that_is_not_text_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "pw").write_bytes(b"\xff")
    error = failure(tmp_path, '[kafka]\nssl.key.password = "${file:pw}"')
    assert error.problem == 'kafka.ssl.key.password: cannot read the file "pw" (not UTF-8 text)'


def test_a_configuration_file_that_is_not_text_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "livetables.toml"
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"livetables\.toml: not UTF-8 text\n  cure: save it as UTF-8"):
        load_config(path, {})


def test_a_missing_configuration_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml: No such file or directory\n  cure: give the path"):
        load_config(tmp_path / "absent.toml", {})


def test_all_problems_of_a_file_are_reported_at_once(tmp_path: Path) -> None:
    error = failure(tmp_path, '[tables.users]\ntopc = "x"\n[pipeline]\nshuffle_partitions = 0')
    assert error.problem.startswith("2 invalid settings")
    assert 'tables.users.topc: unknown key; did you mean "topic"?' in error.problem
    assert "pipeline.shuffle_partitions: must be a whole number from 1 on, not 0; write" in error.problem
    assert error.cure == "fix each as described"


def test_an_unknown_variable_names_the_one_that_is_near() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, {"LIVETABLES_TABLES_USER_TOPIC": "s3cret"})
    assert caught.value.problem == "LIVETABLES_TABLES_USER_TOPIC: unknown setting in the environment"
    assert caught.value.cure == 'did you mean "LIVETABLES_TABLES_USERS_TOPIC"?'


def test_an_invalid_number_in_the_environment_is_an_error_with_its_key() -> None:
    with pytest.raises(ConfigError, match=r"pipeline\.shuffle_partitions: must be a whole number"):
        load_config(None, {"LIVETABLES_PIPELINE_SHUFFLE_PARTITIONS": "four"})


# Secrets

SECRETS = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=12).map("Zq".__add__)
# Settings that take a reference, whether the text fits there or not.
PLACES = [
    "[kafka]\nclient.id = {}",
    "[kafka]\nbootstrap.servers = {}",
    "[kafka]\nauto.offset.reset = {}",
    "[kafka]\nproperties_file = {}",
    "[tables.users]\ntopic = {}",
    "[tables.users]\npublish = {}",
    "[tables.users]\npublish = {0}\naliases = [{0}]",
    "[tables.users]\nstart = {}",
    "[tables.users]\nunknown = {}",
    "[tables.users.columns]\nuserId = {}",
    "[views.final_ui]\njoin = {}",
    "[views.final_ui]\nleft = {}",
    "[views.final_ui]\non = {}",
    "[views.final_ui]\nlookback_seconds = {}",
    "[pipeline]\nmaster = {}",
    "[pipeline]\ncheckpoint_directory = {}",
    "[pipeline]\nshuffle_partitions = {}",
    "[pipeline]\nserver = {}",
    "[pipeline.spark]\nspark.app.name = {}",
    "[server]\nhost = {}",
    "[server]\nport = {}",
    "[server]\nstore = {}",
    "[server]\ntoken_file = {}",
    "[server]\norigins = [{}]",
    "[control]\ntopic = {}",
    "[control]\ntopic = {0}\n[tables.users]\ntopic = {0}",
    "[generations]\nlinger_seconds = {}",
    "presets = [{}]",
    "presets = {}",
]


def everything_shown(path: Path | None, environ: dict[str, str]) -> str:
    """All texts that loading a configuration can put before somebody's eyes."""
    try:
        config = load_config(path, environ)
    except ConfigError as error:
        return f"{error} {error!r} {error.problem} {error.cure}"
    return f"{config} {config!r} {dataclasses.asdict(config)} {config.kafka.redacted()} {describe(config)}"


@pytest.mark.parametrize("place", PLACES)
@settings(deadline=None)
@given(secret=SECRETS)
def test_a_referenced_value_is_never_shown(tmp_path_factory: pytest.TempPathFactory, place: str, secret: str) -> None:
    path = tmp_path_factory.mktemp("config") / "livetables.toml"
    path.write_text(place.format('"a${env:PW}z"'), encoding="utf-8")
    assert secret not in everything_shown(path, {"PW": secret})


@settings(deadline=None)
@given(secret=SECRETS)
def test_a_secret_kafka_property_from_the_environment_is_never_shown(secret: str) -> None:
    assert secret not in everything_shown(None, {"LIVETABLES_KAFKA_SASL_JAAS_CONFIG": secret})


@settings(deadline=None)
@given(secret=SECRETS)
def test_the_value_of_an_unknown_variable_is_never_shown(secret: str) -> None:
    assert secret not in everything_shown(None, {"LIVETABLES_KAFKASASL_JAAS_CONFIG": secret})


@pytest.mark.parametrize(
    "place", ["password = {}", "[kafka]\npass_word = {}", "[kafka]\nssl.key.password = [{}]", "[pipeline]\nkey = {}"]
)
def test_a_secret_in_the_wrong_place_is_never_shown(tmp_path: Path, place: str) -> None:
    assert "s3cret" not in str(failure(tmp_path, place.format('"s3cret"')))


def test_a_password_in_the_address_of_the_server_is_never_shown(tmp_path: Path) -> None:
    error = failure(tmp_path, '[pipeline]\nserver = "grpc://me:s3cret@host:8766"')
    assert error.problem == "pipeline.server: <redacted> is not the address of a Flight endpoint"


def test_a_secret_spark_setting_is_known_by_its_name(tmp_path: Path) -> None:
    config = load(tmp_path, '[pipeline.spark]\nspark.hadoop.fs.s3a.secret.key = "s3cret"')
    assert config.pipeline.spark["spark.hadoop.fs.s3a.secret.key"] == "s3cret"
    assert "s3cret" not in repr(config) + describe(config)


def test_a_topic_by_reference_is_still_its_real_text(tmp_path: Path) -> None:
    config = load(tmp_path, '[tables.users]\ntopic = "${env:TOPIC}"', TOPIC="user_v2")
    assert f"{config.spec.table('users').topic}" == "user_v2"


# Description


def test_a_description_loads_again_as_the_same_configuration(tmp_path: Path) -> None:
    toml = """
        presets = ["default", "asof"]
        [kafka]
        bootstrap.servers = "host:9092"
        retries = 3
        [tables.users]
        start = 2024-05-31T12:00:00+02:00
        strict = true
        timestamp = "arrival"
        retain = { rows = 5, megabytes = 1 }
        [views.user_account]
        lookback_seconds = 60
        aliases = ["both", "joined"]
        [pipeline]
        shuffle_partitions = 4
        server = "grpc+tls://tables.example:443"
        spark = { "spark.executor.memory" = "2g", "say" = 'a "quoted" \\ word' }
        [server]
        port = 0
        token_file = "key"
        origins = ["https://a.example"]
        [control]
        topic = "team.control"
        [control.kafka]
        bootstrap.servers = "other:9092"
        [generations]
        linger_seconds = 0
        max_lingering = 1
        keep_generations = true
        retire_after_seconds = "never"
        switch_after_seconds = 5
    """
    config = load(tmp_path, toml)
    assert load(tmp_path, describe(config)) == config


def test_a_description_says_what_is_ignored() -> None:
    text = describe(load_config(None, {"LIVETABLES_KAFKA_ENABLE_AUTO_COMMIT": "true"}))
    assert "# ignored: enable.auto.commit" in text


def test_a_description_shows_that_there_is_a_secret() -> None:
    text = describe(load_config(None, {"LIVETABLES_KAFKA_SSL_KEY_PASSWORD": "s3cret"}))
    assert '"ssl.key.password" = "<redacted>"' in text


# What the documentation shows


def test_the_example_in_the_readme_is_a_configuration(tmp_path: Path) -> None:
    readme = (Path(__file__).parent.parent.parent / "README.md").read_text()
    example = readme.split("```toml\n")[1].split("```")[0]
    (tmp_path / "jaas.conf").write_text("secret")
    (tmp_path / "livetables.toml").write_text(example)
    config = load_config(tmp_path / "livetables.toml", {})
    assert [view.name for view in config.spec.views] == ["orders_by_city"]
    assert config.kafka.client_properties()["sasl.jaas.config"] == "secret"
