"""Wire formats between the pipeline, the server and Python: batches, frames and shapes as bytes, and reports.

Bytes are the length of a header, the header in JSON, and Arrow IPC streams. A table's changes, as clients get them, are
an Arrow stream with a header in its schema's metadata.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple, get_args

import pyarrow as pa

from livetables.model.change import Batch, TableChanges, TableShape
from livetables.model.spec import OFFSET_BITS, Retain

LENGTH = struct.Struct("<Q")
NO_BATCH = -1  # the sequence of a generation before its first commit
DELETED = "_deleted"  # the column of changes that is true for a removed row
HEADER = b"livetables"  # where a schema's metadata has the header


StreamKind = Literal["rows", "removed", "unknown"]
STREAM_KINDS: tuple[StreamKind, ...] = get_args(StreamKind)
PARTITIONS_MAX = 1 << (63 - OFFSET_BITS)  # more would overflow a record's id

RUNS_PER_PIPELINE = 1_000_000  # a run is the pipeline's number times this, and how often its queries were started

PART_FIELDS: Mapping[str, type] = {
    "generation": str,
    "run": int,
    "writer": int,
    "attempt": str,
    "frame": int,
    "part": int,
    "commit": bool,
    "sent_ms": int,
    "epoch": int,
    "end": bool,
    "durable": bool,
    "kafka_ms": int,
}
PART_DEFAULTS: Mapping[str, Any] = {"durable": True, "kafka_ms": -1}

Marks = Mapping[str, Mapping[str, Mapping[int, int]]]  # by source table, scope and Kafka partition: highest offset


@dataclass(frozen=True)
class SourceReport:
    """A topic as a generation reads it into a table: how many of its records are still to be read."""

    table: str
    topic: str
    lag_records: int


@dataclass(frozen=True)
class PipelineReport:
    """Figures of a pipeline as a whole."""

    started: float  # in seconds since 1970
    query_restarts: int  # since then
    generations: Mapping[str, int]  # by state, all that ever were
    modes: Mapping[str, str] = field(default_factory=dict)  # by generation that runs: micro_batch or real_time
    spark_ui: str | None = None  # where it is, if there is one


@dataclass(frozen=True)
class Holder:
    """A pipeline's process: where it runs, and since when (ISO-8601)."""

    host: str
    pid: int
    machine: str  # whose process ids these are: of a machine or container
    since: str

    @property
    def process(self) -> str:
        return f"{self.machine}/{self.pid}"

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


@dataclass(frozen=True)
class ControlRequest:
    """A control message from a client, to be published."""

    request_id: int
    fields: Mapping[str, Any]
    message_id: str | None = None  # made by the client: the same again is the same message


@dataclass(frozen=True)
class Receipt:
    """Where on the control topic a message is."""

    topic: str
    partition: int
    offset: int


class Place(NamedTuple):
    """A state of a table to continue from: that after commit `sequence` of a generation.

    A new generation may get the name of one that was lost: `begun`, its time, distinguishes them.
    """

    generation: str
    sequence: int
    begun: str | None = None


@dataclass(frozen=True)
class ChangeTimes:
    """When the newest record among changes was in Kafka, left Spark, was applied, and was sent: ms since 1970."""

    kafka: float
    spark: float
    applied: float
    sent: float


@dataclass(frozen=True)
class ChangesHeader:
    """Header of the changes of a table: up to which place they go, and whether they are the whole table."""

    table: str
    place: Place
    is_snapshot: bool
    key: tuple[str, ...]
    receipt: ChangeTimes | None = None  # if records have caused them
    checksum: str | None = None  # of the rows, if it was asked for

    def on(self, schema: pa.Schema) -> pa.Schema:
        fields = {
            "table": self.table,
            **self.place._asdict(),
            "is_snapshot": self.is_snapshot,
            "key": self.key,
            "receipt": asdict(self.receipt) if self.receipt else None,
            **({"checksum": self.checksum} if self.checksum else {}),
        }
        return schema.with_metadata({HEADER: json.dumps(fields)})

    @classmethod
    def of(cls, schema: pa.Schema) -> ChangesHeader:
        fields = json.loads(schema.metadata[HEADER])
        place = Place(fields["generation"], fields["sequence"], fields["begun"])
        receipt = ChangeTimes(**fields["receipt"]) if fields["receipt"] else None
        return cls(fields["table"], place, fields["is_snapshot"], tuple(fields["key"]), receipt, fields.get("checksum"))


@dataclass(frozen=True)
class FrameStream:
    """Rows of a frame, for one table."""

    table: str
    kind: StreamKind
    data: pa.Buffer

    @classmethod
    def of(cls, table: str, kind: StreamKind, rows: pa.Table) -> FrameStream:
        return cls(table, kind, pa.py_buffer(_ipc(rows)))

    def rows(self) -> pa.Table:
        return pa.ipc.open_stream(self.data).read_all()


@dataclass(frozen=True)
class FramePart:
    """What a writer of the pipeline sends at once: a frame, or a part of one.

    The part with `commit` is the last of its frame: all parts are applied together, with its marks.
    """

    generation: str
    run: int  # grows with each start of the query, and with each pipeline: older ones are refused
    writer: int
    attempt: str  # another one for each opening of the writer
    frame: int  # from 0 in an attempt
    part: int  # from 0 in a frame
    commit: bool
    sent_ms: int
    streams: tuple[FrameStream, ...]
    marks: Marks
    epoch: int = 0  # the number of the batch that Spark runs
    end: bool = False  # whether it is the last that this writer sends of that batch
    durable: bool = True  # whether to answer only when it is on disk, with all before it
    kafka_ms: int = -1  # the newest Kafka timestamp of its records; -1: it has none


