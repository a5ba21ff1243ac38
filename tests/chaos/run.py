"""Faults into a running system, as planned; after each group everything must be as if nothing had happened."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

from tests.chaos.clients import Page
from tests.chaos.faults import FAULTS
from tests.chaos.plan import Group, Planned, Step
from tests.chaos.report import Injected, Report
from tests.chaos.subject import SECONDS_MAX, Subject

RECOVERED_SECONDS = 0.1  # between two looks
NEXT_RECORDS = 2


def run_faults(
    subject: Subject, groups: Sequence[Group], report: Report, notify: Callable[[str], None] = print
) -> Report:
    """Inject all groups, or stop at the first after which something is not right."""
    started = time.monotonic()
    count = sum(len(step) for group in groups for step in group)
    tally, failures = subject.settle()
    assert tally.is_clean, f"it was not well before the first fault: {tally} {failures}"
    assert not failures, f"it was not well before the first fault: {failures}"
    for group in groups:
        for step in group:
            injected, failures = run_step(subject, step)
            report.injected += injected
            report.failures += failures
            for each in injected:
                notify(
                    f"{time.monotonic() - started:6.0f} s {each.number:>4}/{count} {each.kind} ({each.detail}): "
                    f"{each.seconds:.1f} s, well after {each.recovered_seconds:.1f} s"
                )
        since = time.monotonic()
        tally, failures = subject.settle()
        report.tally += tally
        report.failures += failures
        report.violations = subject.clients.violations()
        notify(
            f"{time.monotonic() - started:6.0f} s settled in {time.monotonic() - since:.1f} s: "
            f"{report.tally}, {len(report.violations)} violations"
        )
        if not report.is_clean:
            break
    report.seconds = time.monotonic() - started
    restarts = {f"restarts of the {name}": count for name, count in subject.supervisor.restarts.items()}
    report.notes = subject.notes + Counter(restarts)
    report.records = sum(len(topic.sent) for topic in subject.system.topics.values())
    report.frames = sum(client.frames for client in subject.clients.all if isinstance(client, Page))
    return report


def run_step(subject: Subject, step: Step) -> tuple[list[Injected], list[str]]:
    """Inject faults at the same time, and wait until every record that was sent before their end is shown."""
    injected: list[Injected] = []
    failures: list[str] = []

    def inject(planned: Planned) -> None:
        started = time.monotonic()
        try:
            detail = FAULTS[planned.kind].inject(subject, random.Random(planned.seed))
        except Exception as error:
            failures.append(f"{planned}: {type(error).__name__}: {error}")
            return
        ended = time.monotonic()
        if not has_recovered(subject):
            failures.append(f"{planned}, {detail}: not every record is shown; {subject.state()}")
        recovered = time.monotonic() - ended
        injected.append(Injected(planned.number, planned.kind, detail, round(ended - started, 2), round(recovered, 2)))

    threads = [threading.Thread(target=inject, args=(each,), daemon=True) for each in step]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return injected, failures


def has_recovered(subject: Subject) -> bool:
    """Wait until every record that was sent by now is shown, and the next ones: a dead broker takes none.

    After a swap meanwhile, the records are others; after retention meanwhile, they are fewer.
    """
    pointing, deadline = subject.system.now, time.monotonic() + SECONDS_MAX
    wanted = subject.records_sent() + NEXT_RECORDS
    while (subject.asked(subject.records_shown) or 0) < wanted:
        if time.monotonic() > deadline or subject.feeder.failure:
            return False
        time.sleep(RECOVERED_SECONDS)
        wanted = min(wanted, subject.records_sent() + NEXT_RECORDS)
        if subject.system.now != pointing:
            pointing, wanted = subject.system.now, subject.records_sent()
    return True
