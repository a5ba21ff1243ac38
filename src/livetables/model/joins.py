"""The join kinds: everything that differs between them, but for the matching itself, is described here once.

A view of `inner` or `left` has a row for each pair of records. `natural` has one for each left record, `asof` one for
each right record, with the latest match of the other side: such a row is *versioned*, a later match replaces it.

The matching is Java (`Join` in `jvm/java/MatchOperator.java`), which reads the name of the kind from the plan.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

JoinType = Literal["inner", "left", "natural", "asof"]
Side = Literal["left", "right"]

# The columns of a view with the ids of the two records.
LEFT_ID, RIGHT_ID = "_left_id", "_right_id"
SIDES: tuple[Side, Side] = ("left", "right")
IDS: Mapping[Side, str] = {"left": LEFT_ID, "right": RIGHT_ID}


@dataclass(frozen=True)
class JoinKind:
    """A join kind, and how a view of it changes."""

    name: JoinType
    beginnings: tuple[str, ...]  # of the names that mean it, see `join_called`
    note: str = ""  # for a user who chooses
    # The side that has one row for each of its records, and the side of the latest match; None: a row for each pair.
    versioned: tuple[Side, Side] | None = None
    removes_unmatched: bool = False  # whether a left record has a row without a match, removed when it finds one
    has_lookback: bool = False  # whether the age of a match may be limited

    @property
    def key(self) -> tuple[str, ...]:
        """Return the columns that identify a row of the view."""
        return (IDS[self.versioned[0]],) if self.versioned else (LEFT_ID, RIGHT_ID)

    @property
    def changes_rows(self) -> bool:
        """Whether a row may be replaced or removed later: such a view needs an index."""
        return self.versioned is not None or self.removes_unmatched


INNER = JoinKind("inner", ("inner", "join"))
LEFT = JoinKind("left", ("left",), removes_unmatched=True)
NATURAL = JoinKind("natural", ("natural",), "the latest match only", versioned=("left", "right"))
ASOF = JoinKind("asof", ("asof", "aj"), "the latest match not after it", versioned=("right", "left"), has_lookback=True)

JOIN_KINDS: Mapping[JoinType, JoinKind] = {kind.name: kind for kind in (INNER, LEFT, NATURAL, ASOF)}
JOIN_TYPES: tuple[JoinType, ...] = tuple(JOIN_KINDS)
DEFAULT_JOIN = LEFT
LOOKBACK_CURE = " or ".join(f'join = "{kind.name}"' for kind in JOIN_KINDS.values() if kind.has_lookback)
OTHER_JOINS = ("leftanti", "leftsemi")  # start like one of ours and mean something else
JOIN_CURE = "use a name that begins with " + ", ".join(
    beginning for kind in JOIN_KINDS.values() for beginning in kind.beginnings
)


def join_called(name: str) -> JoinType | None:
    """Return the join that a name means, by its beginning: case, blanks, `_` and `-` do not count. None if unknown.

    `left_join`, `LEFT OUTER` and `Left-Outer-Join` are all `left`; `right_outer` is unknown.
    """
    plain = re.sub(r"[\s_-]+", "", name).lower()
    if plain.startswith(OTHER_JOINS):
        return None
    return next((kind.name for kind in JOIN_KINDS.values() if plain.startswith(kind.beginnings)), None)


def join_choices(*, with_notes: bool) -> str:
    """List all joins for a user who chooses, the default first."""
    kinds = sorted(JOIN_KINDS.values(), key=lambda kind: kind is not DEFAULT_JOIN)
    *most, last = (f"{kind.name} ({kind.note})" if kind.note and with_notes else kind.name for kind in kinds)
    return f"{', '.join(most)} or {last}"