def decode_part(data: bytes | pa.Buffer) -> FramePart:
    """Read the header; the streams are not decoded."""
    header, buffers = _parts(data)
    header = {**PART_DEFAULTS, **header}
    for name, kind in PART_FIELDS.items():
        if type(header[name]) is not kind or (kind is int and header[name] < PART_DEFAULTS.get(name, 0)):
            raise ValueError(f"{name} is {header[name]!r}")
    streams = [
        FrameStream(each["table"], _kind(each["kind"]), buffer)
        for each, buffer in zip(header["streams"], buffers, strict=True)
    ]
    marks = {
        source: {
            scope: {_partition(partition): _offset(offset) for partition, offset in offsets.items()}
            for scope, offsets in scopes.items()
        }
        for source, scopes in header["marks"].items()
    }
    return FramePart(**{name: header[name] for name in PART_FIELDS}, streams=tuple(streams), marks=marks)


def encode_batch(batch: Batch) -> bytes:
    tables = [table for changes in batch.changes for table in (changes.upserts, changes.deletes)]
    streams = [_ipc(table) for table in tables]
    header = {
        "generation": batch.generation,
        "batch_id": batch.batch_id,
        "tables": [changes.table for changes in batch.changes],
        "lengths": [len(stream) for stream in streams],
        "unknown_fields": batch.unknown_fields,
        "records": batch.records,
    }
    return b"".join([_header(header), *streams])


def decode_batch(data: bytes | pa.Buffer) -> Batch:
    header, tables = _decoded(data)
    changes = zip(header["tables"], tables[::2], tables[1::2], strict=True)
    return Batch(
        header["generation"],
        header["batch_id"],
        tuple(TableChanges(*each) for each in changes),
        header["unknown_fields"],
        header["records"],
    )


def encode_shapes(generation: str, shapes: Sequence[TableShape]) -> bytes:
    streams = [encode_shape(shape) for shape in shapes]
    return b"".join([_header({"generation": generation, "lengths": [len(stream) for stream in streams]}), *streams])


def decode_shapes(data: bytes | pa.Buffer) -> tuple[str, tuple[TableShape, ...]]:
    header, parts = _parts(data)
    return header["generation"], tuple(decode_shape(part) for part in parts)


def encode_shape(shape: TableShape) -> bytes:
    header = {
        "name": shape.name,
        "key": shape.key,
        "version": shape.version,
        "aliases": shape.aliases,
        "appends": shape.appends,
        "sources": shape.sources,
        "scope": shape.scope,
        "join": shape.join,
        "topic": shape.topic,
        "strict": shape.strict,
        "times": shape.times,
        "sides": shape.sides,
        "retain": asdict(shape.retain) if shape.retain else None,
    }
    stream = _ipc(shape.schema.empty_table())
    return b"".join([_header({**header, "lengths": [len(stream)]}), stream])


def decode_shape(data: bytes | pa.Buffer) -> TableShape:
    header, (table,) = _decoded(data)
    retain = header.get("retain")
    return TableShape(
        header["name"],
        table.schema,
        tuple(header["key"]),
        tuple(header["version"]),
        tuple(header["aliases"]),
        header["appends"],
        tuple(header["sources"]),
        header["scope"],
        header["join"],
        header["topic"],
        # A store may have been written before there was what follows.
        header.get("strict", False),
        tuple(header.get("times", ())),
        tuple(tuple(side) for side in header.get("sides", ())),
        Retain(**retain) if retain else None,
    )


def _kind(value: Any) -> StreamKind:
    if value not in STREAM_KINDS:
        raise ValueError(f"there is no kind of stream {value!r}")
    kind: StreamKind = value
    return kind


def _partition(value: str) -> int:
    if not (value.isascii() and value.isdecimal() and int(value) < PARTITIONS_MAX):
        raise ValueError(f"{value!r} is not a partition")
    return int(value)


def _offset(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << OFFSET_BITS:
        raise ValueError(f"{value!r} is not an offset")
    return value


def _header(header: dict[str, Any]) -> bytes:
    """Return a header with its length, padded so that the Arrow data after it is aligned."""
    text = json.dumps(header).encode()
    padded = text + b" " * (-(len(text) + LENGTH.size) % 64)
    return LENGTH.pack(len(padded)) + padded


def _ipc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _parts(data: bytes | pa.Buffer) -> tuple[dict[str, Any], list[pa.Buffer]]:
    buffer = pa.py_buffer(data)
    if len(buffer) < LENGTH.size:
        raise ValueError("cut off before its header")
    (length,) = LENGTH.unpack_from(buffer)
    start = LENGTH.size + length
    header = json.loads(buffer.slice(LENGTH.size, length).to_pybytes())
    return header, list(_slices(buffer, start, header["lengths"]))


def _slices(buffer: pa.Buffer, start: int, lengths: Iterable[int]) -> Iterable[pa.Buffer]:
    for length in lengths:
        yield buffer.slice(start, length)
        start += length


def _decoded(data: bytes | pa.Buffer) -> tuple[dict[str, Any], list[pa.Table]]:
    header, parts = _parts(data)
    return header, [pa.ipc.open_stream(part).read_all() for part in parts]
