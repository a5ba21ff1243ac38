"""What chaos runs count: rows that are lost, doubled or wrong, times to recover, and growth."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from tests.chaos.plot import svg
from tests.chaos.report import Injected, Report, percentile
from tests.chaos.subject import Tally, tally
from tests.chaos.usage import grown


@pytest.mark.parametrize(
    ("found", "counted"),
    [
        ([(0, 1, "a"), (0, 2, "b")], Tally()),
        ([(0, 1, "a")], Tally(lost=1)),
        ([(0, 1, "a"), (0, 2, "b"), (0, 2, "b")], Tally(doubled=1)),
        ([(0, 1, "a"), (0, 2, "c")], Tally(wrong=1)),
        ([(0, 1, "a"), (0, 2, "b"), (0, 3, "d")], Tally(wrong=1)),
        ([], Tally(lost=2)),
    ],
)
def test_rows_are_compared_by_the_records_that_they_are_of(found: list[tuple[object, ...]], counted: Tally) -> None:
    assert tally(found, [(0, 1, "a"), (0, 2, "b")], 2) == counted


def test_a_report_has_every_kind_with_its_times() -> None:
    injected = [Injected(number, "stop_server", "", 1.0, float(number)) for number in range(1, 4)]
    report = Report(7, [*injected, Injected(4, "swap", "", 1.0, 9.0)])
    assert report.as_dict()["kinds"] == {
        "stop_server": {"count": 3, "recovered_p50_seconds": 2.0, "recovered_max_seconds": 3.0},
        "swap": {"count": 1, "recovered_p50_seconds": 9.0, "recovered_max_seconds": 9.0},
    }
    assert "lost 0, doubled 0, wrong 0" in "\n".join(report.lines())
    assert report.is_clean
    assert not Report(7, violations=["a frame"]).is_clean
    assert not Report(7, tally=Tally(lost=1)).is_clean


def test_a_percentile_is_a_value_that_was_measured() -> None:
    assert (percentile([1, 2, 3, 4], 0.5), percentile([1, 2, 3, 4], 0.99), percentile([7], 0.5)) == (2, 4, 7)


def test_what_goes_up_for_good_has_grown_and_what_goes_up_and_down_has_not() -> None:
    samples = [
        {"leak_megabytes": 100.0 + 20 * n, "saw_megabytes": 100.0 + 500 * (n % 3), "flat_threads": 40.0}
        for n in range(30)
    ]
    assert grown(samples).keys() == {"leak_megabytes"}


def test_a_plot_is_a_picture_with_a_line_for_each_series() -> None:
    drawn = svg("a < b", [0, 1, 2], {"memory": {"server": [1, 2, 3], "jvm": [0, 0, 0]}, "nothing": {"p50": [0, 0, 0]}})
    root = ElementTree.fromstring(drawn)  # noqa: S314
    assert len(root.findall("{http://www.w3.org/2000/svg}polyline")) == 3
