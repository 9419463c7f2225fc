"""What both services report to Prometheus agrees with what their streams report to clients."""

from __future__ import annotations

import asyncio
from itertools import product

import pytest

from client.client import Client, Request, Statistics
from common.sampling.acceptance_rule import AcceptanceRule
from common.sampling.parameters import SamplingParams
from common.telemetry import metrics
from common.telemetry.registry import Registry
from common.types import BridgeMode, FinishReason
from tests.kv.preemptions import count_preemptions
from tests.support.fake_pairs import PROMPTS, draft_model, files, serving_pair, setting
from tests.support.fake_services import serving_drafter
from tests.support.metric_samples import Samples, samples_of

MODES = {BridgeMode.TEXT: "text_rounds", BridgeMode.INTERSECTION: "intersection_rounds"}


def total(reported: list[Statistics], name: str) -> float:
    return sum(getattr(each, name) for each in reported)


def by_position(reported: list[Statistics], name: str) -> list[int]:
    longest = max(len(getattr(each, name)) for each in reported)
    padded = [[*getattr(each, name), *[0] * longest][:longest] for each in reported]
    return [sum(column) for column in zip(*padded, strict=True)]


@pytest.mark.long
async def test_metrics_are_the_sums_of_all_streams_own_statistics() -> None:
    async with serving_pair(verifier={"max_sessions": 64}, lookup=False) as pair:
        sampled = SamplingParams(temperature=0.9, seed=3)
        ways = product((0, 1, 4, 8), BridgeMode, (SamplingParams(), sampled), PROMPTS[:2])
        outputs = await asyncio.gather(
            *(
                pair.generate(prompt, 11, draft_steps=steps, bridge=mode, sampling=sampling)
                for steps, mode, sampling, prompt in ways
            )
        )
        reported = [output.statistics for output in outputs]
        verifier, drafter = samples_of(pair)
        rounds = total(reported, "rounds")
        assert rounds > 100
        assert drafter(metrics.DRAFTED_ROUNDS) == verifier(metrics.ROUNDS) == rounds
        for mode, name in MODES.items():
            assert drafter(metrics.DRAFTED_ROUNDS, bridge=mode.value) == total(reported, name) > 0
        committed = sum(round(each.mean_acceptance_length * each.rounds) for each in reported)
        assert drafter(metrics.DRAFTED_COMMITTED) == verifier(metrics.COMMITTED) == committed
        for metric, name in (
            (metrics.DRAFTED_BY_POSITION, "drafted_by_position"),
            (metrics.ACCEPTED_BY_POSITION, "accepted_by_position"),
        ):
            for place, count in enumerate(by_position(reported, name), start=1):
                assert drafter(metric, position=str(place)) == count
        assert drafter(metrics.ACCEPTED_BY_POSITION) == verifier(metrics.ACCEPTED) > 20
        assert drafter(metrics.DRAFTED_BY_POSITION) == verifier(metrics.DRAFT_TOKENS)
        for stage in metrics.DRAFTER_STAGE:
            seconds = sum(each.stage_s[stage] for each in reported)
            in_microseconds = pytest.approx(seconds, abs=1e-6 * len(reported))
            assert drafter(metrics.DRAFTER_SECONDS, stage=stage) == in_microseconds
        assert drafter(metrics.WIRE_BYTES) == total(reported, "wire_bytes")
        assert drafter(metrics.OUTPUT_TOKENS) == total(reported, "output_tokens")
        assert drafter(metrics.PROMPT_TOKENS) == total(reported, "prompt_tokens")
        assert verifier(metrics.PREFILL_TOKENS) == total(reported, "prompt_tokens")
        assert drafter(metrics.ANSWERS) == len(reported) == verifier(metrics.PREFILLS)
        for reason in FinishReason:
            ended = [each for each in reported if each.finish_reason is reason]
            assert drafter(metrics.ANSWERS, finish_reason=reason.value) == len(ended)
        waits = sum(each.time_to_first_token_s for each in reported)
        assert drafter(metrics.FIRST_TOKEN_SECONDS, "_sum") == pytest.approx(
            waits, abs=1e-6 * len(reported)
        )
        assert drafter(metrics.ROUND_SECONDS, "_count") == rounds
        for rule in AcceptanceRule:
            used = [each for each in reported if each.rule is rule]
            assert verifier(metrics.ROUNDS, rule=rule.label) == total(used, "rounds")


