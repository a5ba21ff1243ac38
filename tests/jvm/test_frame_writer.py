"""The writer keeps what the server has not stored, and sends it again to one that has lost it.

The server here is a fake, because a real one cannot be made to lose exactly these frames: it shows frames at once,
stores those that it is asked to, and forgets the others and all unfinished ones when it is restarted.
"""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from livetables.model.spec import Column, GenerationSpec, Table, record_id
from livetables.model.wire import FramePart, decode_part
from livetables.pipeline.flow.plan import plan_json
from tests.support.kafka import wait_until

pytestmark = pytest.mark.spark

PLAN = plan_json(GenerationSpec((Table("numbers", "number", (Column("n", "int64"),), "numbers_ui"),), ()))
OWN, KEPT_FRAMES = 0, 64
MANY_ROWS = 1 << 20  # more bytes in a frame than are kept


def event(number: int, *, is_whole: bool = True) -> bytes:
    """A record as MatchOperator emits it: it is a row of its table, and nothing else."""
    values = struct.pack(">bq", 1, number)
    return struct.pack(">biiqqi", is_whole, 0, 0, record_id(0, number), number, len(values)) + values + bytes([OWN])


def wide_event(number: int) -> bytes:
    """A record that fills a part: its row, as many times as it takes."""
    return event(number, is_whole=False) + bytes([OWN]) * 20_000


@dataclass
class FakeServer:
    """What a server shows, stores and loses. An older one stores every frame before it answers, and does not say so."""

    is_older: bool = False
    key: str = "a key"
    parts: list[FramePart] = field(default_factory=list)  # all that came
    stored: list[tuple[int, list[int]]] = field(default_factory=list)  # frames on disk, with their numbers
    shown: list[tuple[int, list[int]]] = field(default_factory=list)  # frames that are only in memory
    staged: list[FramePart] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def numbers(self) -> list[int]:
        return [number for _, numbers in [*self.stored, *self.shown] for number in numbers]

    def restart(self) -> None:
        """Lose what is not on disk."""
        with self.lock:
            self.shown, self.staged = [], []

    def take(self, part: FramePart) -> tuple[int, dict[str, Any]]:
        with self.lock:
            self.parts.append(part)
            last = [*self.stored, *self.shown][-1][0] if self.stored or self.shown else -1
            stored = self.stored[-1][0] if self.stored else -1
            if (part.frame, part.part) != (last + 1, len(self.staged)):
                return 409, {"code": "missing_frames", "problem": "frames are lost", "cure": "again", "stored": stored}
            self.staged.append(part)
            if part.commit:
                self.shown.append((part.frame, [n for each in self.staged for n in numbers_of(each)]))
                self.staged = []
                if part.durable or self.is_older:
                    self.stored, self.shown = [*self.stored, *self.shown], []
                    stored = part.frame
            answer = {"applied": part.commit, "sequence": last + part.commit}
            return 200, answer if self.is_older else {**answer, "stored": stored}


def numbers_of(part: FramePart) -> list[int]:
    numbers: list[int] = [number for stream in part.streams for number in stream.rows()["n"].to_pylist()]
    return numbers


