"""What a service's registry says, for tests."""

from __future__ import annotations

from common.telemetry.metrics import Metric
from common.telemetry.registry import Registry
from tests.support.fake_pairs import RunningPair


class Samples:
    """One service's."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry

    def __call__(self, metric: Metric, suffix: str = "", **labels: str) -> float:
        """The sum over all series with these labels; suffix: _sum or _count of a histogram."""
        assert set(labels) <= set(metric.labels)
        name = metric.name + suffix
        return sum(
            sample.value
            for family in self.registry.collectors.collect()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


def samples_of(pair: RunningPair) -> tuple[Samples, Samples]:
    """Verifier's and drafter's."""
    verifier, drafter = pair.verifier.engine, pair.drafter.pair.engine
    return Samples(verifier.telemetry.registry), Samples(drafter.telemetry.registry)
