"""bench.load: what is asked, when streams begin, what they come to, and that it all runs."""

from __future__ import annotations

import time
from itertools import islice, pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.load.__main__ import sample, shown, summary_line
from bench.load.report import Spread, report
from bench.load.streams import Load, Mix, StreamRecord, _batching_delay, _drive, _shares
from drafter.statistics import StreamStatistics
from tests.support.fake_models import paged, random_model
from tests.support.fake_services import serving_drafter, serving_verifier
from tests.support.fake_tokenizers import byte_level_tokenizer, files_of, sentencepiece_tokenizer

MIX = Mix((1, 9), (2, 7))


def record(intended: float, tokens: list[float], status: str = "OK") -> StreamRecord:
    return StreamRecord(
        intended_s=intended,
        began_s=intended + 0.5,
        ended_s=tokens[-1] if tokens else intended + 1.0,
        status=status,
        token_s=tokens,
        round_s=sorted(set(tokens)),
        rounds=max(0, len(set(tokens)) - 1),
        outside_us=(1000,) * max(0, len(set(tokens)) - 1),
        queue_us=(400,) * max(0, len(set(tokens)) - 1),
    )


def test_lengths_stay_between_their_bounds_and_are_the_same_by_seed() -> None:
    asked = list(islice(MIX.requests(0), 50))
    assert asked == list(islice(MIX.requests(0), 50))
    assert asked != list(islice(MIX.requests(1), 50))
    assert {request.max_new_tokens for request in asked} == set(range(2, 8))
    assert all(1 <= len((request.prompt or "").split(" ")) <= 9 for request in asked)


def test_open_loop_streams_begin_at_times_that_no_answer_moves() -> None:
    load = Load("", 100.0, MIX, per_s=5.0)
    times = list(_batching_delay(load, 0))
    assert times == list(_batching_delay(load, 0))
    assert all(a < b for a, b in pairwise(times))
    assert times[-1] < 100.0
    assert 400 < len(times) < 600


@pytest.mark.parametrize(("streams", "processes"), [(64, 3), (2, 5), (1, 1)])
def test_processes_share_the_streams(streams: int, processes: int) -> None:
    shares = _shares(Load("", 1.0, MIX, streams), processes)
    assert sum(share.streams for share in shares) == streams
    assert len(shares) == min(streams, processes)
    rates = _shares(Load("", 1.0, MIX, per_s=6.0), processes)
    assert sum(share.per_s for share in rates) == pytest.approx(6.0)


def test_latency_counts_from_the_intended_start_and_rates_from_the_window() -> None:
    records = [
        record(0.0, [2.0, 3.0, 3.0, 5.0]),
        record(1.0, [3.0, 4.0]),
        record(2.0, [], "RESOURCE_EXHAUSTED"),
    ]
    found = report("open", records, begin=2.0, end=4.0)
    assert found.statuses == {"OK": 2, "RESOURCE_EXHAUSTED": 1}
    assert found.errors == 1
    assert found.first_token.most == pytest.approx(2000)
    assert found.late_start.mean == pytest.approx(500)
    assert found.tokens_per_s == pytest.approx(4 / 2)  # at 3, 3, 3 and 4; the window is half open
    assert found.rounds_per_s == pytest.approx(2 / 2)  # a stream's first verdict is its prefill
    assert found.streams_per_s == pytest.approx(1 / 2)
    assert found.between_tokens.count == 4
    assert found.per_token.most == pytest.approx(1000)
    assert found.outside.p99 == pytest.approx(1.0)
    assert found.outside_without_queues.p99 == pytest.approx(0.6)


def test_a_load_without_any_answer_has_no_latency() -> None:
    found = report("closed", [record(0.0, [], "UNAVAILABLE")], 0.0, 1.0)
    assert found.first_token == Spread.of([])
    assert found.rounds_per_s == 0.0


def test_results_are_shown_and_sampled(tmp_path: Path) -> None:
    reports = [report(loop, [record(0.0, [1.0, 2.0])], 0.0, 2.0) for loop in ("closed", "open")]
    assert shown(reports, "title", "caption").row_count > 10
    assert "1 OK" in summary_line(reports[0], {"drafter": 0.5})
    sample(tmp_path / "load.png", reports, "title", "footnote")
    assert (tmp_path / "load.png").read_bytes().startswith(b"\x89PNG")


async def test_both_loops_run_against_services() -> None:
    target = paged(random_model("llama", 400))
    draft = paged(random_model("llama", 600, seed=1))
    async with (
        serving_verifier(target, files_of(byte_level_tokenizer()), pages=256) as verifier,
        serving_drafter(
            draft, files_of(sentencepiece_tokenizer()), verifier.port, pages=256
        ) as drafter,
    ):
        closed = await _drive(Load(drafter.address, 0.2, MIX, streams=3), 0, time.monotonic())
        opened = await _drive(Load(drafter.address, 0.5, MIX, per_s=20.0), 0, time.monotonic())
    assert len(closed) >= 3
    assert len(opened) == len(list(_batching_delay(Load("", 0.5, MIX, per_s=20.0), 0)))
    for each in closed + opened:
        assert each.status == "OK"
        assert each.intended_s <= each.began_s <= each.ended_s
        assert len(each.outside_us) == len(each.queue_us) == each.rounds


def test_a_rounds_time_outside_the_models_is_reported_by_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(now=10.0)
    monkeypatch.setattr("drafter.statistics.time", SimpleNamespace(monotonic=lambda: clock.now))
    told_by = StreamStatistics()
    told_by.end_round()  # prefill
    for models, queues, whole in ((0.2, 0.1, 0.5), (0.3, 0.0, 0.35)):
        told_by.rounds += 1
        told_by.stage_s["draft_model"] += models / 2
        told_by.stage_s["verifier_forward"] += models / 2
        told_by.stage_s["draft_queue"] += queues
        clock.now += whole
        told_by.end_round()
    told_by.end_round()  # a verifier was lost: a prefill, no round
    assert told_by.outside_us == [300_000, 50_000]
    assert told_by.queue_us == [100_000, 0]