async def test_rounds_of_a_stream_that_is_cancelled_are_counted_and_its_call_too() -> None:
    async with serving_pair() as pair:
        verifier, drafter = samples_of(pair)
        begun = asyncio.Event()
        request = Request(100, prompt="x", ignore_eos=True, draft_steps=0)
        seen = 0

        def delta(_: object) -> None:
            nonlocal seen
            seen += 1
            if seen > 3:
                begun.set()

        stream = asyncio.create_task(pair.client.generate(request, delta))
        await begun.wait()
        assert drafter(metrics.STREAMS) == verifier(metrics.SESSIONS) == 1
        assert verifier(metrics.GRPC_PEERS) == drafter(metrics.GRPC_PEERS) == 1
        assert verifier(metrics.GRPC_CALLS_NOW, method="Verify") == 1
        assert verifier(metrics.PAGES, state="used") > 0
        stream.cancel()
        await asyncio.gather(stream, return_exceptions=True)
        await pair.assert_nothing_held()
        cancelled = {"method": "Generate", "status": "CANCELLED", "error": "none"}
        assert drafter(metrics.GRPC_CALLS, **cancelled) == 1
        assert verifier(metrics.ROUNDS) >= drafter(metrics.DRAFTED_ROUNDS, bridge="none") >= 3
        for gauge in (metrics.STREAMS, metrics.GRPC_PEERS, metrics.GRPC_CALLS_NOW):
            assert drafter(gauge) == 0
        for gauge in (metrics.SESSIONS, metrics.WAITING, metrics.GRPC_PEERS):
            assert verifier(gauge) == 0
        for samples in (verifier, drafter):
            pages = (samples(metrics.PAGES, state="used"), samples(metrics.PAGES, state="free"))
            assert pages == (0, 64)


async def test_a_peer_is_a_connection_however_many_its_streams() -> None:
    async with (
        serving_pair("same tokenizer") as pair,
        serving_drafter(draft_model("narrow"), files("narrow"), pair.verifier.port) as second,
        Client(second.address) as other,
    ):
        verifier, _ = samples_of(pair)
        request = Request(60, prompt="x", ignore_eos=True, draft_steps=0)
        begun = [asyncio.Event() for _ in range(4)]
        streams = [
            asyncio.create_task(client.generate(request, setting(each)))
            for client, each in zip((pair.client, pair.client, other, other), begun, strict=True)
        ]
        await asyncio.gather(*(each.wait() for each in begun))
        assert verifier(metrics.GRPC_CALLS_NOW, method="Verify") == 4
        assert verifier(metrics.GRPC_PEERS) == 2
        await asyncio.gather(*streams)
        await second.idle()


async def test_preemptions_passes_and_batches_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    preempted = count_preemptions(monkeypatch)
    async with serving_pair(verifier={"pages": 33}) as pair:
        verifier, drafter = samples_of(pair)
        before = "def add(left, right):\n    return left + right\n"
        await asyncio.gather(
            *(pair.generate(before + prompt, 30, ignore_eos=True) for prompt in PROMPTS)
        )
        pool = pair.verifier.engine.pool
        of_target = [sequence for sequence in preempted if sequence.table._pool is pool]
        assert verifier(metrics.PREEMPTIONS, engine="target") == len(of_target) > 0
        for samples in (verifier, drafter):
            passes = samples(metrics.PASS_SECONDS, "_count")
            assert passes == samples(metrics.BATCH_ROWS, "_count") > 0
            assert samples(metrics.BATCH_ROWS, "_sum") >= samples(metrics.BATCH_SESSIONS, "_sum")
            assert samples(metrics.BATCH_SESSIONS, "_sum") > passes


async def test_tokens_further_back_than_positions_reach_are_counted_together() -> None:
    async with serving_pair(
        "same tokenizer", {"max_draft_tokens": 24}, max_draft_steps=24, lookup=False
    ) as pair:
        _, drafter = samples_of(pair)
        output = await pair.generate("x", 40, draft_steps=24, ignore_eos=True)
        drafted = output.statistics.drafted_by_position
        assert len(drafted) > metrics.MAX_POSITION
        further = sum(drafted[metrics.MAX_POSITION :])
        assert drafter(metrics.DRAFTED_BY_POSITION, position=metrics.OTHER) == further
        assert drafter(metrics.DRAFTED_BY_POSITION) == sum(drafted)


def test_samples_sum_over_what_isnt_asked_for() -> None:
    registry = Registry("target")
    counters = registry.counters(metrics.ROUNDS)
    counters["greedy",].inc(2)
    counters["target_only",].inc()
    samples = Samples(registry)
    assert (samples(metrics.ROUNDS), samples(metrics.ROUNDS, rule="greedy")) == (3, 2)
