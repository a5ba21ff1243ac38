"""How far back tables go: the records of a table that are not kept are all those up to its *horizon*. Pure.

A horizon is a place in the order of records, by (time, id), and only ever moves forward. A record at or before it is
gone for good: its own row, and all that it makes in views. What of it comes later, late or once more, is not taken.

The order in which a join looks for the *latest* match is the same. So when the latest match of a record is gone, every
older one is gone too, and the record has no match at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from livetables.model.change import TableShape
from livetables.model.joins import LEFT_ID, RIGHT_ID
from livetables.server.viewports.viewport import quoted

START = datetime(1970, 1, 1, tzinfo=UTC)
NO_RECORD = -1


class Horizon(NamedTuple):
    """The place of the newest record that is not kept: its time in ms since 1970, and its id."""

    ms: int
    row_id: int

    @property
    def time(self) -> datetime:
        return START + timedelta(milliseconds=self.ms)


Horizons = Mapping[str, Horizon]  # by source table; a table that keeps everything has none


def id_column(shape: TableShape, source: int) -> str:
    """The column with the ids of the records of a source."""
    return (LEFT_ID, RIGHT_ID)[source] if shape.join else "_id"


def is_kept(shape: TableShape, source: int, rows: pa.Table, horizons: Horizons) -> np.ndarray:
    """Whether the record of a source that each row is made of is after its horizon; a record that is missing is."""
    horizon = horizons.get(shape.sources[source])
    if horizon is None:
        return np.ones(rows.num_rows, dtype=bool)
    ids = pc.fill_null(rows[id_column(shape, source)], NO_RECORD).combine_chunks().to_numpy()
    times = pc.fill_null(rows[shape.times[source]].cast(pa.int64()), 0).combine_chunks().to_numpy()
    limit = horizon.ms * 1000
    kept: np.ndarray = (times > limit) | ((times == limit) & (ids > horizon.row_id)) | (ids < 0)
    return kept


def without(shape: TableShape, source: int, rows: pa.Table, is_without: np.ndarray) -> pa.Table:
    """The rows of a view, some without what the record of a source has brought."""
    if not is_without.any():
        return rows
    mask = pa.array(is_without)
    for name in shape.sides[source]:
        place = rows.schema.get_field_index(name)
        field = rows.schema.field(place)
        column = pc.if_else(mask, pa.scalar(None, field.type), rows[name])
        rows = rows.set_column(place, field, column)
    return rows


def gone_condition(shape: TableShape, source: int, horizon: Horizon) -> tuple[str, list[object]]:
    """SQL for the rows whose record of a source is at or before its horizon; and its parameters."""
    time, row_id = quoted(shape.times[source]), quoted(id_column(shape, source))
    limit = "CAST(? AS TIMESTAMPTZ)"
    text = horizon.time.isoformat()
    return f"({time} < {limit} OR ({time} = {limit} AND {row_id} <= ?))", [text, text, horizon.row_id]
