"""A configuration as the TOML file that gives it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from livetables.config.declarations import DAY_SECONDS, RETAIN_KEYS, TABLE_KEYS, VIEW_KEYS
from livetables.config.load import CONTROL_KEYS, GENERATIONS_KEYS, PIPELINE_KEYS, SERVER_KEYS, TABLE_SUBSECTIONS
from livetables.config.settings import REDACTED, Secret
from livetables.config.values import Config
from livetables.model.spec import Retain


def describe(config: Config) -> str:
    """The whole effective configuration as TOML, fit to be shown: secrets are redacted."""
    ignored = [f"# ignored: {', '.join(config.kafka.ignored)}"] if config.kafka.ignored else []
    lines = ["presets = []", *_toml_section("kafka", config.kafka.redacted()), *ignored]
    for table in config.spec.tables:
        columns = {column.name: column.type for column in table.columns}
        keys = {key: getattr(table, key) for key in TABLE_KEYS if key not in TABLE_SUBSECTIONS}
        lines += _toml_section(f"tables.{table.name}", keys)
        lines += _toml_section(f"tables.{table.name}.columns", columns)
        if table.retain:
            lines += _toml_section(f"tables.{table.name}.retain", _retain(table.retain))
    for view in config.spec.views:
        keys = {key: getattr(view, key) for key in VIEW_KEYS if key != "columns"}
        lines += _toml_section(f"views.{view.name}", keys)
        if view.columns is not None:
            lines += _toml_section(f"views.{view.name}.columns", dict(view.columns))
    lines += _toml_section("pipeline", {key: getattr(config.pipeline, key) for key in PIPELINE_KEYS})
    lines += _toml_section("pipeline.spark", config.pipeline.spark)
    lines += _toml_section("server", {key: getattr(config.server, key) for key in SERVER_KEYS})
    lines += _toml_section("control", {key: getattr(config.control, key) for key in CONTROL_KEYS})
    if config.control.kafka:
        lines += _toml_section("control.kafka", config.control.kafka.redacted())
    lines += _toml_section("generations", {key: getattr(config.generations, key) for key in GENERATIONS_KEYS})
    return "\n".join(lines) + "\n"


def _retain(retain: Retain) -> dict[str, int]:
    """The limits of a table as its section `retain` has them."""
    values = (retain.rows, retain.seconds and retain.seconds // DAY_SECONDS, retain.bytes and retain.bytes // 1024**2)
    return {key: value for key, value in zip(RETAIN_KEYS, values, strict=True) if value is not None}


def _toml_section(key: str, values: Mapping[str, object]) -> list[str]:
    return [
        "",
        f"[{key}]",
        *(f"{_toml_key(name)} = {_toml(value)}" for name, value in values.items() if value is not None),
    ]


def _toml_key(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else _toml(name)


def _toml(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(_toml(item) for item in value)}]"
    return json.dumps(REDACTED if isinstance(value, Secret) else value, ensure_ascii=False, default=str)
