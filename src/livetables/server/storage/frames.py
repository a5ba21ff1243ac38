"""What a frame of the pipeline changes, given what is known already. Pure: no database, no waiting.

The pipeline sends every record at least once. After a crash it reads records again, from each Kafka partition in
order, but the partitions may be interleaved in another way. Each writer has *marks*: for each Kafka partition the
highest offset that a frame of it brought. A record at or below its mark is *known*: it was applied with an earlier
frame, as was everything before it. A record above its mark was never applied, nor was anything that is made from it.

| row | own record not known | own record known |
|---|---|---|
| of a topic, dead letter | insert | drop |
| pair (`inner`, `left`) with a record that is not known | insert | |
| pair of two known records | | insert unless the table has it |
| `left` without a match | insert, unless the frame has a match | drop |
| `natural`, `asof` | insert the last one of the frame | update with the last one, where newer |
| `removed` | drop: the row was not inserted | delete the row without a match |

Why a pair of known records may be missing: a right record was applied, its left one was not, and then came a crash. On
replay the left one may come first. When the right one comes again both are known, and they meet for the first time.
So nothing that two records make together may be dropped because both are known. Without a crash no such row comes: one
of the two is the record that was just read, so tables are only searched after a crash.

What a record at or before the horizon of its table makes is dropped, see `horizons.py`. The pipeline may not know the
horizon yet. So once a right table has one, a left record's row without a match depends on the pairs that are taken
alone, and not on what the pipeline has removed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from livetables.formats.json import readable, reason
from livetables.model.change import TableShape
from livetables.model.columns import column_type, declared_type
from livetables.model.errors import SinkError
from livetables.model.joins import IDS, LEFT_ID, RIGHT_ID, SIDES
from livetables.model.spec import DEAD_LETTERS, OFFSET_BITS, Column, Table, record_position
from livetables.model.wire import FrameStream, Marks, StreamKind
from livetables.server.storage.horizons import Horizons, is_kept, without

OFFSET_MASK = (1 << OFFSET_BITS) - 1
REMOVED_SCHEMA = pa.schema([(LEFT_ID, pa.int64())])
UNKNOWN_SCHEMA = pa.schema([("_id", pa.int64()), ("field", pa.string())])
DEAD_SCHEMA = pa.schema(
    [("source", pa.string()), ("_id", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("raw", pa.binary())]
)

FrameErrorCode = Literal["fenced", "held", "missing_frames", "missing_parts", "unknown_generation", "refused"]

# The marks of one writer: by source table and scope, the highest offset of each partition in order, -1 for none.
WriterMarks = Mapping[tuple[str, str], tuple[int, ...]]


class FrameError(SinkError):
    """A frame or a call of the pipeline was refused. Its code is for programs."""

    def __init__(self, code: FrameErrorCode, problem: str, cure: str, stored: int | None = None) -> None:
        super().__init__(problem, cure)
        self.code = code
        self.stored = stored  # of missing frames: the last one that is there


@dataclass(frozen=True)
class TableNews:
    """What frames bring to one table. No key occurs twice."""

    new: pa.Table | None = None  # rows whose keys the table cannot have
    perhaps: pa.Table | None = None  # rows that the table may have as they are
    newer: pa.Table | None = None  # rows to update where they are newer
    gone: pa.Table | None = None  # keys to delete

    @property
    def rows(self) -> list[pa.Table]:
        return [rows for rows in (self.new, self.perhaps, self.newer) if rows is not None]


@dataclass(frozen=True)
class FrameChanges:
    """What a frame changes, and the marks of its writer after it."""

    tables: Mapping[str, TableNews]
    marks: WriterMarks
    records: Mapping[str, int] = field(default_factory=dict)  # that are new, by what readers call their table
    unknown_fields: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # by source table and field


def frame_changes(
    shapes: Mapping[str, TableShape],
    streams: Sequence[FrameStream],
    marks: WriterMarks,
    brought: Marks,
    horizons: Horizons,
) -> FrameChanges:
    """Compare all streams of a frame with the marks of its writer; `brought` are the frame's own."""
    given = _by_stream(shapes, streams)
    tables: dict[str, TableNews] = {}
    records: Counter[str] = Counter()
    unknown_fields: dict[str, Mapping[str, int]] = {}
    known = _Known(marks)
    for (name, kind), rows in given.items():
        shape = shapes[name]
        match _class_of(shape), kind:
            case "topic", "rows":
                if new := _taken(rows, ~known.of(shape, 0, _ids(shape, rows, "_id"))):
                    tables[name] = TableNews(_taken(new, is_kept(shape, 0, new, horizons)))
                    records[name] += new.num_rows
            case "topic", "unknown":
                if new := _taken(rows, ~known.of(shape, 0, _ids(shape, rows, "_id"))):
                    unknown_fields[shape.sources[0]] = dict(Counter(new["field"].to_pylist()))
            case "dead_letters", "rows":
                if letters := _new_dead_letters(shapes, shape, rows, known):
                    tables[name] = TableNews(letters)
                    records.update(letters["source"].to_pylist())
            case "pairs", "rows":
                tables[name] = _pairs(shape, rows, given.get((name, "removed")), known, horizons)
            case "versioned", "rows":
                tables[name] = _versioned(shape, rows, known, horizons)
            case "pairs", "removed" if shape.removes_unmatched:
                if (name, "rows") not in given:
                    tables[name] = _pairs(shape, shape.schema.empty_table(), rows, known, horizons)
            case _:
                raise _refused(f"table {name} takes no stream of {kind}", "send what its shape has")
    changed = {name: news for name, news in tables.items() if news.rows or news.gone is not None}
    return FrameChanges(changed, advanced(marks, brought), records, unknown_fields)


