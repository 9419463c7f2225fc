"""What processes take and what services report, read now and then while something else is measured.

Knows processes by their ids, metrics by their names, lines through points. Does not know what
runs, and how much is too much.
"""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import psutil
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from common.telemetry.metrics import PAGES, Metric

LOOK_EVERY_S = 0.2


@dataclass(frozen=True)
class Taken:
    """By one process."""

    rss_mib: float
    descriptors: int
    threads: int


def taken(pid: int) -> Taken:
    process = psutil.Process(pid)
    memory = round(process.memory_info().rss / 2**20, 2)
    return Taken(memory, process.num_fds(), process.num_threads())


class Scrape:
    """What one service's metrics said at one time."""

    def __init__(self, url: str) -> None:
        with urllib.request.urlopen(url, timeout=20) as answer:
            text = answer.read().decode()
        self._samples: list[Sample] = [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]

    def __call__(self, metric: Metric, suffix: str = "", **labels: str) -> float:
        """The sum over all series with these labels; suffix: _sum or _count of a histogram."""
        return sum(
            sample.value
            for sample in self._samples
            if sample.name == metric.name + suffix and labels.items() <= sample.labels.items()
        )


async def scrape(url: str) -> Scrape:
    return await asyncio.to_thread(Scrape, url)


async def pages_in_use(urls: Mapping[str, str]) -> dict[str, int]:
    """By the services' names."""
    return {name: int((await scrape(url))(PAGES, state="used")) for name, url in urls.items()}


async def pages_left(urls: Mapping[str, str], settle_s: float) -> dict[str, int]:
    """Once no request runs: what is still in use after the time that ending a stream may take."""
    until = time.monotonic() + settle_s
    while True:  # nobody outside sees when a service has cleared up
        found = await pages_in_use(urls)
        if not any(found.values()) or time.monotonic() > until:
            return found
        await asyncio.sleep(LOOK_EVERY_S)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the line that fits best, by unit of the first number; 0 if there is no line."""
    if len({x for x, _ in points}) < 2:
        return 0.0
    x, y = np.array(points, dtype=np.float64).T
    return float(np.polyfit(x - x.mean(), y, 1)[0])
