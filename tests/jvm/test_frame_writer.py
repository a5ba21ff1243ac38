"""The writer keeps what the server has not stored, and sends it again to one that has lost it.

The server here is a fake, because a real one cannot be made to lose exactly these frames: it shows frames at once,
stores those that it is told to, and forgets the others and all unfinished ones when it is restarted.
"""

from __future__ import annotations

import json
import struct
import threading
import time
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
OWN, DEAD = 0, 1
KEPT_FRAMES = 64
LARGE_BYTES = 32 << 20  # of a record
PAUSE_SECONDS = 2  # longer than a writer waits until it asks for what is on disk
MANY_ROWS = 1 << 20  # more bytes in a frame than are kept


def event(number: int, *, is_whole: bool = True) -> bytes:
    """A record as MatchOperator emits it: it is a row of its table, and nothing else."""
    values = struct.pack(">bq", 1, number)
    return struct.pack(">biiqqi", is_whole, 0, 0, record_id(0, number), number, len(values)) + values + bytes([OWN])


def dead_event(number: int, size: int) -> bytes:
    """A record that could not be parsed, of so many bytes."""
    head = struct.pack(">biiqqi", True, 0, 0, record_id(0, number), number, 0)
    return head + bytes([DEAD]) + struct.pack(">i", size) + bytes(size)


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

    def store(self) -> None:
        """Store what is shown, without being asked."""
        with self.lock:
            self.stored, self.shown = [*self.stored, *self.shown], []

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
    columns = {"numbers_ui": "n", "dead_letters": "_id"}
    return [number for stream in part.streams for number in stream.rows()[columns[stream.table]].to_pylist()]


def arrow_bytes(spark: SparkSession) -> int:
    """How much memory the frames of all writers have."""
    jvm = spark._jvm
    assert jvm is not None
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    memory = loader.loadClass("livetables.FrameWriter").getDeclaredField("MEMORY")
    memory.setAccessible(True)
    allocated: int = memory.get(None).getAllocatedMemory()
    return allocated


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


def test_what_a_restarted_server_has_lost_is_sent_again_although_nothing_else_comes(spark: SparkSession) -> None:
    server = FakeServer()
    with writer_to(spark, server) as writer:
        for number in range(3):
            send(writer, server, number)
        server.restart()
        wait_until(lambda: server.numbers == [0, 1, 2], "all are there again")
        server.store()
        asked = len(server.parts)
        wait_until(lambda: len(server.parts) > asked, "the writer has asked what is on disk")
        asked = len(server.parts)
        time.sleep(PAUSE_SECONDS)  # not a wait: nothing comes in it
        assert len(server.parts) == asked
        writer.close(None)
    assert server.numbers == [0, 1, 2]


def test_a_record_in_parts_is_whole_when_it_is_shown_although_its_parts_come_slowly(spark: SparkSession) -> None:
    """The writer does not ask for what came before it meanwhile: that would end its frame."""
    server = FakeServer()
    with writer_to(spark, server) as writer:
        send(writer, server, 1)
        writer.process(wide_event(2))
        wait_until(lambda: len(server.staged) == 1, "a part is staged")
        time.sleep(PAUSE_SECONDS)  # not a wait: that it takes so long is what is tried
        assert len(server.staged) == 1
        writer.process(event(2))
        wait_until(lambda: server.staged == [], "it is whole")
        writer.close(None)
    assert server.numbers == [1, *[2] * 20_002]


def test_a_large_record_takes_no_memory_when_it_has_been_sent(spark: SparkSession) -> None:
    server = FakeServer()
    before = arrow_bytes(spark)
    with writer_to(spark, server) as writer:
        for number in range(2):  # in both of its frames
            writer.process(dead_event(number, LARGE_BYTES))
            wait_until(lambda: number in server.numbers, "it is shown")  # noqa: B023
        for number in range(2, 4):
            send(writer, server, number)
        assert arrow_bytes(spark) - before < LARGE_BYTES / 8
        writer.close(None)


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
