"""Prometheus collectors of the metrics that common/telemetry/metrics.py names.

Knows how a name becomes something to count with, whole with every label value that it can have, so
that each series is there from the start. Does not know who counts, and who listens
(common/telemetry/listener.py). What another object knows anyway is read when somebody asks, and
costs nothing until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import product
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from common.telemetry.metrics import ENGINE, Metric

Values = tuple[str, ...]  # of a metric's labels, in their order, without the engine
Kind = TypeVar("Kind", Counter, Histogram)


class Registry:
    """One service's metrics. Several may live in one process."""

    def __init__(self, engine: str) -> None:
        """engine: the value of every label of that name here, "target" or "draft"."""
        assert engine in ENGINE
        self.engine = engine
        self.collectors = CollectorRegistry()

    def counters(self, metric: Metric) -> dict[Values, Counter]:
        """One for each combination of the labels' values."""
        made = self.open_counters(metric)
        return {values: made(values) for values in product(*self._listed(metric))}

    def counter(self, metric: Metric) -> Counter:
        """Of a metric without labels, or with none but the engine."""
        return self.counters(metric)[()]

    def open_counters(self, metric: Metric) -> Callable[[Values], Counter]:
        """For labels whose values are known only later: the caller bounds them."""
        assert metric.kind == "counter"
        family = Counter(metric.name, metric.help, list(metric.labels), registry=self.collectors)
        return lambda values: _child(family, self._whole(metric, values))

    def histograms(self, metric: Metric) -> dict[Values, Histogram]:
        assert metric.kind == "histogram"
        family = Histogram(
            metric.name,
            metric.help,
            list(metric.labels),
            registry=self.collectors,
            buckets=metric.buckets,
        )
        return {
            values: _child(family, self._whole(metric, values))
            for values in product(*self._listed(metric))
        }

    def histogram(self, metric: Metric) -> Histogram:
        return self.histograms(metric)[()]

    def read(self, metric: Metric, read: Callable[[], Mapping[Values, float]]) -> None:
        """A gauge or counter whose values `read` returns, on the listener's thread."""
        self.collectors.register(_Read(metric, read, self._whole))

    def _listed(self, metric: Metric) -> Iterable[tuple[str, ...]]:
        return [values for label, values in metric.labels.items() if label != "engine"]

    def _whole(self, metric: Metric, values: Values) -> Values:
        assert "engine" not in metric.labels or next(iter(metric.labels)) == "engine"
        return (self.engine, *values) if "engine" in metric.labels else values


class _Read(Collector):
    def __init__(
        self,
        metric: Metric,
        read: Callable[[], Mapping[Values, float]],
        whole: Callable[[Metric, Values], Values],
    ) -> None:
        self._metric, self._read, self._whole = metric, read, whole

    def describe(self) -> Iterable[Family]:
        yield self._family()

    def collect(self) -> Iterable[Family]:
        family = self._family()
        for values, value in self._read().items():
            family.add_metric(self._whole(self._metric, values), value)
        yield family

    def _family(self) -> CounterMetricFamily | GaugeMetricFamily:
        kind = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}[self._metric.kind]
        return kind(self._metric.name, self._metric.help, labels=list(self._metric.labels))


def _child(family: Kind, values: Values) -> Kind:
    return family.labels(*values) if values else family
