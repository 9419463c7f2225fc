"""What an overload comes to: pace against that at capacity, refusals, memory, pages, and a verdict.

Knows arithmetic. Does not know how clients asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bench.load.overload_clients import Attempt
from bench.load.report import Spread
from bench.support.watching import slope

WARM_UP = 0.2  # of the overload's time that the slope of memory leaves out


@dataclass(frozen=True)
class Pace:
    """Tokens per second of each admitted stream, over all that came to their end."""

    streams: int
    p5: float  # the slowest twentieth is slower
    p50: float
    p95: float

    @classmethod
    def of(cls, attempts: Sequence[Attempt]) -> Pace:
        paces = [pace for each in attempts if (pace := each.tokens_per_s) is not None]
        if not paces:
            return cls(0, 0.0, 0.0, 0.0)
        return cls(len(paces), *(float(value) for value in np.percentile(paces, (5, 50, 95))))


@dataclass(frozen=True)
class Phase:
    """One load, all of its attempts."""

    name: str
    clients: int
    statuses: dict[str, int]
    pace: Pace
    refusals: Spread  # how long a refusal took
    without_hint: int  # of them
    failed: int  # admitted, or refused for another reason than capacity
    changed: int  # outputs that aren't the undisturbed run's

    @classmethod
    def of(cls, name: str, clients: int, attempts: Sequence[Attempt]) -> Phase:
        refused = [each for each in attempts if each.refused]
        return cls(
            name=name,
            clients=clients,
            statuses=dict(Counter(each.status for each in attempts)),
            pace=Pace.of(attempts),
            refusals=Spread.of(each.ended_s - each.began_s for each in refused),
            without_hint=sum(each.hint_s is None for each in refused),
            failed=sum(each.failed for each in attempts),
            changed=sum(each.changed for each in attempts),
        )


@dataclass(frozen=True)
class Memory:
    """Resident memory of one service during the overload."""

    first_mib: float
    last_mib: float
    most_mib: float
    mib_per_minute: float

    @classmethod
    def of(cls, points: Sequence[tuple[float, float]]) -> Memory:
        """points: (seconds, MiB)"""
        values = [mib for _, mib in points]
        begin, end = points[0][0], points[-1][0]
        later = [each for each in points if each[0] >= begin + WARM_UP * (end - begin)]
        return cls(values[0], values[-1], max(values), 60 * slope(later))


def ratio(overload: Phase, alone: Phase) -> dict[str, float]:
    """The pace under overload by that at capacity alone; 1: as fast."""
    return {
        name: getattr(overload.pace, name) / at_capacity if at_capacity else 0.0
        for name in ("p5", "p50", "p95")
        if (at_capacity := getattr(alone.pace, name)) is not None
    }


def broken(phases: Sequence[Phase], pages: Mapping[str, int]) -> list[str]:
    """Which promises weren't kept; empty if all were."""
    found = []
    for each in phases:
        scrape = f"{each.name}: {{}} of {sum(each.statuses.values())} calls {{}}"
        if each.failed:
            found.append(scrape.format(each.failed, "failed, other than refused over capacity"))
        if each.without_hint:
            found.append(scrape.format(each.without_hint, "were refused without a hint"))
        if each.changed:
            found.append(scrape.format(each.changed, "gave another text than undisturbed"))
        if not each.statuses.get("OK"):
            found.append(f"{each.name}: no stream came to its end")
    if not phases[-1].refusals.count:
        found.append(f"{phases[-1].name}: nobody was refused, so there was no overload")
    found += [
        f"{count} pages of the {name} are still in use" for name, count in pages.items() if count
    ]
    return found
