"""Where the time of a row goes: what Spark, the driver, the server and the client saw, put beside each other.

Every phase is a mean over the rows of the measured time, in milliseconds: a batch counts as often as it has rows. From
the timestamp to the batch's beginning, from there to its commit, and from there to the client, times of day were taken;
within these, what no phase accounts for is the last one's: `rest of batch` and `send`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
from rich.console import Console

MEANINGS = {
    "wait": "for the batch before it to end",
    "offsets": "asking Kafka how far its topics go",
    "planning": "of the batch, by Spark",
    "write-ahead log": "of the batch's offsets",
    "tasks": "reading, parsing, joining",
    "collect": "its planning, and Arrow to the driver's Python",
    "changelog": "rows to changes",
    "transport": "to the server, and its answer",
    "store": "the server's transaction, on disk",
    "rest of batch": "Spark's own, between the steps",
    "viewport": "the window's query, and its rows made ready",
    "send": "the patch, its frame, the socket, the client's parsing",
}
# By the names in Spark's own reports.
OFFSETS = ("latestOffset", "getOffset", "getBatch")
PLANNING = ("queryPlanning",)
LOG = ("walCommit",)
BAR_CHARACTERS = 24


def phases(
    told: Mapping[str, Any], held: Mapping[int, tuple[float, str]], *, store_ms: float, viewport_ms: float
) -> dict[str, float]:
    """The phases of what `TimedPipeline.batches` told, with the server's own figures and when a client held what."""
    reports = {report["batchId"]: report for report in told["reports"]}
    batches = [batch for batch in told["batches"] if batch["batch_id"] in reports and batch["row_id"] in held]
    rows = [batch["rows"] for batch in batches]
    found = [
        _of_batch(batch, reports[batch["batch_id"]], told["jobs"], held[batch["row_id"]][0], store_ms, viewport_ms)
        for batch in batches
    ]
    return {name: float(np.average([each[name] for each in found], weights=rows)) for name in MEANINGS}


def _of_batch(
    batch: Mapping[str, Any],
    report: Mapping[str, Any],
    jobs: Sequence[tuple[float, float]],
    held: float,
    store_ms: float,
    viewport_ms: float,
) -> dict[str, float]:
    begun = datetime.fromisoformat(report["timestamp"]).timestamp()

    def spark(names: Sequence[str]) -> float:
        return float(sum(report["durationMs"].get(name, 0) for name in names))

    collecting = batch["collected"] - batch["collect_ms"] / 1000
    tasks = sum((end - start) * 1000 for start, end in jobs if collecting - 0.001 <= start <= batch["collected"])
    found = {
        "wait": (begun - batch["sent"]) * 1000,
        "offsets": spark(OFFSETS),
        "planning": spark(PLANNING),
        "write-ahead log": spark(LOG),
        "tasks": tasks,
        "collect": batch["collect_ms"] - tasks,
        "changelog": batch["changelog_ms"],
        "transport": batch["put_ms"] - store_ms,
        "store": store_ms,
    }
    in_batch = sum(found.values()) - found["wait"]
    return found | {
        "rest of batch": (batch["committed"] - begun) * 1000 - in_batch,
        "viewport": viewport_ms,
        "send": (held - batch["committed"]) * 1000 - viewport_ms,
    }


def show_phases(console: Console, title: str, found: Mapping[str, float], mean_ms: float) -> None:
    """The phases as bars, and their sum beside the mean over all rows, which it should be near to."""
    longest = max(found.values())
    lines = [title]
    for name, meaning in MEANINGS.items():
        blocks = "█" * round(max(0.0, found[name]) / longest * BAR_CHARACTERS)
        lines.append(f"  {name:15} {found[name]:6.1f} ms  {blocks:{BAR_CHARACTERS}}  {meaning}")
    lines.append(f"  {'all of it':15} {sum(found.values()):6.1f} ms  measured: {mean_ms:.1f} ms on average")
    console.print("\n".join(lines), highlight=False, soft_wrap=True)
