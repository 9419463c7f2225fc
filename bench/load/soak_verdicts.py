"""Whether anything grew while mixed requests ran: the first third of the time against the last.

Knows intervals and what is flat. Does not know how they were measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from bench.support.watching import Taken

AL_CHANGE = 0.10  # requests are sampled, so that two thirds don't have the same ones
MEMORY_GROWTH = 0.05  # allocators keep what they once had; more than this is a leak
DESCRIPTOR_GROWTH = 4  # a client's new connection has some
PAGE_GROWTH, PAGES = 0.25, 8  # in use at a moment: by chance long requests or short ones
# What requests of bench/load/soak.py end with, if nothing is wrong.
EXPECTED = ("OK", "CANCELLED", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED")


@dataclass
class Interval:
    """What ended in it, and what processes took at its end."""

    minutes: float = 0.0  # since the beginning
    ended: Counter[str] = field(default_factory=Counter)
    committed: int = 0  # tokens, in rounds
    rounds: int = 0
    taken: dict[str, Taken] = field(default_factory=dict)  # by process
    pages: dict[str, int] = field(default_factory=dict)  # in use, by service


@dataclass(frozen=True)
class Verdict:
    """On one quantity."""

    quantity: str
    first: str
    last: str
    flat: bool


def verdicts(intervals: Sequence[Interval], pages_left: dict[str, int]) -> list[Verdict]:
    """One for each quantity. pages_left: in use once every request has ended.

    At least three intervals.
    """
    third = len(intervals) // 3
    assert third
    first, last = intervals[:third], intervals[-third:]
    found = [_acceptance(first, last), _ends(first, last, intervals)]
    for name in intervals[-1].taken:
        found.append(_medians(first, last, f"memory of {name}, MiB", _memory(name), _memory_limit))
        found.append(
            _medians(first, last, f"descriptors of {name}", _descriptors(name), _descriptor_limit)
        )
    for name in intervals[-1].pages:
        found.append(_medians(first, last, f"pages of {name}", _pages(name), _page_limit))
    for name, count in pages_left.items():
        found.append(Verdict(f"pages of {name} at the end", "", str(count), count == 0))
    return found


def acceptance(intervals: Iterable[Interval]) -> float | None:
    """Committed tokens per round, next token included, prefill excluded."""
    parts = list(intervals)
    rounds = sum(each.rounds for each in parts)
    return sum(each.committed for each in parts) / rounds if rounds else None


def _acceptance(first: Sequence[Interval], last: Sequence[Interval]) -> Verdict:
    before, after = acceptance(first), acceptance(last)
    if before is None or after is None:
        return Verdict("mean acceptance length", str(before), str(after), False)
    flat = abs(after - before) <= AL_CHANGE * before
    return Verdict("mean acceptance length", f"{before:.3f}", f"{after:.3f}", flat)


def _ends(
    first: Sequence[Interval], last: Sequence[Interval], intervals: Sequence[Interval]
) -> Verdict:
    """Nothing grows here, but a soak whose requests fail shows nothing."""

    def scrape(part: Sequence[Interval]) -> str:
        total = sum((each.ended for each in part), Counter[str]())
        return ", ".join(f"{count} {status}" for status, count in sorted(total.items()))

    statuses = {status for each in intervals for status in each.ended}
    flat = "OK" in statuses and statuses <= set(EXPECTED)
    return Verdict("requests that ended as they should", scrape(first), scrape(last), flat)


def _medians(
    first: Sequence[Interval],
    last: Sequence[Interval],
    quantity: str,
    read: Callable[[Interval], float],
    limit: Callable[[float], float],
) -> Verdict:
    before, after = (median(map(read, part)) for part in (first, last))
    return Verdict(quantity, f"{before:g}", f"{after:g}", after <= limit(before))


def _memory(name: str) -> Callable[[Interval], float]:
    return lambda each: each.taken[name].rss_mib


def _descriptors(name: str) -> Callable[[Interval], float]:
    return lambda each: each.taken[name].descriptors


def _pages(name: str) -> Callable[[Interval], float]:
    return lambda each: each.pages[name]


def _memory_limit(before: float) -> float:
    return before * (1 + MEMORY_GROWTH)


def _descriptor_limit(before: float) -> float:
    return before + DESCRIPTOR_GROWTH


def _page_limit(before: float) -> float:
    return before * (1 + PAGE_GROWTH) + PAGES
