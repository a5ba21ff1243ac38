"""What a run has found, by kind of fault: how many, how long until everything worked again, what was lost."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.chaos.subject import Tally


@dataclass(frozen=True)
class Injected:
    """A fault that came."""

    number: int
    kind: str
    detail: str
    seconds: float  # that it lasted
    recovered_seconds: float  # until every record that was sent before its end was shown


@dataclass
class Report:
    """A run, as far as it has come."""

    seed: int
    injected: list[Injected] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    violations: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    records: int = 0
    frames: int = 0

    @property
    def is_clean(self) -> bool:
        return self.tally.is_clean and not self.violations and not self.failures

    def as_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {
            "seed": self.seed,
            "faults": len(self.injected),
            "kinds": {kind: asdict(each) for kind, each in by_kind(self.injected).items()},
            **asdict(self.tally),
            "violations": self.violations,
            "failures": self.failures,
            "notes": dict(self.notes),
            "seconds": round(self.seconds, 1),
            "records": self.records,
            "frames_checked": self.frames,
            "injected": [asdict(each) for each in self.injected],
        }

    def lines(self) -> list[str]:
        """As a table for people."""
        kinds = by_kind(self.injected)
        heading = f"{'fault':<24}{'count':>6}{'recovered, p50':>16}{'max':>9}"
        rows = [
            f"{kind:<24}{each.count:>6}{each.recovered_p50_seconds:>14.1f} s{each.recovered_max_seconds:>7.1f} s"
            for kind, each in sorted(kinds.items())
        ]
        everything = summary(self.injected)
        total = (
            f"{f'{len(kinds)} kinds':<24}{everything.count:>6}{everything.recovered_p50_seconds:>14.1f} s"
            f"{everything.recovered_max_seconds:>7.1f} s"
        )
        return [
            heading,
            *rows,
            total,
            f"lost {self.tally.lost}, doubled {self.tally.doubled}, wrong {self.tally.wrong}; "
            f"{len(self.violations)} frames or answers that nobody may see; "
            f"{self.records:,} records, {self.frames:,} frames checked, {self.seconds:.0f} s; seed {self.seed}",
            *(f"  {count} {what}" for what, count in sorted(self.notes.items())),
            *(f"VIOLATION {each}" for each in self.violations[:20]),
            *(f"FAILED {each}" for each in self.failures),
        ]


@dataclass(frozen=True)
class Summary:
    """The faults of a kind."""

    count: int
    recovered_p50_seconds: float
    recovered_max_seconds: float


def by_kind(injected: Sequence[Injected]) -> Mapping[str, Summary]:
    kinds = sorted({each.kind for each in injected})
    return {kind: summary(each for each in injected if each.kind == kind) for kind in kinds}


def summary(injected: Iterable[Injected]) -> Summary:
    seconds = sorted(each.recovered_seconds for each in injected)
    if not seconds:
        return Summary(0, 0.0, 0.0)
    return Summary(len(seconds), round(percentile(seconds, 0.5), 2), round(seconds[-1], 2))


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that so large a share of all values does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
