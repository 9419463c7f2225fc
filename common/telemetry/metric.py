"""What a metric is: kind, name, help, and the values that its labels can have.

Knows no metric; common/telemetry/metrics.py names them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Labels = Mapping[str, tuple[str, ...]]
Kind = Literal["counter", "gauge", "histogram"]

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_COUNTS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)


@dataclass(frozen=True)
class Metric:
    """One family."""

    kind: Kind
    name: str  # as Prometheus shows it, a counter's _total included
    help: str
    labels: Labels  # each label's possible values; empty where they are only known later
    buckets: tuple[float, ...] = ()  # a histogram's


def counter(name: str, help: str, **labels: tuple[str, ...]) -> Metric:
    return Metric("counter", name, help, labels)


def gauge(name: str, help: str, **labels: tuple[str, ...]) -> Metric:
    return Metric("gauge", name, help, labels)


def seconds(name: str, help: str, **labels: tuple[str, ...]) -> Metric:
    return Metric("histogram", name, help, labels, _SECONDS)


def sizes(name: str, help: str, **labels: tuple[str, ...]) -> Metric:
    return Metric("histogram", name, help, labels, _COUNTS)
