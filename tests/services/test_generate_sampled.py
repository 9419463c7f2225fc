"""Sampled text through both services: a seed means the same text, whatever drafts there are."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from client.client import Client, Output, Request
from common.model.paged_model import PagedModel
from common.sampling.acceptance_rule import AcceptanceRule
from common.sampling.parameters import SamplingParams
from common.types import BridgeMode, Origin, Proposal
from drafter.session import SpeculativeSession
from tests.kv.preemptions import count_preemptions
from tests.support.fake_models import knowing_model
from tests.support.fake_pairs import (
    CONTEXT,
    PAIRS,
    PROMPTS,
    draft_model,
    files,
    known,
    serving_pair,
    target_model,
)
from tests.support.fake_services import serving_drafter, serving_verifier

TEXT, INTERSECTION, AUTO = BridgeMode.TEXT, BridgeMode.INTERSECTION, BridgeMode.AUTO
EOS = 0  # <|endoftext|> of the "wide" tokenizer
PENALTIES: dict[str, Any] = {
    "presence_penalty": 1.5,
    "frequency_penalty": -2.0,
    "repetition_penalty": 1.3,
}
DISTRIBUTIONS = (
    SamplingParams(temperature=1.0, seed=7),
    SamplingParams(temperature=0.7, top_p=0.9, seed=2**64 - 1),
    SamplingParams(temperature=1.5, top_k=5, min_p=0.05, seed=1, **PENALTIES),
    SamplingParams(temperature=1.0, seed=3, logit_bias=((EOS, 20.0),), min_new_tokens=6),
    SamplingParams(presence_penalty=2.0, frequency_penalty=-2.0, repetition_penalty=1.5),
)
WAYS = (
    *((1, TEXT), (2, INTERSECTION), (3, AUTO), (4, INTERSECTION)),
    *((5, INTERSECTION), (6, TEXT), (7, AUTO), (8, TEXT)),
)


@pytest.mark.long
@pytest.mark.parametrize("kind", PAIRS)
async def test_a_seed_gives_one_text_at_every_k_in_every_mode(kind: str) -> None:
    accepted = 0
    async with serving_pair(kind) as pair:
        for number, sampling in enumerate(DISTRIBUTIONS):
            prompt = PROMPTS[(2, -1)[number % 2]]
            alone = await pair.generate(prompt, draft_steps=0, sampling=sampling)
            for steps, mode in WAYS[number % 2 :: 2]:
                output = await pair.generate(
                    prompt, draft_steps=steps, bridge=mode, sampling=sampling
                )
                assert output.token_ids == alone.token_ids, (sampling, steps, mode)
                assert output.text == alone.text
                assert output.statistics.finish_reason is alone.statistics.finish_reason
                accepted += output.origins.count(Origin.DRAFT)
            rule = AcceptanceRule.GREEDY if sampling.greedy else AcceptanceRule.COUPLED
            assert alone.statistics.rule is rule
    assert accepted > 20


@pytest.mark.parametrize(
    "narrow",
    [{"temperature": 1e-6}, {"temperature": 1.5, "top_p": 0.0}, {"temperature": 1.5, "top_k": 1}],
)
async def test_a_distribution_of_one_token_is_greedy_whatever_the_rule(
    narrow: dict[str, Any],
) -> None:
    async with serving_pair("same tokenizer") as pair:
        greedy = await pair.generate(PROMPTS[0], 16, ignore_eos=True)
        for rule in (AcceptanceRule.TARGET_ONLY, AcceptanceRule.REJECTION, AcceptanceRule.COUPLED):
            seed = 5 if rule is AcceptanceRule.COUPLED else None
            output = await pair.generate(
                PROMPTS[0],
                16,
                ignore_eos=True,
                rule=rule,
                sampling=SamplingParams(seed=seed, **narrow),
            )
            assert output.token_ids == greedy.token_ids
            assert Origin.DRAFT in output.origins


async def test_filters_that_keep_everything_change_nothing() -> None:
    wide = SamplingParams(1.0, top_k=10**6, top_p=1.0, min_p=0.0, seed=2, repetition_penalty=1.0)
    async with serving_pair() as pair:
        plain = await pair.generate("x", 16, sampling=SamplingParams(1.0, seed=2))
        assert (await pair.generate("x", 16, sampling=wide)).token_ids == plain.token_ids


async def test_two_drafters_give_one_text() -> None:
    async with (
        serving_pair("same tokenizer") as pair,
        serving_drafter(
            draft_model("sentencepiece"), files("sentencepiece"), pair.verifier.port
        ) as second,
        Client(second.address) as other,
    ):
        for sampling in DISTRIBUTIONS[:3]:
            request = Request(14, prompt=PROMPTS[0], sampling=sampling, draft_steps=3)
            first, again = await asyncio.gather(
                pair.client.generate(request), other.generate(request)
            )
            alone = await pair.client.generate(replace(request, draft_steps=0))
            assert first.token_ids == again.token_ids == alone.token_ids
        await second.idle()
        second.assert_nothing_held()


@pytest.mark.long
async def test_sixteen_at_once_of_every_kind_under_pressure_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seeded beside unseeded, temperature 0 beside 1.5, top_k 1 beside top_p 0.1, preempted."""
    order = random.Random(5)
    kinds = (
        *DISTRIBUTIONS,
        SamplingParams(),
        SamplingParams(temperature=1.5, top_k=1, seed=4),
        SamplingParams(temperature=1.0, top_p=0.1, seed=4),
        SamplingParams(temperature=1.0),  # unseeded: rejection or target-only
        SamplingParams(temperature=0.8, **PENALTIES),
    )
    async with serving_pair(
        "byte fallback for byte-level",
        {"pages": CONTEXT // 4 + 3},
        pages=CONTEXT // 4 + 3,
        context=CONTEXT,
    ) as pair:
        preempted = count_preemptions(monkeypatch)
        before = "def add(left, right):\n    return left + right\n"
        requests = [
            Request(order.randint(8, 24), prompt=before + prompt, sampling=sampling)
            for sampling, prompt in zip(kinds * 2, PROMPTS * 4, strict=False)
        ]
        expected = [await pair.client.generate(replace(each, draft_steps=0)) for each in requests]
        order.shuffle(both := list(zip(requests, expected, strict=True)))
        places = asyncio.Semaphore(16)

        async def one(request: Request) -> Output:
            steps, mode = order.choice(WAYS)
            async with places:
                return await pair.client.generate(replace(request, draft_steps=steps, bridge=mode))

        outputs = await asyncio.gather(*(one(request) for request, _ in both))
        for output, (request, alone) in zip(outputs, both, strict=True):
            if request.sampling.greedy or request.sampling.seed is not None:
                assert output.token_ids == alone.token_ids
        assert preempted


@pytest.mark.long
@pytest.mark.parametrize("rule", [None, AcceptanceRule.TARGET_ONLY])
async def test_unseeded_requests_never_repeat_each_other(rule: AcceptanceRule | None) -> None:
    async with serving_pair() as pair:
        outputs = [
            await pair.generate(
                "x", 20, ignore_eos=True, rule=rule, sampling=SamplingParams(temperature=2.0)
            )
            for _ in range(6)
        ]
        assert len({output.token_ids for output in outputs}) == 6
        named = AcceptanceRule.REJECTION if rule is None else rule
        assert {output.statistics.rule for output in outputs} == {named}


@pytest.mark.parametrize("rule", [AcceptanceRule.REJECTION, AcceptanceRule.COUPLED])
async def test_a_drafter_with_the_targets_own_opinion_is_always_right(
    rule: AcceptanceRule,
) -> None:
    """Both sample from one distribution with one noise, min(1, p / q) is 1: nothing is rejected."""
    same_model = PagedModel(knowing_model(known("wide"), seed=0))
    async with (
        serving_verifier(
            target_model("wide"), files("wide"), context=CONTEXT, max_q_entries=512
        ) as verifier,
        serving_drafter(
            same_model, files("wide"), verifier.port, q_entries=512, lookup=False
        ) as drafter,
        Client(drafter.address) as client,
    ):
        for prompt, temperature in product(PROMPTS[:3], (0.7, 1.5)):
            sampling = SamplingParams(
                temperature,
                top_p=0.95,
                seed=5,
                logit_bias=((EOS, 6.0),),
                min_new_tokens=9,
                **PENALTIES,
            )
            statistics = (
                await client.generate(
                    Request(24, prompt=prompt, draft_steps=4, rule=rule, sampling=sampling)
                )
            ).statistics
            assert statistics.drafted_by_position
            # The verifier may cut a run where it ends, never before.
            accepted, rounds = sum(statistics.accepted_by_position), statistics.rounds
            assert accepted >= 4 * (rounds - 1)


@pytest.mark.long
async def test_only_rejection_sends_distributions_and_every_token_has_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In target ids, the drafted one among them, sums of float32 at one."""
    proposals: list[tuple[AcceptanceRule, Proposal]] = []
    propose = SpeculativeSession.propose

    async def noted(session: SpeculativeSession) -> Proposal:
        proposal = await propose(session)
        proposals.append((session.rule, proposal))
        return proposal

    monkeypatch.setattr(SpeculativeSession, "propose", noted)
    sampled = one_hot = 0
    async with serving_pair("byte-level for byte fallback", q_entries=16) as pair:
        for mode in (INTERSECTION, AUTO):
            for rule in (None, AcceptanceRule.TARGET_ONLY):
                sampling = SamplingParams(temperature=0.9, top_p=0.99)
                for prompt in PROMPTS[:3]:
                    await pair.generate(prompt, 20, bridge=mode, rule=rule, sampling=sampling)
        await pair.generate(PROMPTS[0], 20, bridge=TEXT, sampling=DISTRIBUTIONS[0])
    width = known("sentencepiece").width
    for rule_used, proposal in proposals:
        rows = proposal.q
        if rule_used is not AcceptanceRule.REJECTION:
            assert rows == ()
            continue
        assert len(rows) == len(proposal.token_ids)
        for row, token in zip(rows, proposal.token_ids, strict=True):
            assert len(set(row.ids)) == len(row.ids) <= 16
            assert all(0 <= id_ < width for id_ in row.ids)
            assert dict(zip(row.ids, row.probabilities, strict=True))[token] > 0
            assert abs(sum(row.probabilities) - 1) < 2**-22
            sampled += len(row.ids) > 1
            one_hot += row.probabilities == (1.0,)
    assert sampled > 20 and one_hot > 5
