"""Every frame against its golden example, which the TypeScript tests read too; and what clients may not send."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from livetables.model.errors import RequestError
from livetables.server.health.freshness import SourceStatus, Status
from livetables.server.live import protocol
from livetables.server.live.protocol import Change, Heading, Receipt, Subscribe
from livetables.server.viewports.row import Checksums
from livetables.server.viewports.viewport import Filter, Patch, Sort, ViewOptions, patch
from tests.support.windows import patched

GOLDEN = Path(__file__).parent.parent.parent / "golden"
DOCUMENT = Path(__file__).parent.parent.parent.parent / "docs" / "PROTOCOL.md"
NOW = datetime(2026, 1, 31, 12, 0, 0, 123000, tzinfo=UTC)
HEADING = Heading(table="users_ui", generation="g7", sequence=42, newest=NOW)
RECEIPT = Receipt(kafka=1769860800100, spark=1769860800104, applied=1769860800106)
SENT = 1769860800.107
OLD = [(0, ("Ann", 30, 1.5)), (1, ("Bob", 40, 2.5)), (2, ("Cid", None, 3.5))]
NEW = [(3, ("Dee", "9007199254740993", 9.25)), (0, ("Ann", 31, 1.5)), (2, ("Cid", None, 3.5))]

SERVER_FRAMES: dict[str, Callable[[], str]] = {
    "hello": lambda: protocol.hello("0.1.0", "operator", ["users_ui", "accounts_ui"], NOW),
    "heartbeat": lambda: protocol.heartbeat(NOW),
    "status": lambda: protocol.status(
        Status(
            state="catching_up",
            message="catching up: 12,000 records of topic user are still to be read",
            pipeline_seen=NOW,
            spark_ui="http://127.0.0.1:4040",
            sources=(SourceStatus(table="users", topic="user", lag_records=12_000, newest=NOW),),
        )
    ),
    "error": lambda: protocol.error(
        RequestError("unknown_column", "the table has no column 'nme'", 'did you mean "name"?'), 3
    ),
    "schema": lambda: protocol.about(
        3,
        1,
        protocol.schema(
            HEADING, [("name", "string"), ("age", "int64"), ("score", "double"), ("ok", "bool"), ("ts", "timestamp")]
        ),
    ),
    "rebound": lambda: protocol.about(3, 1, protocol.rebound(HEADING, "g6")),
    "snapshot": lambda: protocol.about(
        3,
        1,
        protocol.with_checksum(
            protocol.snapshot(HEADING, 100, 1_000_000, [row_id for row_id, _ in OLD], [list(row) for _, row in OLD]),
            Checksums().of_window(1_000_000, OLD),
        ),
    ),
    "patch": lambda: protocol.about(
        3,
        1,
        protocol.with_checksum(
            protocol.patch(replace(HEADING, receipt=RECEIPT), 1_000_001, _change()),
            Checksums().of_window(1_000_001, NEW),
        ),
    ),
}
CLIENT_FRAMES = ("hello", "subscribe", "set", "unsubscribe", "resync", "heartbeat")


def _subscribe(view: str) -> str:
    return f'{{"type":"subscribe","sub":1,"table":"t","view":{view}}}'


def _change() -> Patch:
    return Patch(removed=(1,), inserted=((0, 3, NEW[0][1]),), updated=((1, 1, 31),))


@pytest.mark.parametrize("name", SERVER_FRAMES)
def test_a_frame_to_clients_is_as_its_golden_example(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("livetables.server.live.protocol.time.time", lambda: SENT)
    assert json.loads(SERVER_FRAMES[name]()) == json.loads((GOLDEN / f"server-{name}.json").read_text())


@pytest.mark.parametrize("name", CLIENT_FRAMES)
def test_a_golden_frame_from_clients_is_understood(name: str) -> None:
    text = (GOLDEN / f"client-{name}.json").read_text()
    frame = protocol.client_frame(text)
    assert json.loads(text) == frame.model_dump(exclude_unset=True)


def test_every_golden_frame_belongs_to_a_test() -> None:
    expected = {f"server-{name}.json" for name in SERVER_FRAMES} | {f"client-{name}.json" for name in CLIENT_FRAMES}
    assert {path.name for path in GOLDEN.iterdir()} == expected


def test_the_document_shows_every_golden_frame_as_it_is() -> None:
    shown = {json.dumps(json.loads(text)) for text in re.findall("```json\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)}
    golden = {json.dumps(json.loads(path.read_text())) for path in GOLDEN.iterdir()}
    assert shown == golden


def test_the_golden_patch_makes_the_window_that_it_promises() -> None:
    assert patched(OLD, _change()) == NEW
    assert patch(OLD, NEW) == _change()


def test_a_frame_whose_rows_are_arrow_can_be_taken_apart() -> None:
    rows = pa.table({"age": pa.array([2**60, None])})
    frame = protocol.arrow_snapshot(3, 1, HEADING, 100, 1_000, [7, 9], rows, "0a1b2c3d")
    (length,) = struct.unpack_from("<I", frame)
    header = json.loads(frame[4 : 4 + length])
    assert header == {
        "sub": 3, "revision": 1, "type": "snapshot", "table": "users_ui", "generation": "g7", "sequence": 42,
        "newest": "2026-01-31T12:00:00.123Z", "receipt": None, "offset": 100, "total": 1_000, "checksum": "0a1b2c3d",
    }  # fmt: skip
    assert pa.ipc.open_stream(frame[4 + length :]).read_all().to_pydict() == {"_row": [7, 9], "age": [2**60, None]}


def test_set_changes_what_it_names_and_nothing_else() -> None:
    view = ViewOptions(columns=["a"], sort=[Sort(column="a")], quick="x", offset=5, size=10)
    changed = protocol.client_frame('{"type":"set","sub":1,"revision":2,"offset":0,"sort":[]}')
    assert isinstance(changed, Change)
    assert changed.applied_to(view) == ViewOptions(columns=["a"], quick="x", offset=0, size=10)
    all_columns = protocol.client_frame('{"type":"set","sub":1,"revision":2,"columns":null}')
    assert isinstance(all_columns, Change)
    assert all_columns.applied_to(view).columns is None


def test_an_int64_beyond_two_to_the_53_may_be_sent_as_text_or_number() -> None:
    frame = protocol.client_frame(
        _subscribe('{"filters":[{"column":"a","op":"in","value":["9007199254740993",9007199254740993]}]}')
    )
    assert isinstance(frame, Subscribe)
    assert frame.view.filters == [Filter(column="a", op="in", value=["9007199254740993", 9007199254740993])]


@pytest.mark.parametrize(
    ("text", "code", "part"),
    [
        ("", "bad_frame", "JSON"),
        ("{", "bad_frame", "JSON"),
        ("[]", "bad_frame", ""),
        ("null", "bad_frame", ""),
        ("{}", "bad_frame", "type"),
        ('{"type":"shout"}', "bad_frame", "shout"),
        ('{"type":"subscribe","sub":"1","table":"t"}', "bad_frame", "sub"),
        ('{"type":"subscribe","sub":-1,"table":"t"}', "bad_frame", "sub"),
        ('{"type":"subscribe","sub":1.5,"table":"t"}', "bad_frame", "sub"),
        ('{"type":"subscribe","sub":1,"table":"t","colour":"red"}', "bad_frame", "colour"),
        (_subscribe('{"size":10002}'), "limit", "size"),
        (_subscribe('{"offset":-1}'), "bad_frame", "offset"),
        (_subscribe('{"sort":[{"column":"a","descending":"yes"}]}'), "bad_frame", "descending"),
        (_subscribe('{"filters":[{"column":"a","op":"like","value":1}]}'), "bad_frame", "op"),
        (json.dumps({"type": "set", "sub": 1, "revision": 1, "quick": "x" * 1001}), "limit", "quick"),
        (json.dumps({"type": "heartbeat", "pad": "x" * 70_000}), "limit", "long"),
        ("[" * 60_000, "bad_frame", ""),
    ],
)  # fmt: skip
def test_an_invalid_frame_is_refused_with_the_reason(text: str, code: str, part: str) -> None:
    with pytest.raises(RequestError) as refused:
        protocol.client_frame(text)
    assert refused.value.code == code
    assert part in refused.value.problem


@pytest.mark.parametrize("length", [0, 1, 125, 126, 127, 65_535, 65_536, 300_000])
def test_a_text_frame_of_any_length_is_understood_by_a_websocket_client(length: int) -> None:
    client = ClientProtocol(parse_uri("ws://localhost/ws"), state=State.OPEN, max_size=None)
    text = "é" * (length // 2) + "x" * (length % 2)
    client.receive_data(protocol.text_frame(text) * 2)
    assert client.parser_exc is None
    assert client.events_received() == [Frame(Opcode.TEXT, text.encode())] * 2
