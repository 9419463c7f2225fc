"""bench.load.soak: what counts as flat, and that streams which break off end no soak."""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import Any

import pytest

from bench.load.soak import Watched, as_json, one, shown, soak
from bench.load.soak_verdicts import EXPECTED, Interval, Verdict, acceptance, verdicts
from bench.support.watching import Taken
from common.errors import IncompleteStream
from tests.support.fake_pairs import serving_pair


def interval(**changes: Any) -> Interval:
    taken = {"drafter": Taken(changes.pop("rss_mib", 400.0), changes.pop("descriptors", 16), 12)}
    whole = {"committed": 240, "rounds": 100, "pages": {"drafter": 20}, "taken": taken}
    return Interval(ended=changes.pop("ended", Counter(OK=5, CANCELLED=1)), **{**whole, **changes})


def not_flat(*last: Interval, left: int = 0) -> list[Verdict]:
    """Of six intervals, the last two of which are given."""
    found = verdicts([*[interval()] * 4, *last], {"drafter": left})
    assert [each.quantity for each in found] == [
        "mean acceptance length",
        "requests that ended as they should",
        "memory of drafter, MiB",
        "descriptors of drafter",
        "pages of drafter",
        "pages of drafter at the end",
    ]
    return [each for each in found if not each.flat]


def test_what_stays_is_flat() -> None:
    assert not_flat(interval(rss_mib=410.0, pages={"drafter": 25}), interval(committed=250)) == []


@pytest.mark.parametrize(
    ("changes", "quantity", "last"),
    [
        ({"committed": 180}, "mean acceptance length", "1.800"),
        ({"rounds": 0, "committed": 0}, "mean acceptance length", "None"),
        ({"rss_mib": 430.0}, "memory of drafter, MiB", "430"),
        ({"descriptors": 30}, "descriptors of drafter", "30"),
        ({"pages": {"drafter": 60}}, "pages of drafter", "60"),
        ({"ended": Counter(INCOMPLETE=2)}, "requests that ended as they should", "4 INCOMPLETE"),
        ({"ended": Counter(OK=2, INTERNAL=1)}, "requests that ended as they should", "2 INTERNAL"),
    ],
)
def test_what_moves_is_reported(changes: dict[str, Any], quantity: str, last: str) -> None:
    (found,) = not_flat(interval(**changes), interval(**changes))
    assert found.quantity == quantity and found.last.startswith(last)
    assert shown([found], "title", "caption").row_count == 1


def test_pages_at_the_end_are_none() -> None:
    (found,) = not_flat(interval(), interval(), left=1)
    assert (found.quantity, found.last) == ("pages of drafter at the end", "1")


def test_al_is_over_all_rounds() -> None:
    assert acceptance([Interval(committed=30, rounds=10), Interval(committed=10, rounds=10)]) == 2.0
    assert as_json(interval())["mean_acceptance_length"] == 2.4


async def test_a_stream_that_breaks_off_is_counted_and_ends_nothing() -> None:
    class Client:
        async def generate(self, *_: object, **__: object) -> None:
            raise IncompleteStream("no summary")

    client: Any = Client()
    now = Interval()
    for _ in range(3):
        await one(client, random.Random(0), lambda: now)
    assert now.ended == Counter(INCOMPLETE=3)


async def test_mixed_requests_and_cancels_run_and_leave_nothing() -> None:
    """The pair checks itself that nothing is held."""
    stage = {"context": 1000, "pages": 2048}
    async with serving_pair(verifier=stage, pages=2048) as pair:
        watched = Watched(pair.drafter.address, {"this": os.getpid()}, {})
        intervals, left = await soak(watched, streams=3, minutes=0.05, every_s=0.5)
    ended = sum((each.ended for each in intervals), Counter[str]())
    assert ended["OK"] and set(ended) <= set(EXPECTED)
    assert all(each.taken["this"].descriptors for each in intervals)
    assert left == {}