def advanced(marks: WriterMarks, brought: Marks) -> WriterMarks:
    """The marks after a frame that brought these: the same object if none is higher."""
    changed: dict[tuple[str, str], tuple[int, ...]] = {}
    for source, scopes in brought.items():
        for scope, offsets in scopes.items():
            before = marks.get((source, scope), ())
            after = list(before) + [-1] * (max(offsets, default=-1) + 1 - len(before))
            for partition, offset in offsets.items():
                after[partition] = max(after[partition], offset)
            if tuple(after) != before:
                changed[source, scope] = tuple(after)
    return {**marks, **changed} if changed else marks


def combined(news: Sequence[TableNews]) -> TableNews:
    """What frames of several writers bring to one table: their keys differ."""
    if len(news) == 1:
        return news[0]
    return TableNews(
        *(
            _concatenated([rows for each in news if (rows := getattr(each, kind)) is not None])
            for kind in ("new", "perhaps", "newer", "gone")
        )
    )


def positions(shapes: Iterable[TableShape], writers: Iterable[WriterMarks]) -> dict[str, dict[int, int]]:
    """The next offset to be applied of each partition, by source table: of all writers, in the table's own scope."""
    found: dict[str, dict[int, int]] = {}
    scopes = [(shape.sources[0], shape.scope) for shape in shapes if _class_of(shape) == "topic"]
    for marks in writers:
        for source, scope in scopes:
            offsets = found.setdefault(source, {})
            for partition, offset in enumerate(marks.get((source, scope), ())):
                if offset >= offsets.get(partition, 0):
                    offsets[partition] = offset + 1
    return found


class _Known:
    """Which records are known by the marks of a writer."""

    def __init__(self, marks: WriterMarks) -> None:
        self._marks = marks
        self._arrays: dict[tuple[str, str], np.ndarray] = {}

    def of(self, shape: TableShape, source: int, ids: np.ndarray) -> np.ndarray:
        """Of records of a source of the table, by their ids. The record that is missing, -1, is known."""
        key = (shape.sources[source], shape.scope)
        if key not in self._arrays:
            # One place more, for partitions beyond those that have a mark; the missing record's partition is -1 too.
            self._arrays[key] = np.array([*self._marks.get(key, ()), -1], dtype=np.int64)
        offsets = self._arrays[key]
        partitions = np.minimum(ids >> OFFSET_BITS, len(offsets) - 1)
        is_known: np.ndarray = ((ids & OFFSET_MASK) <= offsets[partitions]) | (ids < 0)
        return is_known


def _class_of(shape: TableShape) -> Literal["topic", "dead_letters", "pairs", "versioned"] | None:
    if shape.kind is not None:
        return "versioned" if shape.kind.versioned else "pairs"
    if len(shape.sources) == 1:
        return "topic"
    return "dead_letters" if shape.name == DEAD_LETTERS else None


