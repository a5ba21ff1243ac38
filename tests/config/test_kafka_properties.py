"""Java's .properties format, what Spark refuses, and what is a secret."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from livetables.config.kafka_properties import REFUSED_BY_SPARK, KafkaConfig, parse_properties, read_kafka
from livetables.config.settings import Problems
from livetables.model.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("a=1", {"a": "1"}),
        ("a:1", {"a": "1"}),
        ("a 1", {"a": "1"}),
        (" \t\fa \t=\f 1 ", {"a": "1 "}),
        ("a = = 1", {"a": "= 1"}),
        ("a  b=c", {"a": "b=c"}),
        ("a", {"a": ""}),
        ("=1", {"": "1"}),
        ("# a=1\n  ! b=2\n\n \t\nc=3", {"c": "3"}),
        ("a=1#2", {"a": "1#2"}),
        ("a=1\r\nb=2\rc=3\n", {"a": "1", "b": "2", "c": "3"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=1,\\\n   2,\\\r\n\t3", {"a": "1,2,3"}),
        ("a=1\\\n# 2", {"a": "1# 2"}),
        ("a=1\\\n\nb=2", {"a": "1", "b": "2"}),
        ("# comment \\\na=1", {"a": "1"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=1\\", {"a": "1"}),
        ("a\\ b\\=c\\:d=1", {"a b=c:d": "1"}),
        ("a=\\t\\n\\r\\f\\q\\\\", {"a": "\t\n\r\fq\\"}),
        ("a=\\u00e9\\ud83d\\ude00", {"a": "é😀"}),
        ("\\#a=1", {"#a": "1"}),
        ("\\\n\\\n# comment\na=1", {"a": "1"}),
        ("", {}),
    ],
)
def test_a_properties_text_is_read_as_java_reads_it(text: str, properties: dict[str, str]) -> None:
    assert parse_properties(text) == properties


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\u12g4", "\\u=1"])
def test_a_malformed_unicode_escape_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="without four hexadecimal digits"):
        parse_properties(text)


def stored(key: str, value: str, separator: str, breaks: list[int]) -> str:
    """The pair as Java's `Properties.store` writes it, with lines continued at the given places of the value."""
    pieces = []
    for size in breaks:
        pieces.append(value[:size])
        value = value[size:]
    lines = ["".join(map(escaped, piece)) for piece in [*pieces, value]]
    return "".join(map(escaped, key)) + separator + "\\\n   ".join(lines)


def escaped(character: str) -> str:
    if character in "\\=:#! ":
        return f"\\{character}"
    if character in "\t\n\r\f":
        return {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}[character]
    if " " < character < "\x7f":
        return character
    units = character.encode("utf-16-be").hex()
    return "".join(f"\\u{units[place : place + 4]}" for place in range(0, len(units), 4))


PAIRS = st.dictionaries(st.text(min_size=1), st.tuples(st.text(), st.lists(st.integers(0, 5), max_size=3)))


@settings(deadline=None)
@given(PAIRS, st.sampled_from(["=", ":", " ", " = ", "\t:\f"]), st.sampled_from(["\n", "\r\n", "\r", "\n# x\n\n"]))
def test_what_java_stores_is_read_back(pairs: dict[str, tuple[str, list[int]]], separator: str, end: str) -> None:
    text = end.join(stored(key, value, separator, breaks) for key, (value, breaks) in pairs.items())
    assert parse_properties(text) == {key: value for key, (value, _) in pairs.items()}


@settings(deadline=None)
@given(st.text(st.sampled_from("ab =:\\#! \t\n\r")))
def test_any_text_without_unicode_escapes_is_read(text: str) -> None:
    assert isinstance(parse_properties(text), dict)


def test_what_spark_refuses_is_dropped_and_named() -> None:
    kafka, _ = read_kafka(dict.fromkeys((*REFUSED_BY_SPARK, "client.id"), "x"), Problems())
    assert (kafka.client_properties(), kafka.ignored) == ({"client.id": "x"}, REFUSED_BY_SPARK)


def test_group_id_stays() -> None:
    kafka, _ = read_kafka({"group.id": "g"}, Problems())
    assert kafka.client_properties() == {"group.id": "g"}


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_auto_offset_reset_becomes_the_start(reset: str) -> None:
    kafka, start = read_kafka({"auto.offset.reset": reset}, Problems())
    assert (kafka.client_properties(), kafka.ignored, start) == ({}, (), reset)


def test_another_auto_offset_reset_is_an_error() -> None:
    problems = Problems()
    read_kafka({"auto.offset.reset": "by_duration:PT1H"}, problems)
    with pytest.raises(ConfigError, match=r"kafka\.auto\.offset\.reset: unknown start .*\n.* use earliest or latest"):
        problems.raise_if_any()


@pytest.mark.parametrize(
    "name",
    [
        "sasl.jaas.config",
        "ssl.key.password",
        "ssl.keystore.password",
        "ssl.truststore.password",
        "ssl.keystore.key",
        "ssl.keystore.certificate.chain",
        "ssl.truststore.certificates",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "basic.auth.user.info",
        "my.handler.Token",
        "clientSecret",
    ],
)
def test_a_secret_property_is_known_by_its_name(name: str) -> None:
    assert KafkaConfig({name: "s3cret"}).redacted() == {name: "<redacted>"}


@pytest.mark.parametrize(
    "name",
    [
        "bootstrap.servers",
        "sasl.oauthbearer.token.endpoint.url",
        "ssl.keystore.location",
        "ssl.keystore.type",
        "sasl.mechanism",
        "sasl.login.callback.handler.class",
    ],
)
def test_a_plain_property_is_shown(name: str) -> None:
    assert KafkaConfig({name: "plain"}).redacted() == {name: "plain"}


@pytest.mark.parametrize(
    "value", ["https://me:s3cret@host/token", "-Djavax.net.ssl.trustStorePassword=s3cret", "Login password = 's3cret';"]
)
def test_a_value_that_carries_a_secret_is_one_whatever_its_name(value: str) -> None:
    assert "s3cret" not in repr(KafkaConfig({"client.url": value}))


def test_the_representation_has_everything_but_secrets() -> None:
    kafka = KafkaConfig({"client.id": "me", "ssl.key.password": "s3cret"}, ignored=("enable.auto.commit",))
    shown = "KafkaConfig({'client.id': 'me', 'ssl.key.password': '<redacted>'}, ignored=('enable.auto.commit',))"
    assert (repr(kafka), str(kafka)) == (shown, shown)


def test_client_properties_give_plain_text() -> None:
    values = KafkaConfig({"ssl.key.password": "s3cret"}).client_properties().values()
    assert [(type(value), repr(value)) for value in values] == [(str, "'s3cret'")]
