"""Metrics of an engine's forward passes and pages.

Knows passes, rows, pages. Does not know rounds (verifier/telemetry.py, drafter/telemetry.py).
Called on the engine's thread, once per pass; pages and queue are read at a scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from common.kv.pages import PagePool
from common.telemetry import metrics
from common.telemetry.registry import Registry


class EngineTelemetry:
    """One engine's; the registry is its service's."""

    def __init__(
        self,
        engine: str,
        pool: PagePool,
        waiting: Callable[[], int],
        eager: Callable[[], int] = lambda: 0,
    ) -> None:
        """waiting: how many sessions have work that no finished pass has done.

        eager: how many passes fitted no CUDA graph.
        """
        self.registry = Registry(engine)
        self._seconds = self.registry.histogram(metrics.PASS_SECONDS)
        self._rows = self.registry.histogram(metrics.BATCH_ROWS)
        self._sessions = self.registry.histogram(metrics.BATCH_SESSIONS)
        self._failed = self.registry.counter(metrics.FAILED_PASSES)
        self.registry.read(metrics.EAGER_PASSES, lambda: {(): eager()})
        self.registry.read(metrics.WAITING, lambda: {(): waiting()})
        self.registry.read(metrics.PREEMPTIONS, lambda: {(): pool.preemptions})
        self.registry.read(
            metrics.PAGES, lambda: {("used",): pool.used_pages, ("free",): pool.free_pages}
        )

    def passed(self, seconds: float, rows: Sequence[int]) -> None:
        """A forward pass is done; rows: of each session that had some in it."""
        self._seconds.observe(seconds)
        self._rows.observe(sum(rows))
        self._sessions.observe(len(rows))

    def failed(self) -> None:
        """A forward pass, or what was to follow on it, raised."""
        self._failed.inc()
