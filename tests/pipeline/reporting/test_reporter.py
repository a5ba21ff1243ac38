"""What the status tables keep of generations that have ended."""

from __future__ import annotations

from typing import Any, cast
from unittest.mock import patch

from livetables.config.load import load_config
from livetables.pipeline.reporting import reporter
from livetables.pipeline.reporting.reporter import Reporter
from livetables.pipeline.reporting.status_tables import StatusTables

SPEC = load_config(None, {}).spec
NOTHING = cast(Any, None)  # what these tests do not use


def test_the_generations_that_ended_last_stay_and_those_that_messages_name() -> None:
    tables = StatusTables(NOTHING, SPEC)
    reporting = Reporter(NOTHING, NOTHING, tables, NOTHING, NOTHING, None)
    tables.set("control_raw", {"_id": 1, "generation": "g2"})
    tables.set("generations", {"generation": "g0", "state": "kept", "retired": None})
    with patch.object(reporter, "ENDED_MAX", 3):
        for number in range(1, 11):
            name = f"g{number}"
            tables.set("generations", {"generation": name, "state": "live", "retired": None})
            reporting.ended(name, "failed" if number % 2 else "retired", None)
    assert {row["generation"] for row in tables.rows("generations")} == {"g0", "g2", "g8", "g9", "g10"}
