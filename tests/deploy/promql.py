"""What a PromQL expression names: metrics with their matchers, and the labels that it groups by."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import promql_parser

from common.telemetry.metrics import ALL, Metric

TARGET_LABELS = {"job", "instance"}  # of every series in Prometheus
FOREIGN = {"process_resident_memory_bytes", "process_open_fds"}  # prometheus_client's own
_SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",), "gauge": ("",)}
SERIES = {metric.name + suffix: metric for metric in ALL for suffix in _SUFFIXES[metric.kind]}


@dataclass(frozen=True)
class Named:
    """One selector of an expression, and what is grouped by around it."""

    series: str
    matchers: tuple[tuple[str, str, str], ...]  # label, operator, value
    grouped_by: tuple[str, ...]


def named(expression: str) -> list[Named]:
    """Raises ValueError if it isn't PromQL. Grafana's variables get values."""
    plain = expression.replace("$__rate_interval", "5m").replace("$job", ".*")
    return list(_walk(promql_parser.parse(plain), ()))


def _walk(node: object, grouped_by: tuple[str, ...]) -> Iterator[Named]:
    if isinstance(node, promql_parser.MatrixSelector):
        yield from _walk(node.vector_selector, grouped_by)
        return
    if isinstance(node, promql_parser.VectorSelector):
        assert node.name is not None, "a selector names its metric"
        found = [(m.name, str(m.op), m.value) for m in node.matchers.matchers]
        yield Named(node.name, tuple(found), grouped_by)
        return
    if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
        assert node.modifier.type == promql_parser.AggModifierType.By, "say what is kept"
        grouped_by = (*grouped_by, *node.modifier.labels)
    for name in ("lhs", "rhs", "expr"):
        if hasattr(node, name):
            yield from _walk(getattr(node, name), grouped_by)
    for argument in getattr(node, "args", ()):
        yield from _walk(argument, grouped_by)


def problems(expression: str) -> list[str]:
    """Why the expression can't show anything; empty if it can."""
    found = []
    selectors = named(expression)
    if not selectors:
        found.append("it names no metric")
    for each in selectors:
        if each.series in FOREIGN:
            continue
        metric = SERIES.get(each.series)
        if metric is None:
            found.append(f"no metric {each.series}")
            continue
        known = {*metric.labels, *TARGET_LABELS}
        if each.series.endswith("_bucket"):
            known.add("le")
        found += [
            f"{each.series} has no label {label}" for label in each.grouped_by if label not in known
        ]
        for label, operator, value in each.matchers:
            found += _mismatch(metric, label, operator, value)
    return found


def _mismatch(metric: Metric, label: str, operator: str, value: str) -> list[str]:
    if label in TARGET_LABELS:
        return []
    if label not in metric.labels:
        return [f"{metric.name} has no label {label}"]
    possible = metric.labels[label]
    if not possible:  # known only at run time; a test of its own looks at statuses
        return []
    values = value.split("|") if "Re" in operator else [value]
    return [
        f"{metric.name}'s {label} is never {each}"
        for each in values
        if not any(re.fullmatch(each, one) for one in possible)
    ]
