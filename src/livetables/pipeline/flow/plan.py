"""The plan of a generation for the operator and the writer, which both read as JSON.

A *scope* is a column that views join on. A record comes to the operator once for each scope of its table, together with
all records that have the same value there; its own row is emitted with the first of them. The record of a table that no
view joins comes once, with any of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa

from livetables.model.change import TableShape
from livetables.model.columns import TIMESTAMP
from livetables.model.joins import IDS, SIDES
from livetables.model.spec import (
    DEAD_LETTERS,
    OFFSET_BITS,
    GenerationSpec,
    Table,
    View,
    time_columns,
    view_columns,
)

SWEEP_SECONDS = 3600

DEAD_LETTER_SCHEMA = pa.schema(
    [
        ("_id", pa.int64()),
        ("source", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int64()),
        ("offset", pa.int64()),
        ("ts", TIMESTAMP.arrow),
        ("reason", pa.string()),
        ("raw", pa.string()),
    ]
)


def scopes(spec: GenerationSpec) -> list[str]:
    """Return all columns that views join on."""
    return list(dict.fromkeys(view.on for view in spec.views))


def scopes_of(table: Table, spec: GenerationSpec) -> list[str]:
    """Return the columns that views join a table on."""
    return list(dict.fromkeys(view.on for view in spec.views if table.name in (view.left, view.right)))


def own_scope(table: Table, spec: GenerationSpec) -> str:
    """Return the scope with which a table's own rows are emitted, and by whose marks its records are known."""
    return next(iter(scopes_of(table, spec) or scopes(spec)), "")


def shapes(spec: GenerationSpec) -> tuple[TableShape, ...]:
    """Return the tables of a generation, as readers see them."""
    return (
        *(_table_shape(table, spec) for table in spec.tables),
        *(_view_shape(view, spec) for view in spec.views),
        TableShape(DEAD_LETTERS, DEAD_LETTER_SCHEMA, ("source", "_id"), appends=True),
    )


def plan_json(spec: GenerationSpec) -> str:
    """Return the plan, as `MatchOperator` and `FrameWriter` read it."""
    names = [table.name for table in spec.tables]
    removing = [view.name for view in spec.views if view.kind.removes_unmatched]
    return json.dumps(
        {
            "offset_bits": OFFSET_BITS,
            "dead_letters": DEAD_LETTERS,
            "scopes": scopes(spec),
            # How often the operator looks at each key for records that are not kept any more; 0: all are.
            "sweep_seconds": SWEEP_SECONDS if any(table.retain for table in spec.tables) else 0,
            "tables": [
                {
                    "name": table.name,
                    "publish": table.publish,
                    "strict": table.strict,
                    "columns": [{"name": column.name, "type": column.type} for column in table.columns],
                    "scopes": [scopes(spec).index(scope) for scope in scopes_of(table, spec)],
                }
                for table in spec.tables
            ],
            "views": [
                {
                    "index": index,
                    "name": view.name,
                    "join": view.join,
                    "scope": scopes(spec).index(view.on),
                    "left": names.index(view.left),
                    "right": names.index(view.right),
                    "lookback_ms": -1 if view.lookback_seconds is None else view.lookback_seconds * 1000,
                    # By which a left record remembers in which of these views it has a match.
                    "bit": 1 << removing.index(view.name) if view.kind.removes_unmatched else 0,
                    "columns": _view_columns(view, spec),
                }
                for index, view in enumerate(spec.views)
            ],
        }
    )


def _view_columns(view: View, spec: GenerationSpec) -> list[dict[str, object]]:
    """Return where each column of a view comes from: a side's id, time or value. The key is the same on both sides."""
    tables = {"left": spec.table(view.left), "right": spec.table(view.right)}
    places = {side: _places(table) for side, table in tables.items()}
    kinds = {"_id": "i", "ts": "t"}
    return [
        {
            "name": column.name,
            "type": column.type,
            "side": column.side,
            "kind": kinds.get(column.source, "v"),
            "column": places[column.side].get(column.source, -1) if column.source not in kinds else -1,
            "other": places["right"][view.on] if column.side == "left" and column.source == view.on else -1,
        }
        for column in view_columns(view, tables["left"], tables["right"])
    ]


def _places(table: Table) -> dict[str, int]:
    return {column.name: place for place, column in enumerate(table.columns)}


def _table_shape(table: Table, spec: GenerationSpec) -> TableShape:
    columns: Sequence[tuple[str, pa.DataType]] = [(column.name, column.kind.arrow) for column in table.columns]
    return TableShape(
        table.publish,
        pa.schema([("_id", pa.int64()), *columns, ("ts", TIMESTAMP.arrow)]),
        ("_id",),
        aliases=table.aliases,
        appends=True,
        sources=(table.name,),
        scope=own_scope(table, spec),
        topic=table.topic,
        strict=table.strict,
        times=("ts",),
        retain=table.retain,
    )


def _view_shape(view: View, spec: GenerationSpec) -> TableShape:
    left, right = spec.table(view.left), spec.table(view.right)
    internal = "" if view.columns is None else "_"
    times = dict(zip(SIDES, (f"{internal}{name}" for name in time_columns(left, right)), strict=True))
    _, match = view.kind.versioned or (None, None)
    columns = view_columns(view, left, right)
    return TableShape(
        view.name,
        pa.schema([(column.name, column.kind.arrow) for column in columns]),
        view.kind.key,
        (times[match], IDS[match]) if match else (),
        view.aliases,
        appends=view.kind.versioned is None,  # a pair comes once, and a left row without one once
        sources=(left.name, right.name),
        scope=view.on,
        join=view.join,
        times=tuple(times.values()),
        # The column that is joined on has the value of whichever record is there.
        sides=tuple(
            tuple(column.name for column in columns if column.side == side and column.source != view.on)
            for side in SIDES
        ),
    )