def _by_stream(
    shapes: Mapping[str, TableShape], streams: Sequence[FrameStream]
) -> dict[tuple[str, StreamKind], pa.Table]:
    """The rows of all parts, by table and kind, in the schema that they should have."""
    parts: dict[tuple[str, StreamKind], list[pa.Table]] = {}
    for stream in streams:
        if stream.table not in shapes:
            raise _refused(f"the generation has no table {ascii(stream.table)[:80]}", "begin it with one")
        try:
            rows = stream.rows()
            rows.validate(full=True)  # text that is not UTF-8 would only be noticed when it is stored
        except (pa.ArrowException, OSError) as error:
            raise _refused(f"{stream.kind} of {stream.table} cannot be read: {error}", "send Arrow IPC") from None
        if rows.num_rows:
            parts.setdefault((stream.table, stream.kind), []).append(_checked(shapes[stream.table], stream.kind, rows))
    return {key: rows for key, each in parts.items() if (rows := _concatenated(each)) is not None}


def _checked(shape: TableShape, kind: StreamKind, rows: pa.Table) -> pa.Table:
    """The rows in the order of the wanted columns. Whether a field may be null is not looked at."""
    wanted = {"removed": REMOVED_SCHEMA, "unknown": UNKNOWN_SCHEMA, "rows": shape.schema}[kind]
    if kind == "rows" and _class_of(shape) == "dead_letters":
        wanted = DEAD_SCHEMA
    given = rows.schema
    if given.equals(wanted):
        return rows
    types = dict(zip(given.names, given.types, strict=True))
    if len(given) != len(types) or types != dict(zip(wanted.names, wanted.types, strict=True)):
        raise _refused(
            f"a frame has other columns for {kind} of its table {shape.name}: {', '.join(map(str, given))}",
            f"send {', '.join(map(str, wanted))}, or begin a new generation",
        )
    return pa.Table.from_arrays([rows[name] for name in wanted.names], schema=wanted)


def _ids(shape: TableShape, rows: pa.Table, column: str, *, may_miss: bool = False) -> np.ndarray:
    """A column of ids; -1 for the record that is missing."""
    ids = rows[column].combine_chunks()
    if ids.null_count:
        if not may_miss:
            raise _refused(f"a row of {shape.name} has no {column}", "send the id of each record")
        ids = pc.fill_null(ids, -1)
    values: np.ndarray = ids.to_numpy()
    if not may_miss and len(values) and values.min() < 0:
        raise _refused(f"a row of {shape.name} has a negative {column}", "send the id of each record")
    return values


def _pairs(shape: TableShape, rows: pa.Table, removed: pa.Table | None, known: _Known, horizons: Horizons) -> TableNews:
    if shape.removes_unmatched and shape.sources[1] in horizons:
        return _pairs_after_horizon(shape, rows, known, horizons)
    if horizons:
        rows = rows.filter(pa.array(is_kept(shape, 0, rows, horizons) & is_kept(shape, 1, rows, horizons)))
    left = _ids(shape, rows, LEFT_ID)
    right = _ids(shape, rows, RIGHT_ID, may_miss=shape.removes_unmatched)
    is_left_known = known.of(shape, 0, left)
    is_known = is_left_known & known.of(shape, 1, right)
    is_pair = right >= 0
    is_new = ~np.where(is_pair, is_known, is_left_known)
    gone = None
    if removed is not None:
        ids = np.unique(_ids(shape, removed, LEFT_ID))
        is_new &= is_pair | ~np.isin(left, ids)
        gone = _keys(shape, ids[known.of(shape, 0, ids)])
    return TableNews(_taken(rows, is_new), _taken(rows, is_pair & is_known), None, gone)


def _pairs_after_horizon(shape: TableShape, rows: pa.Table, known: _Known, horizons: Horizons) -> TableNews:
    """What a frame brings to a view with rows without a match, where not every right record is kept.

    A left record that is new may have come with right records that are gone alone: then it has no match.
    """
    rows = rows.filter(pa.array(is_kept(shape, 0, rows, horizons)))
    rows = without(shape, 1, rows, ~is_kept(shape, 1, rows, horizons))
    left, right = _ids(shape, rows, LEFT_ID), _ids(shape, rows, RIGHT_ID, may_miss=True)
    is_left_known, is_pair = known.of(shape, 0, left), right >= 0
    is_known = is_left_known & known.of(shape, 1, right)
    matched = np.unique(left[is_pair])
    is_first = np.zeros(len(left), dtype=bool)  # of the rows without a match of a left record
    alone = np.flatnonzero(~is_pair)
    is_first[alone[np.unique(left[alone], return_index=True)[1]]] = True
    is_new = np.where(is_pair, ~is_known, is_first & ~is_left_known & ~np.isin(left, matched))
    gone = _keys(shape, matched[known.of(shape, 0, matched)])
    return TableNews(_taken(rows, is_new), _taken(rows, is_pair & is_known), None, gone)


