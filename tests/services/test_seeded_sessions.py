"""A seed means something: the same tokens whatever drafts, runs beside, or happens on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from common.sampling.acceptance_rule import AcceptanceRule
from common.types import OpenSession, Proposal
from common.wire.verify import verdict_from_pb, verify_once_to_pb
from tests.kv.preemptions import count_preemptions
from tests.statistics.sampled_sessions import (
    COUPLED,
    FAVOURED,
    GREEDY,
    REJECTION,
    TARGET_ONLY,
    Drafts,
    Run,
    any_tokens,
    changing,
    distributions,
    half_right,
    nothing,
    right,
    run,
    sampled,
    wrong,
)
from tests.support.fake_services import RunningVerifier
from tests.support.verifier_sessions import CONTEXT, PROMPT, serving
from tests.support.verify_streams import Stream


@pytest.mark.parametrize(
    ("params", "ks"),
    [
        ({}, range(1, 9)),
        ({"temperature": 0.7, "top_p": 0.9}, range(1, 9)),
        ({"temperature": 1.5}, (1, 8)),
        ({"top_k": 5, "min_p": 0.05}, (3,)),
        ({"temperature": 1e-6, "top_k": 10**9, "top_p": 0.0}, (4,)),
        ({"seed": 2**64 - 1, "top_p": 1.0, "top_k": 1}, (5,)),
    ],
)
async def test_drafts_do_not_change_what_a_seed_gives(params: dict[str, Any], ks) -> None:
    async with serving() as verifier:
        spec = sampled(verifier, max_new_tokens=12, **params)
        truth = (await run(verifier, spec)).tokens
        assert (await run(verifier, spec)).tokens == truth
        for k in ks:
            for drafts in (right(truth, k), wrong(truth, k), any_tokens(k), half_right(truth, k)):
                assert (await run(verifier, spec, drafts)).tokens == truth


async def test_right_drafts_are_accepted_and_wrong_ones_are_not() -> None:
    async with serving() as verifier:
        spec = sampled(verifier, max_new_tokens=13)
        truth = (await run(verifier, spec)).tokens
        assert (await run(verifier, spec, right(truth, 3))).accepted == [3, 3, 3]
        assert not any((await run(verifier, spec, wrong(truth, 3))).accepted)


async def test_another_seed_gives_another_text() -> None:
    async with serving() as verifier:
        runs = [await run(verifier, sampled(verifier, seed=seed)) for seed in (0, 1, 2**63)]
        assert len({tuple(each.tokens) for each in runs}) == 3


async def test_sessions_without_a_seed_never_repeat_each_other() -> None:
    async with serving() as verifier:
        for rule in (TARGET_ONLY, REJECTION):
            spec = sampled(verifier, rule)
            runs = await asyncio.gather(*(run(verifier, spec) for _ in range(8)))
            assert len({tuple(each.tokens) for each in runs}) == 8


@pytest.mark.parametrize("rule", [TARGET_ONLY, REJECTION, COUPLED])
async def test_a_round_without_drafts_consumes_nothing(rule) -> None:
    """Each token of a seeded session is the one that a stateless round gives at its place."""
    async with serving() as verifier:
        truth = (await run(verifier, sampled(verifier, rule, seed=5))).tokens
        for length, token in enumerate(truth):
            spec = sampled(verifier, rule, (*PROMPT, *truth[:length]), seed=5)
            answer = await verifier.stub.VerifyOnce(verify_once_to_pb(spec, ()))
            assert verdict_from_pb(answer.verdict).next_token == token


def mixed(verifier: RunningVerifier) -> list[OpenSession]:
    """16 requests that want everything different; every one gives the same tokens each time."""
    prompts = [[3 + (7 * i + place) % 300 for place in range(5 + 3 * i)] for i in range(16)]
    asked: list[tuple[AcceptanceRule, dict[str, Any]]] = [
        (COUPLED, {"temperature": 1.5}),
        (GREEDY, {}),
        (TARGET_ONLY, {"seed": 3}),
        (COUPLED, {"top_k": 1}),
        (COUPLED, {"top_p": 0.1}),
        (REJECTION, {"seed": 4}),
        (COUPLED, {"frequency_penalty": 1.0, "logprobs": 2}),
        (GREEDY, {"presence_penalty": -2.0}),
        (REJECTION, {"seed": 5, "temperature": 1.5, "top_k": 50}),
        (COUPLED, {"temperature": 0.7, "top_p": 0.9, "min_p": 0.01}),
        (GREEDY, {"logprobs": 0}),
        (TARGET_ONLY, {"seed": 6, "repetition_penalty": 1.3}),
        (COUPLED, {"logit_bias": ((9, 5.0), (11, -100.0))}),
        (REJECTION, {"seed": 8, "top_p": 0.9, "presence_penalty": 1.5}),
        (COUPLED, {"seed": 8}),
        (GREEDY, {"temperature": 0.0, "seed": 8, "repetition_penalty": 1.2}),
    ]
    return [
        sampled(verifier, rule, prompt, 8 + i % 5, **params)
        for i, (prompt, (rule, params)) in enumerate(zip(prompts, asked, strict=True))
    ]


async def changing_drafts(verifier: RunningVerifier, specs: list[OpenSession]) -> list[Drafts]:
    """Of every worth, for each."""
    return [changing((await run(verifier, spec)).tokens) for spec in specs]


async def alone_and_together(
    verifier: RunningVerifier,
    specs: list[OpenSession],
    drafts: list[Drafts],
    others: Sequence[OpenSession] = (),
) -> tuple[list[Run], list[Run], list[Run]]:
    """(each alone, the same at once, the others beside them)."""
    alone = [await run(verifier, spec, own) for spec, own in zip(specs, drafts, strict=True)]
    opened = asyncio.Barrier(len(specs))
    runs = await asyncio.gather(
        *(run(verifier, spec, own, opened) for spec, own in zip(specs, drafts, strict=True)),
        *(run(verifier, spec, any_tokens(4, i)) for i, spec in enumerate(others)),
    )
    return alone, runs[: len(specs)], runs[len(specs) :]


async def test_among_mixed_requests_everyone_gets_what_it_gets_alone() -> None:
    async with serving(pages=512, max_batch_tokens=64, max_sessions=24) as verifier:
        specs, unseeded = mixed(verifier), sampled(verifier, TARGET_ONLY, temperature=1.3)
        drafts = await changing_drafts(verifier, specs)
        made = await alone_and_together(verifier, specs, drafts, [unseeded] * 3)
        alone, together, others = made
        assert together == alone
        assert len({tuple(each.tokens) for each in others}) == 3


@pytest.mark.long
async def test_preemption_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(pages=CONTEXT // 4 + 12, max_batch_tokens=64) as verifier:
        specs = mixed(verifier)
        assert sum(len(spec.prompt) for spec in specs) > verifier.engine.pool.capacity_tokens
        drafts = await changing_drafts(verifier, specs)
        preempted = count_preemptions(monkeypatch)
        alone, together, _ = await alone_and_together(verifier, specs, drafts)
        assert together == alone
        assert preempted


@pytest.mark.long
async def test_drafts_do_not_change_what_any_of_the_mixed_requests_gets() -> None:
    """Tokens and log-probabilities, wherever the rule lets nothing depend on drafts."""
    async with serving(pages=512) as verifier:
        for spec in mixed(verifier):
            if spec.rule in (GREEDY, COUPLED):
                first = await run(verifier, spec)
                drafted = await run(verifier, spec, changing(first.tokens))
                assert (drafted.tokens, drafted.logprobs) == (first.tokens, first.logprobs)


@pytest.mark.long
@pytest.mark.parametrize("rule", [GREEDY, TARGET_ONLY, REJECTION, COUPLED])
async def test_a_session_that_is_reopened_anywhere_goes_on_as_it_would_have(rule) -> None:
    params: dict[str, Any] = {
        "presence_penalty": 0.8,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.2,
        "min_new_tokens": 9,
        "logprobs": 1,
        **({} if rule is GREEDY else {"seed": 11}),
    }
    async with serving() as verifier:
        whole = await run(verifier, sampled(verifier, rule, max_new_tokens=12, **params))
        for done in range(12):
            spec = sampled(
                verifier,
                rule,
                (*PROMPT, *whole.tokens[:done]),
                12 - done,
                resumed_output_tokens=done,
                **params,
            )
            left = whole.tokens[done:]
            for drafts in (nothing, *([right(left, 3)] if rule in (GREEDY, COUPLED) else [])):
                again = await run(verifier, spec, drafts)
                assert again.tokens == left
                assert again.logprobs == whole.logprobs[done:]


async def test_sessions_that_finish_at_different_rounds_keep_their_own_q() -> None:
    """One after the other leaves the batch, and nobody gets a row of another's."""
    liked = [token_id for token_id, _ in FAVOURED]
    async with serving(pages=256, max_batch_tokens=64) as verifier:
        specs = [
            sampled(verifier, REJECTION, (30 + i, 60, 90), 5 + 6 * i, seed=i, logit_bias=FAVOURED)
            for i in range(5)
        ]
        drafts = [any_tokens(1 + i % 4, i, liked) for i in range(5)]
        alone, together, _ = await alone_and_together(verifier, specs, drafts)
        assert together == alone
        assert len({len(each.accepted) for each in alone}) == 5
        judged = [count for each in alone for count in each.accepted]
        assert {0, 1, 2} <= set(judged)  # rows of q have had their say


