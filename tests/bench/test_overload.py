"""bench.load.overload: what counts as refused and as failed, and when a promise is broken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.load.overload import shown
from bench.load.overload_clients import OK, REFUSED, Attempt
from bench.load.overload_report import Memory, Pace, Phase, broken, ratio
from bench.support.watching import slope

SERVED = Attempt(0.0, 3.0, token_s=[1.0, 1.0, 2.0, 3.0])
TURNED_AWAY = Attempt(0.0, 0.004, REFUSED, hint_s=1.0)
NOTHING_HELD = {"verifier": 0, "drafter": 0}


def phases(*overload: Attempt) -> list[Phase]:
    return [
        Phase.of("at capacity", 1, [SERVED]),
        Phase.of("overload", 4, [SERVED, TURNED_AWAY, *overload]),
    ]


def test_an_overload_with_hints_and_whole_streams_breaks_nothing() -> None:
    found = phases()
    assert broken(found, NOTHING_HELD) == []
    assert found[1].statuses == {OK: 1, REFUSED: 1}
    assert found[1].refusals.p99 == pytest.approx(4)
    assert found[1].pace == Pace(1, 1.5, 1.5, 1.5)
    assert ratio(found[1], found[0]) == {"p5": 1, "p50": 1, "p95": 1}
    assert shown(found, "title", "caption").row_count == 3


@pytest.mark.parametrize(
    ("attempt", "reported"),
    [
        (replace(TURNED_AWAY, hint_s=None), "1 of 3 calls were refused without a hint"),
        (replace(SERVED, status=REFUSED), "1 of 3 calls failed"),  # in its middle
        (replace(SERVED, status="UNAVAILABLE"), "1 of 3 calls failed"),
        (Attempt(0.0, 1.0, "INCOMPLETE"), "1 of 3 calls failed"),
        (replace(SERVED, changed=True), "1 of 3 calls gave another text"),
    ],
)
def test_what_breaks_a_promise_is_reported(attempt: Attempt, reported: str) -> None:
    (found,) = broken(phases(attempt), NOTHING_HELD)
    assert found.startswith("overload: ") and reported in found


def test_pages_that_stay_are_reported() -> None:
    assert broken(phases(), {"verifier": 3, "drafter": 0}) == [
        "3 pages of the verifier are still in use"
    ]


def test_without_a_refusal_or_a_whole_stream_nothing_is_shown() -> None:
    served, refused = Phase.of("overload", 1, [SERVED]), Phase.of("overload", 1, [TURNED_AWAY])
    assert broken([served], {}) == ["overload: nobody was refused, so there was no overload"]
    assert broken([refused], {}) == ["overload: no stream came to its end"]
    assert ratio(served, refused)["p50"] == 0.0


def test_memory_s_slope_leaves_the_beginning_out() -> None:
    points = [(float(second), min(120.0, 100.0 + second)) for second in range(101)]
    found = Memory.of(points)
    assert (found.first_mib, found.last_mib, found.most_mib) == (100, 120, 120)
    assert found.mib_per_minute == pytest.approx(0)
    assert Memory.of(points[:21]).mib_per_minute == pytest.approx(60)
    assert slope([(0.0, 1.0), (2.0, 5.0)]) == pytest.approx(2)
    assert slope([(1.0, 2.0)]) == slope([]) == 0
