"""Whether the records fit the tables: the last ones of each topic, judged by the pipeline's own rules in Spark."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from pyspark.sql import SparkSession

from livetables.doctor.check import Facts, Finding, State
from livetables.doctor.kafka import samples
from livetables.formats.json import reason
from livetables.kafka.inspection import Sample
from livetables.model.errors import TopicError
from livetables.model.spec import Table
from livetables.pipeline.flow.parse import parser

SHOWN = 3
# What was found in a record may be nobody's business: its kind is enough here, and the dead letter shows the rest.
FOUND_VALUE = re.compile(r"\b(the (?:object|array|string|boolean|number)) .+?(?= does not fit|; \w+: |$)", re.DOTALL)


@dataclass(frozen=True)
class Judged:
    """What became of the records of a sample."""

    rows: int
    reasons: Counter[str]  # of dead letters
    unknown: Counter[str]  # fields that are no columns, in rows
    null_columns: tuple[str, ...]  # without a value in any row


def records(facts: Facts) -> Sequence[Finding]:
    """A finding for each table whose topic can be read."""
    sampled = samples(facts)
    facts.samples = {name: sample for name, sample in sampled.items() if isinstance(sample, Sample)}
    tables = [table for table in facts.sound_config.spec.tables if table.topic in sampled]
    if not any(sample.records for sample in facts.samples.values()):
        problems = [found for found in sampled.values() if isinstance(found, TopicError)]
        if problems:
            raise problems[0]
        return [Finding("records", "skipped", "not looked at: there are none")]
    assert facts.gateway, "a topic was sampled through it"
    spark = facts.gateway.session()
    return [
        Finding(f"records of {table.name}", "broken", found.problem, found.cure)
        if isinstance(found := sampled[table.topic], TopicError)
        else finding_of(table, judged(spark, table, found))
        for table in tables
    ]


def judged(spark: SparkSession, table: Table, sample: Sample) -> Judged:
    """What the pipeline would make of the records."""
    values = [record.value for record in sample.records]
    parsed = list(map(parser(spark, table), values))
    rows = [row for row in parsed if row]
    dead = [value for value, row in zip(values, parsed, strict=True) if not row]
    return Judged(
        rows=len(rows),
        reasons=Counter(FOUND_VALUE.sub(r"\1", reason(value, table)) for value in dead),
        unknown=Counter(name for row in rows for name in row.unknown),
        null_columns=tuple(
            column.name for column in table.columns if all(row.fields[column.name] is None for row in rows)
        ),
    )


def finding_of(table: Table, judged: Judged) -> Finding:
    """What it means: dead letters and columns without a value are worth a look, other fields are not."""
    name, dead = f"records of {table.name}", judged.reasons.total()
    if not judged.rows and not dead:
        return Finding(name, "skipped", "not looked at: there are none")
    parts = [f"of the last {judged.rows + dead:,}, {judged.rows:,} are rows"]
    cures = []
    if dead:
        parts.append(f"{dead:,} dead letters: {_counted(judged.reasons)}")
        cures.append(f"correct tables.{table.name}.columns or who writes them; table dead_letters shows each")
    if judged.rows and judged.null_columns:
        parts.append(f"without a value in any row: {', '.join(judged.null_columns)}")
        cures.append(_null_cure(table, judged))
    if judged.unknown:
        parts.append(f"fields that are no columns: {_counted(judged.unknown)}")
    state: State = "broken" if not judged.rows else "warning" if cures else "ok"
    return Finding(name, state, "; ".join(parts), "; ".join(cures))


def _null_cure(table: Table, judged: Judged) -> str:
    """The field that a column without values may stand for. Case is the most common difference."""
    fields = {field.lower(): field for field in judged.unknown}
    for column in judged.null_columns:
        if nearest := get_close_matches(column.lower(), fields, n=1):
            return f'tables.{table.name}.columns has "{column}": did you mean "{fields[nearest[0]]}"?'
    return f"leave these columns out of tables.{table.name}.columns if they never have a value"


def _counted(counter: Counter[str]) -> str:
    shown = ", ".join(f"{name} ({count:,})" for name, count in counter.most_common(SHOWN))
    return f"{shown}, and {len(counter) - SHOWN} others" if len(counter) > SHOWN else shown
