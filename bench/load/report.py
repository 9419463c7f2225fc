"""What a load comes to: rates in a window, percentiles of latencies, errors by status.

Knows arithmetic. Does not know how streams were run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from bench.load.streams import StreamRecord

PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class Spread:
    """One latency over all its occurrences, in milliseconds."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    most: float

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Spread:
        values = np.fromiter(seconds, dtype=np.float64) * 1e3
        if not len(values):
            return cls(0, 0.0, 0.0, 0.0, 0.0, 0.0)
        p50, p95, p99 = (float(value) for value in np.percentile(values, PERCENTILES))
        return cls(len(values), float(values.mean()), p50, p95, p99, float(values.max()))


@dataclass(frozen=True)
class Report:
    """One load. Rates are counted in a window in which everything ran, latencies over all streams.

    Open loop: time to first token and whole streams count from the intended start.
    """

    loop: str
    streams: int
    statuses: dict[str, int]
    window_s: float
    rounds_per_s: float  # prefills left out
    tokens_per_s: float
    streams_per_s: float  # that ended
    rounds_per_stream: float
    first_token: Spread
    between_tokens: Spread  # zero within what one verdict commits
    between_rounds: Spread  # as the client sees verdicts come
    per_token: Spread  # by stream: from first token to last, by tokens after the first
    whole: Spread
    late_start: Spread  # from the intended start to the real one: the client's own share
    outside: Spread  # by round, as the drafter reports: outside the models' passes, queues included
    outside_without_queues: Spread

    @property
    def errors(self) -> int:
        return self.streams - self.statuses.get("OK", 0)


def report(loop: str, records: Sequence[StreamRecord], begin: float, end: float) -> Report:
    """begin, end: the window for rates."""
    fine = [record for record in records if record.status == "OK"]
    seen = [record for record in records if record.token_s]
    window = max(end - begin, 1e-9)

    def within(times: Iterable[float]) -> int:
        return sum(begin < at <= end for at in times)

    return Report(
        loop=loop,
        streams=len(records),
        statuses=dict(Counter(record.status for record in records)),
        window_s=window,
        rounds_per_s=sum(within(record.round_s[1:]) for record in seen) / window,
        tokens_per_s=sum(within(record.token_s) for record in seen) / window,
        streams_per_s=within(record.ended_s for record in fine) / window,
        rounds_per_stream=sum(record.rounds for record in fine) / max(len(fine), 1),
        first_token=Spread.of(record.token_s[0] - record.intended_s for record in seen),
        between_tokens=Spread.of(b - a for record in seen for a, b in pairwise(record.token_s)),
        between_rounds=Spread.of(b - a for record in seen for a, b in pairwise(record.round_s)),
        per_token=Spread.of(
            (record.token_s[-1] - record.token_s[0]) / (len(record.token_s) - 1)
            for record in fine
            if len(record.token_s) > 1
        ),
        whole=Spread.of(record.ended_s - record.intended_s for record in fine),
        late_start=Spread.of(record.began_s - record.intended_s for record in records),
        outside=Spread.of(us / 1e6 for record in fine for us in record.outside_us),
        outside_without_queues=Spread.of(
            (us - queue) / 1e6
            for record in fine
            for us, queue in zip(record.outside_us, record.queue_us, strict=True)
        ),
    )
