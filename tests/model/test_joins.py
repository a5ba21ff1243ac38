"""The join kinds: the names that mean them, and how views of them change."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

import livetables
from livetables.model.joins import JOIN_CURE, JOIN_KINDS, JoinType, join_called, join_choices

JAVA = Path(livetables.__file__).parent / "jvm" / "java" / "MatchOperator.java"


def test_every_join_type_has_a_kind_of_its_name() -> None:
    assert tuple(JOIN_KINDS) == get_args(JoinType)
    assert [kind.name for kind in JOIN_KINDS.values()] == list(JOIN_KINDS)


def test_java_matches_the_same_joins() -> None:
    (names,) = re.findall(r"enum Join \{([^}]*)\}", JAVA.read_text())
    assert [name.strip().lower() for name in names.split(",")] == list(JOIN_KINDS)


@pytest.mark.parametrize(
    ("name", "join"),
    [
        ("inner", "inner"),
        ("JOIN", "inner"),
        ("left_join", "left"),
        ("Left-Outer-Join", "left"),
        ("natural join", "natural"),
        ("as_of", "asof"),
        ("aj", "asof"),
        ("left anti", None),
        ("right_outer", None),
        ("", None),
    ],
)
def test_a_name_means_a_join_by_its_beginning(name: str, join: JoinType | None) -> None:
    assert join_called(name) == join


def test_the_cure_lists_every_beginning() -> None:
    assert JOIN_CURE == "use a name that begins with inner, join, left, natural, asof, aj"


def test_the_choices_begin_with_the_default() -> None:
    assert join_choices(with_notes=False) == "left, inner, natural or asof"
    assert join_choices(with_notes=True) == (
        "left, inner, natural (the latest match only) or asof (the latest match not after it)"
    )


@pytest.mark.parametrize(
    ("join", "key", "changes_rows"),
    [
        ("inner", ("_left_id", "_right_id"), False),
        ("left", ("_left_id", "_right_id"), True),
        ("natural", ("_left_id",), True),
        ("asof", ("_right_id",), True),
    ],
)
def test_the_key_and_the_changes_of_a_view_follow_from_its_join(
    join: JoinType, key: tuple[str, ...], changes_rows: bool
) -> None:
    kind = JOIN_KINDS[join]
    assert (kind.key, kind.changes_rows) == (key, changes_rows)
