"""Checks, run one after the other, each within its time: what a check needs and did not get skips it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from livetables.client.local_system import LocalSystem
from livetables.config.values import Config
from livetables.jvm.gateway import Gateway
from livetables.kafka.clients import Topic
from livetables.kafka.inspection import Inspection, Sample
from livetables.model.errors import LivetablesError

State = Literal["ok", "warning", "broken", "skipped"]


@dataclass(frozen=True)
class Finding:
    """What was found; unless all is well, the cure too."""

    name: str
    state: State
    found: str
    cure: str = ""


@dataclass
class Facts:
    """What is given, and what checks have found out for those after them."""

    environ: Mapping[str, str]
    config_path: Path | None
    sample_records: int
    at_the_end: ExitStack
    config: Config | None = None
    running: LocalSystem | None = None
    gateway: Gateway | None = None
    kafka: Inspection | None = None
    topics: dict[str, Topic] = field(default_factory=dict)
    samples: dict[str, Sample] = field(default_factory=dict)
    clock_ahead_seconds: dict[str, float] = field(default_factory=dict)  # of others, by what was looked at

    @property
    def sound_config(self) -> Config:
        assert self.config, "a check that needs the configuration says so"
        return self.config

    @property
    def inspection(self) -> Inspection:
        assert self.kafka, "a check that needs Kafka says so"
        return self.kafka


@dataclass(frozen=True)
class Check:
    """A look at one thing. `waiting` is shown meanwhile."""

    name: str
    run: Callable[[Facts], Sequence[Finding]]
    waiting: str = ""
    needs: tuple[str, ...] = ()
    seconds_max: float = 15.0


def examined(checks: Sequence[Check], facts: Facts, notify: Callable[[str], None]) -> Iterator[Finding]:
    """What the checks find, as they find it. No check holds up those after it."""
    unmet: set[str] = set()
    for check in checks:
        lacking = next((need for need in check.needs if need in unmet), None)
        if lacking is not None:
            findings: Sequence[Finding] = [Finding(check.name, "skipped", f"not looked at: it needs {lacking}")]
        else:
            notify(check.waiting or f"looking at {check.name}")
            findings = _in_time(check, facts)
        if any(finding.state in ("broken", "skipped") for finding in findings):
            unmet.add(check.name)
        yield from findings


def _in_time(check: Check, facts: Facts) -> Sequence[Finding]:
    """What a check finds. One that takes too long is left behind on its thread, which ends with the process."""
    found: list[Sequence[Finding]] = []

    def run() -> None:
        try:
            found.append(check.run(facts))
        except LivetablesError as error:
            found.append([Finding(check.name, "broken", error.problem, error.cure)])
        except Exception as error:  # one check that fails must not keep the others from being reported
            why = f"could not be checked: {type(error).__name__}"
            found.append([Finding(check.name, "broken", why, "report this, with the rest of this output")])

    thread = threading.Thread(target=run, name=f"doctor-{check.name}", daemon=True)
    thread.start()
    thread.join(check.seconds_max)
    if found:
        return found[0]
    late = f"no answer within {check.seconds_max:.0f} seconds"
    return [Finding(check.name, "broken", late, "try again when this machine and its network are less busy")]