@contextmanager
def served(server: FakeServer) -> Iterator[str]:
    """The fake's URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            part = decode_part(self.rfile.read(int(self.headers["Content-Length"])))
            if self.headers["Authorization"] == f"Bearer {server.key}":
                status, answer = server.take(part)
            else:
                status, answer = 401, {"code": "unauthorized", "problem": "the key is wrong", "cure": "another"}
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()


@contextmanager
def writer_to(
    spark: SparkSession, server: FakeServer, *, real_time: bool = True, token_file: Path | None = None
) -> Iterator[Any]:
    """An open writer, as Spark uses it."""
    with served(server) as url:
        target = {
            "url": url,
            "ca": None,
            "token_file": str(token_file) if token_file else None,
            "generation": "g",
            "run": 1,
            "query": "g 1",
            "real_time": real_time,
            "frame_ms": 1,
            "patience_seconds": 5,
        }
        jvm = spark._jvm
        assert jvm is not None
        writer = jvm.livetables.FrameWriter(PLAN, json.dumps(target), "a key")
        writer.open(0, 0)
        yield writer


def send(writer: Any, server: FakeServer, number: int) -> None:
    """Send a record, and return when the server shows it."""
    writer.process(event(number))
    wait_until(lambda: number in server.numbers, f"{number} is shown")


def test_only_the_end_of_a_batch_waits_for_the_disk(spark: SparkSession) -> None:
    server = FakeServer()
    with writer_to(spark, server) as writer:
        for number in range(3):
            send(writer, server, number)
        assert server.stored == []
        writer.close(None)
    assert server.shown == []
    assert server.numbers == [0, 1, 2]
    assert [part.durable for part in server.parts] == [part.end for part in server.parts]
    assert [part.end for part in server.parts][-1]


def test_a_frame_says_how_new_its_newest_record_is(spark: SparkSession) -> None:
    server = FakeServer()
    with writer_to(spark, server) as writer:
        send(writer, server, 17)
        writer.close(None)
    assert [part.kafka_ms for part in server.parts] == [17 if numbers_of(part) else -1 for part in server.parts]


def test_what_a_restarted_server_has_lost_is_sent_again_in_order(spark: SparkSession) -> None:
    server = FakeServer()
    with writer_to(spark, server) as writer:
        for number in range(3):
            send(writer, server, number)
        server.restart()
        for number in range(3, 6):
            send(writer, server, number)
        server.restart()
        writer.close(None)
    assert [numbers for _, numbers in server.stored if numbers] == [[number] for number in range(6)]


def test_no_more_frames_are_kept_than_may_be(spark: SparkSession) -> None:
    server = FakeServer()
    with writer_to(spark, server) as writer:
        for number in range(KEPT_FRAMES + 10):
            send(writer, server, number)
        assert server.stored[-1][0] + 1 == KEPT_FRAMES
        server.restart()
        writer.close(None)
    assert server.numbers == list(range(KEPT_FRAMES + 10))
    assert len([part for part in server.parts if part.frame < KEPT_FRAMES]) == KEPT_FRAMES  # none of them again


def test_an_unfinished_frame_is_sent_again_from_its_first_part(spark: SparkSession) -> None:
    server = FakeServer()
    with writer_to(spark, server, real_time=False) as writer:
        writer.process(wide_event(1))
        wait_until(lambda: len(server.staged) == 1, "a part is staged")
        server.restart()
        writer.process(event(1))
        writer.close(None)
    assert set(server.numbers) == {1}
    assert [(part.frame, part.part) for part in server.parts] == [(0, 0), (1, 0), (1, 1), (0, 0), (1, 0), (1, 1)]


def test_a_frame_too_large_to_be_kept_ends_the_query_when_it_is_lost(spark: SparkSession) -> None:
    server = FakeServer()
    large = event(1, is_whole=False) + bytes([OWN]) * MANY_ROWS
    with writer_to(spark, server, real_time=False) as writer:
        wait_until(lambda: server.shown != [], "the batch is open")
        writer.process(large)
        wait_until(lambda: len(server.staged) == 1, "a part is staged")
        server.restart()
        with pytest.raises(Py4JJavaError, match="missing_frames: frames are lost; again"):
            writer.close(None)


def test_a_server_that_does_not_say_what_it_has_stored_has_stored_all(spark: SparkSession) -> None:
    server = FakeServer(is_older=True)
    with writer_to(spark, server) as writer:
        for number in range(KEPT_FRAMES + 10):
            send(writer, server, number)
        writer.close(None)
    assert not any(part.durable for part in server.parts if not part.end)
    assert server.numbers == list(range(KEPT_FRAMES + 10))


@pytest.mark.parametrize(
    "keys",
    [
        "viewer looks\noperator acts\nPipeline\tthe new one\n",
        "\ufeff# of today\n\n pipeline  the new one \n",
        "viewer looks\nthe new one\nacts too\n",
        "viewer looks\noperator the new one\n",
    ],
)
def test_a_key_that_was_changed_is_found_in_the_file_by_its_role(
    spark: SparkSession, tmp_path: Path, keys: str
) -> None:
    token_file = tmp_path / "keys"
    token_file.write_text(keys)
    server = FakeServer(key="the new one")
    with writer_to(spark, server, token_file=token_file) as writer:
        send(writer, server, 1)
        writer.close(None)
    assert server.numbers == [1]
