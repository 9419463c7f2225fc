"""Dashboard, alert rules and the operators' page name what exists, and all of it."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from cli.serving import SECTIONS
from common.telemetry.metrics import ALL, Metric
from tests.deploy.promql import FOREIGN, SERIES, TARGET_LABELS, named, problems

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "observability"
PAGE = (ROOT / "docs" / "observability.md").read_text(encoding="utf-8")
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
TARGETS = [(panel["title"], target) for panel in PANELS for target in panel["targets"]]
EXPRESSIONS = [
    *((f"alert {rule['alert']}", rule["expr"]) for rule in RULES),
    *((f"panel {title}", target["expr"]) for title, target in TARGETS),
]
SETTINGS = ("metrics_listen", "log_level", "log_format", "trace_endpoint", "trace_ratio")


@pytest.mark.parametrize("expression", [e for _, e in EXPRESSIONS], ids=[i for i, _ in EXPRESSIONS])
def test_every_metric_label_and_value_that_is_named_exists(expression: str) -> None:
    assert problems(expression) == []


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("crossdraft_nothing", "no metric crossdraft_nothing"),
        ("crossdraft_engine_pass_seconds", "no metric crossdraft_engine_pass_seconds"),
        ('crossdraft_drafter_rounds_total{rule="greedy"}', "has no label rule"),
        ('crossdraft_drafter_rounds_total{bridge="magic"}', "bridge is never magic"),
        ('crossdraft_drafter_rounds_total{bridge=~"text|magic"}', "bridge is never magic"),
        ("sum by (rule) (crossdraft_drafter_rounds_total)", "has no label rule"),
        ("sum by (le) (crossdraft_drafter_rounds_total)", "has no label le"),
        ("1", "names no metric"),
    ],
)
def test_what_doesnt_exist_is_found(expression: str, problem: str) -> None:
    assert any(problem in found for found in problems(expression))


def test_statuses_that_are_named_are_grpcs() -> None:
    matchers = [matcher for _, e in EXPRESSIONS for each in named(e) for matcher in each.matchers]
    values = [value for label, _, value in matchers if label == "status"]
    assert values
    for value in values:
        assert set(value.split("|")) <= {status.name for status in grpc.StatusCode}


def test_every_metric_is_on_the_dashboard() -> None:
    shown = {each.series for _, target in TARGETS for each in named(target["expr"])}
    assert {SERIES[name].name for name in shown - FOREIGN} == {metric.name for metric in ALL}
    assert shown >= FOREIGN  # what processes take


def test_the_dashboards_panels_have_places_and_sources_of_their_own() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
    for title, target in TARGETS:
        assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        kept = {label for each in named(target["expr"]) for label in each.grouped_by}
        plain = "by" not in target["expr"].split()
        for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
            assert label in kept or (plain and label in TARGET_LABELS), title
    variables = [variable["name"] for variable in DASHBOARD["templating"]["list"]]
    assert variables == ["datasource", "job"]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_rules_are_what_prometheus_takes_and_the_page_says_what_to_do(rule: dict[str, Any]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s"))
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description"}
    kept = {label for each in named(rule["expr"]) for label in each.grouped_by}
    for text in rule["annotations"].values():
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= kept
    assert f"\n### {rule['alert']}\n" in PAGE


def test_the_page_names_no_alert_that_isnt_there() -> None:
    reported = re.findall(r"^### (Crossdraft\w+)$", PAGE, flags=re.MULTILINE)
    assert reported == [rule["alert"] for rule in RULES]
    assert {"AcceptanceCollapse", "EmptyAnswers", "PageExhaustion", "DrafterDegraded"} <= {
        name.removeprefix("Crossdraft") for name in reported
    }


def line(metric: Metric) -> str:
    """The metric's line in the page's table."""
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |"


def test_the_page_has_every_metric_as_it_is() -> None:
    table = re.findall(r"^\| `crossdraft_.*$", PAGE, flags=re.MULTILINE)
    assert table == [line(metric) for metric in ALL]


@pytest.mark.parametrize("section", SECTIONS)
def test_the_page_names_the_settings_of_both_services(section: str) -> None:
    for name in SETTINGS:
        assert name in {field.name for field in dataclasses.fields(SECTIONS[section])}
        assert f"`{name}`" in PAGE