def _versioned(shape: TableShape, rows: pa.Table, known: _Known, horizons: Horizons) -> TableNews:
    assert shape.kind
    assert shape.kind.versioned
    own, other = shape.kind.versioned
    if horizons:
        rows = rows.filter(pa.array(is_kept(shape, SIDES.index(own), rows, horizons)))
        rows = without(shape, SIDES.index(other), rows, ~is_kept(shape, SIDES.index(other), rows, horizons))
    ids = _ids(shape, rows, IDS[own])
    last = _last_of_each(ids)
    if len(last) < len(ids):
        rows, ids = rows.take(pa.array(last)), ids[last]
    is_known = known.of(shape, SIDES.index(own), ids)
    has_match = _ids(shape, rows, IDS[other], may_miss=True) >= 0  # nothing is older than a row without one
    return TableNews(_taken(rows, ~is_known), None, _taken(rows, is_known & has_match))


def _last_of_each(ids: np.ndarray) -> np.ndarray:
    """Where each id occurs last, in order."""
    _, places = np.unique(ids[::-1], return_index=True)
    last: np.ndarray = np.sort(len(ids) - 1 - places)
    return last


def _keys(shape: TableShape, left_ids: np.ndarray) -> pa.Table | None:
    """The keys of the rows without a match."""
    if not len(left_ids):
        return None
    return pa.table([pa.array(left_ids), pa.nulls(len(left_ids), pa.int64())], schema=shape.key_schema)


def _new_dead_letters(
    shapes: Mapping[str, TableShape], shape: TableShape, rows: pa.Table, known: _Known
) -> pa.Table | None:
    ids = _ids(shape, rows, "_id")
    sources = np.array(rows["source"].to_pylist(), dtype=object)
    is_new = np.zeros(len(ids), dtype=bool)
    tables: dict[str, Table] = {}
    for name in dict.fromkeys(sources):
        source = shapes.get(name)
        if source is None or _class_of(source) != "topic":
            raise _refused(f"a dead letter is for {ascii(name)[:80]}, which reads no topic", "send its table's name")
        tables[name] = _as_table(source)
        is_its = sources == name
        is_new[is_its] = ~known.of(source, 0, ids[is_its])
    new = _taken(rows, is_new)
    if new is None:
        return None
    letters = [_dead_letter(tables[record["source"]], record) for record in new.to_pylist()]
    return pa.Table.from_pylist(letters, schema=shape.schema)


def _dead_letter(table: Table, record: Mapping[str, Any]) -> dict[str, Any]:
    partition, offset = record_position(record["_id"])
    return {
        "_id": record["_id"],
        "source": table.publish,
        "topic": table.topic,
        "partition": partition,
        "offset": offset,
        "ts": record["ts"],
        "reason": reason(record["raw"], table),
        "raw": readable(record["raw"]),
    }


def _as_table(shape: TableShape) -> Table:
    """The table as its records should be."""
    fields = [field for field in shape.schema if field.name not in ("_id", "ts")]
    columns = [Column(field.name, name) for field in fields if (name := declared_type(column_type(field.type)))]
    return Table(shape.sources[0], shape.topic or "", tuple(columns), shape.name, strict=shape.strict)


def _taken(rows: pa.Table, is_taken: np.ndarray) -> pa.Table | None:
    """Those rows; None for none."""
    if is_taken.all():
        return rows if rows.num_rows else None
    return rows.filter(pa.array(is_taken)) if is_taken.any() else None


def _concatenated(tables: Sequence[pa.Table]) -> pa.Table | None:
    if len(tables) < 2:
        return tables[0] if tables else None
    return pa.concat_tables(tables)


def _refused(problem: str, cure: str) -> FrameError:
    return FrameError("refused", problem, cure)
