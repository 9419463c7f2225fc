"""bench.load.recovery: lost verifiers, pauses, and broken promises."""

from __future__ import annotations

from typing import Any

import pytest

from bench.load.recovery import Kill, prefill_s, shown, spreads
from bench.load.recovery_streams import Stream, broken, requests, resumptions
from client.client import Request
from common.telemetry.metrics import VERIFIER_STAGE
from tests.support.fake_pairs import PROMPTS, serving_pair
from tests.support.lost_verifiers import lose_once


async def test_a_streams_statistics_report_how_often_it_was_taken_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request = Request(30, prompt=PROMPTS[0], ignore_eos=True)
    async with serving_pair() as pair:
        undisturbed = await pair.client.generate(request)
        assert resumptions(undisturbed.statistics) == 0
        lose_once(monkeypatch)
        resumed = await pair.client.generate(request)
        assert resumptions(resumed.statistics) == 1
        assert resumed.token_ids == undisturbed.token_ids


def test_the_pause_is_the_longest_gap_that_ends_after_the_loss() -> None:
    times = [1.0, 4.0, 4.1, 4.2, 5.0, 5.1]
    assert Stream(times, resumed=1).pause_s(killed_s=4.15) == pytest.approx(0.8)
    assert Stream(times, resumed=1).pause_s(killed_s=3.9) == pytest.approx(3.0)
    assert Stream(times).pause_s(killed_s=4.15) is None  # the other verifier's


def test_requests_are_greedy_and_seeded_by_turns() -> None:
    asked = requests(4, 9, seed=3)
    assert [each.sampling.seed for each in asked] == [None, 3, None, 3]
    assert {each.max_new_tokens for each in asked} == {9}


def test_the_prefill_is_of_sessions_that_came_between() -> None:
    def says(prefills: int, seconds: float) -> Any:
        def read(_: object, suffix: str, stage: str, phase: str) -> float:
            assert phase == "prefill"
            return {"_count": prefills, "_sum": seconds}[suffix]

        return read

    found = prefill_s(says(4, 1.0), says(6, 1.5))
    assert found == pytest.approx(len(VERIFIER_STAGE) * 0.5 / 2)
    assert prefill_s(says(4, 1.0), says(4, 1.0)) is None


def test_pauses_are_reported_with_and_without_the_prefill() -> None:
    kills = [Kill(0.1, [], [0.3, 0.5], 0.2, 4.0), Kill(0.2, [], [], None, 5.0)]
    found = spreads(kills)
    assert found["pause of a stream"].most == pytest.approx(500)
    assert found["pause less prefill"].most == pytest.approx(300)
    assert found["prefill at the other, mean of a kill"].count == 1
    assert shown(found, "title", "caption").row_count == 4


@pytest.mark.parametrize(
    ("streams", "reported"),
    [
        ([Stream(resumed=1)], []),
        ([Stream(resumed=1), Stream(status="UNAVAILABLE")], ["1 of 2 streams were lost: UNAVAIL"]),
        ([Stream(resumed=1, changed=True)], ["1 of 1 streams gave another text"]),
        ([Stream()], ["no stream lost its verifier"]),
    ],
)
def test_what_breaks_a_promise_is_reported(streams: list[Stream], reported: list[str]) -> None:
    found = broken(streams)
    assert len(found) == len(reported)
    assert all(each.startswith(begin) for each, begin in zip(found, reported, strict=True))
