"""The changelog alone: hand-made batches, and the changes they must become."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from livetables.change import TableChanges
from livetables.pipeline import changelog
from livetables.pipeline.join import match_streams
from livetables.spec import Column, GenerationSpec, JoinType, Table, View

LEFT = Table("l", "left-topic", (Column("k", "string"), Column("x", "int64")), "l_ui")
RIGHT = Table("r", "right-topic", (Column("k", "string"), Column("y", "double")), "r_ui")
FIELDS = {
    "l": pa.struct([("k", pa.string()), ("x", pa.int64()), ("_corrupt", pa.string())]),
    "r": pa.struct([("k", pa.string()), ("y", pa.float64()), ("_corrupt", pa.string())]),
}
ROWS = {
    name: pa.struct([("ts", changelog.TIMESTAMP), ("_id", pa.int64()), ("fields", fields)])
    for name, fields in FIELDS.items()
}


def spec_of(*joins: JoinType) -> GenerationSpec:
    return GenerationSpec((LEFT, RIGHT), tuple(View(join, join, "l", "r", "k") for join in joins))


def row(row_id: int, second: int = 1, **fields: Any) -> dict[str, Any]:
    return {"ts": datetime.fromtimestamp(second, tz=UTC), "_id": row_id, "fields": fields}


def batch(spec: GenerationSpec, *rows: tuple[str, dict[str, Any]]) -> pa.Table:
    """A collected batch: each row is given with the name of its stream."""
    types = {
        name: pa.struct(
            [("_row", ROWS[name]), ("_dead", pa.bool_()), ("_raw", pa.binary()), ("_unknown", pa.list_(pa.string()))]
        )
        for name in ("l", "r")
    }
    for stream in match_streams(spec).values():
        types[stream.name] = pa.struct([("l", ROWS["l"]), ("r", ROWS["r"])])
    columns = {
        name: pa.array([content if stream == name else None for stream, content in rows], type=struct)
        for name, struct in types.items()
    }
    return pa.table(columns)


def changed(spec: GenerationSpec, collected: pa.Table) -> dict[str, TableChanges]:
    return {changes.table: changes for changes in changelog.changes(changelog.untagged(collected), spec)}


def pairs(spec: GenerationSpec, left: dict[str, Any], right: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return match_streams(spec)[spec.views[0].name].name, {"l": left, "r": right}


def test_a_batch_without_rows_changes_nothing() -> None:
    assert changed(spec_of("left", "natural"), batch(spec_of("left", "natural"))) == {}


def test_left_shows_a_row_at_once_and_replaces_it_when_its_first_pair_comes() -> None:
    spec = spec_of("left")
    first = changed(spec, batch(spec, ("l", {"_row": row(1, k="a", x=7)})))["left"]
    assert first.upserts.to_pylist() == [
        {
            "_left_id": 1,
            "_right_id": None,
            "k": "a",
            "x": 7,
            "y": None,
            "l_ts": datetime.fromtimestamp(1, tz=UTC),
            "r_ts": None,
        }
    ]
    assert first.deletes.num_rows == 0
    right = row(5, second=2, k="a", y=0.5)
    second = changed(spec, batch(spec, ("r", {"_row": right}), pairs(spec, row(1, k="a", x=7), right)))["left"]
    assert [(change["_left_id"], change["_right_id"]) for change in second.upserts.to_pylist()] == [(1, 5)]
    assert second.deletes.to_pylist() == [{"_left_id": 1, "_right_id": None}]


def test_left_does_not_delete_what_it_never_showed() -> None:
    spec = spec_of("left")
    left, right = row(1, k="a"), row(5, k="a")
    changes = changed(spec, batch(spec, ("l", {"_row": left}), ("r", {"_row": right}), pairs(spec, left, right)))
    assert changes["left"].upserts.num_rows == 1
    assert changes["left"].deletes.num_rows == 0


def test_asof_keeps_the_latest_match_that_is_not_newer() -> None:
    spec = spec_of("asof")
    right = row(5, second=10, k="a")
    lefts = [row(1, second=3, k="a"), row(2, second=10, k="a"), row(3, second=10, k="a"), row(4, second=11, k="a")]
    changes = changed(spec, batch(spec, ("r", {"_row": right}), *(pairs(spec, left, right) for left in lefts)))["asof"]
    assert [(change["_left_id"], change["_right_id"]) for change in changes.upserts.to_pylist()] == [(3, 5)]


def test_asof_takes_the_key_of_a_row_without_a_match_from_the_row() -> None:
    spec = spec_of("asof")
    (change,) = changed(spec, batch(spec, ("r", {"_row": row(5, k="a", y=1.5)})))["asof"].upserts.to_pylist()
    assert (change["k"], change["y"], change["_left_id"], change["_right_id"]) == ("a", 1.5, None, 5)


def test_a_dead_record_is_a_letter_and_no_row() -> None:
    spec = spec_of("left")
    dead = {"_row": {**row(3), "fields": None}, "_dead": True, "_raw": b"{"}
    changes = changed(spec, batch(spec, ("l", dead)))
    assert changes.keys() == {"dead_letters"}
    (letter,) = changes["dead_letters"].upserts.to_pylist()
    assert (letter["source"], letter["topic"], letter["offset"], letter["raw"]) == ("l_ui", "left-topic", 3, "{")
    assert letter["reason"].startswith("malformed JSON")


def test_unknown_fields_are_counted_by_table_and_name() -> None:
    spec = spec_of()
    rows = [("l", {"_row": row(n), "_unknown": names}) for n, names in enumerate([["p"], None, ["p", "q"]])]
    assert changelog.unknown_fields(changelog.untagged(batch(spec, *rows)), spec) == {"l": {"p": 2, "q": 1}}


@pytest.mark.parametrize("join", ["inner", "left", "asof"])
def test_views_of_the_same_tables_share_one_stream_of_pairs(join: JoinType) -> None:
    streams = match_streams(spec_of("inner", join) if join != "inner" else spec_of("inner", "left"))
    assert len(set(streams.values())) == 1


def test_an_asof_view_alone_lets_spark_drop_pairs_with_a_newer_left_row() -> None:
    assert match_streams(spec_of("asof"))["asof"].asof
    assert not match_streams(spec_of("asof", "left"))["asof"].asof
