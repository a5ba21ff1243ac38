"""What doctor finds out about the machine."""

from __future__ import annotations

from contextlib import ExitStack
from importlib import metadata

import pytest

from livetables.doctor import machine
from livetables.doctor.check import Facts

FACTS = Facts({}, None, 0, ExitStack())


@pytest.mark.parametrize(
    ("version", "specifiers", "is_within"),
    [
        ("2.16.1", ">=2.16.1,<3", True),
        ("2.9.9", "<3,>=2.16.1", False),
        ("3.0.0", "<3,>=2.16.1", False),
        ("2.16.10", ">=2.16.2,<3", True),
        ("2.0", ">=2.0.0", True),
        ("4.3.0.dev1", "==4.3.0", True),
        ("26.0.1", "", True),
    ],
)
def test_a_version_is_in_a_range_or_not(version: str, specifiers: str, is_within: bool) -> None:
    assert machine.is_within(version, specifiers) == is_within


def test_a_package_outside_of_its_range_is_a_warning_that_names_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        metadata, "requires", lambda _: ["rich<16,>=15.0.0", "duckdb<3,>=2.0.0", "mypy; extra == 'dev'"]
    )
    monkeypatch.setattr(metadata, "version", {"rich": "14.1.0", "duckdb": "2.0.4", "livetables": "0.1.0"}.__getitem__)
    (finding,) = machine.python(FACTS)
    assert finding.state == "warning"
    assert finding.found.endswith("with rich 14.1.0 (not <16,>=15.0.0)")
