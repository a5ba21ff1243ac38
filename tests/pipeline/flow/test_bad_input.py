"""Every record is a row or a dead letter that says why, however it is broken; and the stream goes on."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from livetables.local.broker import Broker
from livetables.model.joins import JoinType
from livetables.pipeline.flow.modes import Mode
from tests.support.oracle import Side, time_of
from tests.support.pipeline import Stage
from tests.support.server import ServerProcess

# What is sent to the users' topic, and what the reason must say about it.
BROKEN: list[tuple[bytes | None, str]] = [
    (None, "the value is null"),
    (b"", "the value is empty"),
    (b" \t\r\n", "the value is empty"),
    (b"hello", "malformed JSON"),
    (b'{"userId":"u1"', "malformed JSON"),
    (b'{"userId":"u1",}', "malformed JSON"),
    (b"{'userId':'u1'}", "malformed JSON"),
    (b'{"userId":"u1"} trailing', "malformed JSON"),
    (b'{"userId":"u1"}{"userId":"u2"}', "malformed JSON"),
    (b'{"userId":"u1"}]}', "malformed JSON"),
    (b'{"userId":"u1","age":NaN}', "malformed JSON"),
    (b'{"userId":"\xff"}', "the value is not UTF-8"),
    (b'[{"userId":"u1"}]', "not a JSON object but the array"),
    (b"null", "not a JSON object but null"),
    (b"42", "not a JSON object but the number 42"),
    (b'{"userId":"u1","age":"x"}', 'age: expected int64, found the string "x"'),
    (b'{"userId":"u1","age":1.5}', "age: expected int64, found the number 1.5"),
    (b'{"userId":"u1","age":9223372036854775808}', "age: the number 9223372036854775808 does not fit int64"),
    (b'{"userId":"u1","age":"12.5"}', 'age: expected int64, found the string "12.5"'),
    (b'{"userId":"u1","age":"9223372036854775808"}', 'age: the string "9223372036854775808" does not fit int64'),
    (b'{"userId":"u1","name":{"first":"A"}}', 'name: expected string, found the object {"first": "A"}'),
    (b'{"userId":"u1","email":["a"]}', 'email: expected string, found the array ["a"]'),
    (b'{"userId":"u1","age":true}', "age: expected int64, found the boolean true"),
    (
        b'{"userId":[7],"age":false}',
        "userId: expected string, found the array [7]; age: expected int64, found the boolean",
    ),
]
GOOD: list[tuple[bytes, list[str]]] = [
    (b'{"userId":"u1","name":"A","email":"a@x","age":1}', []),
    (b'{ "userId" : "u1" , "age" : 1 }\n', []),
    (b"{}", []),
    (b'{"userId":null,"age":null}', []),
    (b'{"userId":"7","name":"true","email":"{}","age":-9223372036854775808}', []),
    (b'{"userId":"}","name":"\\"quoted\\"","email":"\\u00e9"}', []),
    (b'{"userId":"u1","extra":1}', ["extra"]),
    (b'{"userId":"u1","extra":{"age":"x"},"more":[1]}', ["extra", "more"]),
    (b'{"age":5,"userid":"u1"}', ["userid"]),
    ('{"userId":"ü😀","name":"日本"}'.encode(), []),
    (b'{"userId":7,"name":1.50,"email":true,"age":"42"}', []),
    (b'{"userId":"u1","age":42.0}', []),
]


MODES: list[Mode] = ["micro_batch", "real_time"]


def unknown_fields(server: ServerProcess) -> Counter[str]:
    """The fields of users that are not columns, as the server has counted them since its start."""
    counted = json.loads(server.get("/api/status"))["unknown_fields"]
    return Counter({each["field"]: each["records"] for each in counted if each["table"] == "users"})


@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.parametrize("mode", MODES)
def test_ten_thousand_records_half_of_them_broken(
    spark: SparkSession, broker: Broker, server: ServerProcess, tmp_path: Path, mode: Mode
) -> None:
    stage = Stage.open(broker.bootstrap_servers)
    records: list[tuple[Side, int, int, bytes | None]] = []
    for number in range(5000):
        broken, good = BROKEN[number % len(BROKEN)][0], GOOD[number % len(GOOD)][0]
        records += [("users", number % 2, number + 1, broken), ("users", number % 2, number + 1, good)]
    stage.send(records)
    counted_before = unknown_fields(server)
    with stage.engine(spark, server, ["left"], tmp_path) as engine:
        engine.start(mode, max_records=3000)
        engine.settle(10_000)
        stage.send([("users", 0, 1, b'{"userId":"after"}'), ("accounts", 0, 1, b'{"userId":"after"}')])
        engine.settle(10_002)

        assert stage.differences(engine, ["left"]) == {}
        assert len(engine.rows("users_ui")) == 5001
        letters = engine.rows("dead_letters")
        assert len(letters) == 5000

    sent = {(record.partition, record.offset): record for record in stage.sent if record.side == "users"}
    expected = dict(BROKEN)
    for letter in letters:
        record = sent[letter["partition"], letter["offset"]]
        assert expected[record.value] in letter["reason"], letter
        assert round(letter["ts"].timestamp() * 1000) == record.timestamp_ms
        raw = None if letter["raw"] is None else letter["raw"].encode()
        assert raw == (None if record.value is None else record.value.replace(b"\xff", b"\\xff"))

    unknown = Counter(name for number in range(5000) for name in GOOD[number % len(GOOD)][1])
    assert unknown_fields(server) - counted_before == unknown


@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.parametrize("mode", MODES)
def test_doubles_and_integers_at_the_edge_of_their_type(
    spark: SparkSession, broker: Broker, server: ServerProcess, tmp_path: Path, mode: Mode
) -> None:
    stage = Stage.open(broker.bootstrap_servers)
    balances = ["1", "-0.0", "1e308", "1e309", "-1e999", "5e-324", '"NaN"', '"1.5"', str(2**70), "9" * 400]
    ages = [str(2**63 - 1), str(-(2**63)), str(2**63), str(-(2**63) - 1), "1e3", "1.0", '""', "true"]
    stage.send([("accounts", 0, 1, f'{{"userId":"u1","balance":{text}}}'.encode()) for text in balances])
    stage.send([("users", 0, 1, f'{{"userId":"u1","age":{text}}}'.encode()) for text in ages])
    with stage.engine(spark, server, ["inner"], tmp_path) as engine:
        engine.start(mode)
        engine.settle(len(stage.sent))
        assert stage.differences(engine, ["inner"]) == {}
        assert len(engine.rows("accounts_ui")) == 6
        assert len(engine.rows("users_ui")) == 4
        reasons = [letter["reason"] for letter in engine.rows("dead_letters")]
    assert sum("balance: " in reason for reason in reasons) == 4
    assert sum("age: " in reason for reason in reasons) == 4


# Not UTF-8, byte order marks, other encodings, halves of characters, control characters: alone, around JSON and in it.
BYTES: list[bytes] = [
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\x00",
    b"\xff",
    bytes(range(256)),
    *(b'\xef\xbb\xbf{"userId":"u1"}', b'{"userId":"u1"}\x00', b'\x00{"userId":"u1"}', b'{"userId":"u1"}\xc2\xa0'),
    *('{"userId":"u1"}'.encode(encoding) for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32")),
    *(b'{"userId":"%s"}' % value for value in (b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\xaf", b"\x00", b"\n", b"\x7f")),
    *(b'{"userId":"%s"}' % value for value in (b"\\u0000", b"\\ud83d\\ude00", b"\xe2\x80\xa8")),
    *(b'{"userId":"%s"}' % value for value in (b"\\ud800", b"\\udc00\\ud800", b"a\\ud83d", b"?")),
    b'{"\\ud800":1,"userId":"u1","name":"\\udc00"}',
]
SPARK_MS_MAX = (2**63 - 1) // 1000  # beyond that Spark's Kafka source has no microseconds for it
TIMES = [
    *(-1, 1, -1000, 2**31, -(2**31)),
    *(-62_135_596_800_000, -12_219_292_800_001, -12_219_292_800_000),  # the year 1, and the first day of the calendar
    *(253_402_300_799_999, 253_402_300_800_000, 6_249_223_180_800_000),  # the end of 9999, and the year 200000
    *(SPARK_MS_MAX, -SPARK_MS_MAX, SPARK_MS_MAX + 1, -SPARK_MS_MAX - 1, 2**63 - 1, 2 - 2**63),
]


@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.parametrize("mode", MODES)
def test_any_bytes_are_a_row_or_a_dead_letter(
    spark: SparkSession, broker: Broker, server: ServerProcess, tmp_path: Path, mode: Mode
) -> None:
    stage = Stage.open(broker.bootstrap_servers)
    stage.send([("users", number % 2, 1, value) for number, value in enumerate(BYTES)])
    stage.send([("accounts", number % 2, 1, value) for number, value in enumerate(BYTES)])
    with stage.engine(spark, server, ["left", "asof"], tmp_path) as engine:
        engine.start(mode)
        engine.settle(len(stage.sent))
        assert stage.differences(engine, ["left", "asof"]) == {}
        shown = {letter["offset"]: letter["raw"] for letter in engine.rows("dead_letters") if letter["partition"] == 0}
    assert shown[0] == "\\xff\\xfe"


@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.parametrize("mode", MODES)
def test_any_time_is_a_time_that_readers_have(
    spark: SparkSession, broker: Broker, server: ServerProcess, tmp_path: Path, mode: Mode
) -> None:
    stage = Stage.open(broker.bootstrap_servers)
    sides: list[Side] = ["users", "accounts"]
    stage.send([(side, n % 2, time, b'{"userId":"u1"}') for side in sides for n, time in enumerate(TIMES)])
    stage.send([("users", 0, time, b"broken") for time in TIMES])
    joins: list[JoinType] = ["natural", "asof"]
    with stage.engine(spark, server, joins, tmp_path) as engine:
        engine.start(mode)
        engine.settle(len(stage.sent))
        assert stage.differences(engine, joins) == {}
        letters = {letter["ts"] for letter in engine.rows("dead_letters")}
    assert letters == {time_of(time) for time in TIMES}
