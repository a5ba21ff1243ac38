"""The files for Prometheus and Grafana: whatever they ask for is there, in a server that has served."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client.parser import text_string_to_metric_families

from tests.server.health.test_metrics import fed, read
from tests.support.frames import SHAPES, Operator, Record, marks_of, part
from tests.support.server import ServerProcess

DEPLOY = Path(__file__).parents[2] / "deploy"
WORDS = {"by", "without", "on", "ignoring", "and", "or", "unless", "bool", "offset", "group_left", "group_right"}
FROM_PROMETHEUS = {"up"}  # what it has of every server by itself


def metric_names(expression: str) -> set[str]:
    """The metrics in a PromQL expression: the names that are no function, no word of the language, and no label."""
    bare = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^\]]*\]', " ", re.sub(r'"(?:[^"\\]|\\.)*"', '""', expression))
    bare = re.sub(r"\b(by|without|on|ignoring)\s*\([^)]*\)", " ", bare)
    return set(re.findall(r"(?<![\w$.])[a-zA-Z_:][\w:]*\b(?!\s*\()", bare)) - WORDS


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ('sum by (le, table) (rate(a_b{x=~"y|z", w="}"}[5m])) / 2 > 1e3', {"a_b"}),
        (
            "histogram_quantile(0.5, sum by (le)(rate(a_bucket[$__rate_interval]))) and on (job) time() - b:c",
            {"a_bucket", "b:c"},
        ),
        ("no_such_metric or sum(other)", {"no_such_metric", "other"}),
    ],
)
def test_metric_names_are_found(expression: str, names: set[str]) -> None:
    assert metric_names(expression) == names


def dashboard() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    return document


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def framed(server: ServerProcess) -> None:
    """A published generation with a frame of the pipeline's writers."""
    sink = server.sink()
    sink.begin("framed", SHAPES)
    sink.publish("framed")
    sink.close()
    record = Record("users", 0, 1, "a", 1)
    server.send_frame(part(Operator().process(record), marks_of([record]), generation="framed"))


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names of all samples of a server that was fed and read."""
    with ServerProcess(tmp_path_factory.mktemp("server")) as server:
        framed(server)
        fed(server)
        read(server)
        families = list(text_string_to_metric_families(server.get("/metrics")))
    return {sample.name for family in families for sample in family.samples}


def test_every_metric_of_the_dashboard_is_exposed(exposed: set[str]) -> None:
    asked = {name for panel in panels() for target in panel["targets"] for name in metric_names(target["expr"])}
    variables = [each["definition"] for each in dashboard()["templating"]["list"] if each["type"] == "query"]
    asked |= {name for text in variables for name in re.findall(r"label_values\((\w+)", text)}
    assert asked - exposed == set()
    assert len(asked) > 25


def test_every_metric_of_the_alerts_is_exposed(exposed: set[str]) -> None:
    asked = {name for alert in alerts() for name in metric_names(alert["expr"])}
    assert asked - exposed == FROM_PROMETHEUS


def test_every_metric_of_ours_is_in_the_dashboard(exposed: set[str]) -> None:
    asked = {name for panel in panels() for target in panel["targets"] for name in metric_names(target["expr"])}

    def family(name: str) -> str:
        return re.sub("_(bucket|sum|count)$", "", name)

    ours = {family(name) for name in exposed if name.startswith("livetables_")}
    assert ours - {family(name) for name in asked} == set()


def test_the_dashboard_can_be_imported_with_any_datasource() -> None:
    assert dashboard()["templating"]["list"][0]["type"] == "datasource"
    for panel in panels():
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        for each in (panel, *panel["targets"]):
            assert each["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(ids) == len(set(ids))


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert taken.isdisjoint(cells)
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_prometheus_brings_the_key_from_a_file_and_reads_the_alerts() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    assert [(DEPLOY / name).exists() for name in config["rule_files"]] == [True]
    (scrape,) = config["scrape_configs"]
    assert scrape["job_name"] == "livetables"  # as the alerts call it
    assert scrape["authorization"] == {"type": "Bearer", "credentials_file": "livetables.key"}


def test_every_alert_says_how_bad_it_is_and_what_to_do() -> None:
    for alert in alerts():
        assert alert["labels"]["severity"] in ("warning", "critical")
        assert set(alert["annotations"]) == {"summary", "description"}
