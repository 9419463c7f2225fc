"""Metrics' names and labels: once each, by Prometheus' conventions, in bounded number."""

from __future__ import annotations

import math
import re

import grpc
import pytest

from common.pb import drafter_pb2, verifier_pb2
from common.rpc.calls import CallTelemetry, _error_names
from common.telemetry import metrics
from common.telemetry.metrics import ALL, Metric
from common.telemetry.registry import Registry

# What Prometheus and its operator add to every series themselves.
RESERVED = {"job", "instance", "namespace", "pod", "container", "endpoint", "service", "node", "le"}


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: metric.name)
def test_names_and_labels_follow_the_conventions(metric: Metric) -> None:
    assert re.fullmatch(r"crossdraft_[a-z]+(_[a-z]+)*", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert bool(metric.buckets) == (metric.kind == "histogram")
    assert list(metric.buckets) == sorted(metric.buckets)
    assert metric.help[0].isupper() or metric.help[0].isdigit()
    assert metric.help.endswith(".")
    assert not set(metric.labels) & RESERVED
    assert "engine" not in metric.labels or next(iter(metric.labels)) == "engine"
    for values in metric.labels.values():
        assert len(set(values)) == len(values)


def test_every_name_is_there_once() -> None:
    families = [metric.name.removesuffix("_total") for metric in ALL]
    assert len(set(families)) == len(families)


def test_series_are_bounded() -> None:
    """Labels that list their values, and those that don't: calls, by method, status and cause."""

    def series(metric: Metric) -> int:
        each = len(metric.buckets) + 3 if metric.buckets else 1  # +Inf, _sum, _count
        return each * math.prod(len(values) or 1 for values in metric.labels.values())

    for service in ("verifier", "drafter"):
        assert sum(map(series, metrics.of_service(service))) < 500
    listed = {metric.name: set(metric.labels) for metric in ALL}
    unlisted = {m.name: {k for k, v in m.labels.items() if not v} for m in ALL}
    assert {name for name, labels in unlisted.items() if labels} == {
        metrics.GRPC_CALLS.name,
        metrics.BUILD_INFO.name,
    }
    assert (
        unlisted[metrics.GRPC_CALLS.name]
        == {"status", "error"}
        < listed["crossdraft_grpc_calls_total"]
    )
    assert len(grpc.StatusCode) * len(_error_names()) < 1000


def test_what_a_foreign_verifier_calls_its_errors_makes_no_series() -> None:
    calls = CallTelemetry(registry := Registry("draft"))
    for number in range(100):
        calls._count("Generate", grpc.StatusCode.INTERNAL, f"Invented{number}")
    (family,) = (f for f in registry.collectors.collect() if f.name == "crossdraft_grpc_calls")
    assert [(s.labels["error"], s.value) for s in family.samples if s.name.endswith("_total")] == [
        ("other", 100)
    ]


def test_every_method_has_its_name() -> None:
    services = (
        drafter_pb2.DESCRIPTOR.services_by_name["DrafterService"],
        verifier_pb2.DESCRIPTOR.services_by_name["VerifierService"],
    )
    methods = [method.name for service in services for method in service.methods]
    assert set(methods) | {metrics.OTHER} == set(metrics.METHOD)
    assert len(methods) == len(set(methods))