@pytest.mark.parametrize("rule", [GREEDY, TARGET_ONLY, REJECTION, COUPLED])
async def test_a_stateless_round_judges_drafts_as_the_stream_does(rule) -> None:
    params: dict[str, Any] = {} if rule is GREEDY else {"seed": 9, "temperature": 0.3}
    async with serving() as verifier:
        spec = sampled(verifier, rule, logprobs=1, presence_penalty=1.0, **params)
        truth = (await run(verifier, spec)).tokens
        judged = set()
        for correct in range(5):
            draft = (*truth[1 : 1 + correct], 33, 34)
            q = distributions(draft, correct) if rule is REJECTION else ()
            stream = Stream(verifier)
            assert (await stream.send(spec)).next_token == truth[0]
            streamed = await stream.send(Proposal(1, len(PROMPT) + 1, draft, q))
            stream.cancel()
            later = replace(spec, prompt=(*PROMPT, truth[0]), resumed_output_tokens=1)
            answer = await verifier.stub.VerifyOnce(verify_once_to_pb(later, draft, q))
            once = verdict_from_pb(answer.verdict)
            assert replace(once, identity=None, limits=None) == replace(
                streamed, round=0, cost=once.cost
            )
            assert once.identity == verifier.info.identity
            judged.add(once.accepted_length)
        assert len(judged) > 1
