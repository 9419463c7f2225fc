"""What is allowed and odd is defined: the same at any k, and nobody beside it is harmed."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

from client.client import Request
from common.sampling.parameters import SamplingParams
from common.types import BridgeMode, FinishReason
from common.vocabulary.vocabulary import Vocabulary
from tests.statistics.sampled_sessions import (
    COUPLED,
    GREEDY,
    REJECTION,
    TARGET_ONLY,
    any_tokens,
    half_right,
    right,
    run,
    sampled,
)
from tests.support.fake_pairs import PROMPTS, serving_pair
from tests.support.verifier_sessions import CONTEXT, PROMPT, VOCAB, beside_another, files, serving

EXTREMES: tuple[dict[str, Any], ...] = (
    {"temperature": 1e-6, "repetition_penalty": 0.01, "presence_penalty": -2.0},
    {"temperature": 100.0, "repetition_penalty": 100.0, "frequency_penalty": 2.0},
    {"temperature": 100.0, "top_k": 2**31 - 1, "top_p": 1.0, "min_p": 0.0},
    {"temperature": 1e-6, "top_k": 1, "top_p": 0.0, "min_p": 1.0, "logprobs": 20},
    {"temperature": 1.0, "logit_bias": tuple((i, (-1.0) ** i * 100) for i in range(VOCAB))},
    {"temperature": 1.0, "logit_bias": tuple((i, -100.0) for i in range(VOCAB))},
    {"temperature": 1.0, "top_p": 1e-300, "min_p": 1e-300, "repetition_penalty": 0.01},
)


@pytest.mark.parametrize("params", EXTREMES)
async def test_the_farthest_parameters_give_one_text_at_any_k(params: dict[str, Any]) -> None:
    async with serving(pages=128) as verifier:

        async def act() -> None:
            for rule in (GREEDY, COUPLED):
                given = {**params, "temperature": 0.0} if rule is GREEDY else params
                spec = sampled(verifier, rule, max_new_tokens=10, **given)
                truth = await run(verifier, spec)
                assert len(truth.tokens) == 10
                for drafts in (right(truth.tokens, 3), any_tokens(4), half_right(truth.tokens, 8)):
                    drafted = await run(verifier, spec, drafts)
                    assert (drafted.tokens, drafted.logprobs) == (truth.tokens, truth.logprobs)
            for rule in (TARGET_ONLY, REJECTION):
                spec = sampled(verifier, rule, max_new_tokens=10, **params)
                assert len((await run(verifier, spec, any_tokens(4))).tokens) == 10

        await beside_another(verifier, act)


@pytest.mark.parametrize("rule", [GREEDY, TARGET_ONLY, REJECTION, COUPLED])
async def test_a_bias_on_ids_that_the_tokenizer_lacks_lets_none_of_them_come(rule) -> None:
    real = torch.from_numpy(Vocabulary(files(), VOCAB, frozenset()).real)
    padded = (~real).nonzero().squeeze(1).tolist()
    assert padded
    seeded: dict[str, Any] = {} if rule is GREEDY else {"seed": 4}
    async with serving() as verifier:
        plain = await run(verifier, sampled(verifier, rule, **seeded))
        biased = tuple((id_, 100.0) for id_ in padded)
        spec = sampled(verifier, rule, logit_bias=biased, logprobs=20, **seeded)
        again = await run(verifier, spec)
        assert again.tokens == plain.tokens
        assert not set(padded) & {id_ for each in again.logprobs for id_ in each.top_ids}
        drafted = await run(verifier, spec, any_tokens(3, among=padded))
        assert not any(drafted.accepted)


@pytest.mark.parametrize("rule", [GREEDY, COUPLED])
async def test_min_new_tokens_beyond_max_new_tokens_ends_by_length(rule) -> None:
    async with serving() as verifier:
        spec = sampled(
            verifier,
            rule,
            max_new_tokens=7,
            stop_ids=frozenset({5}),
            min_new_tokens=2**31 - 1,
            logit_bias=((5, 100.0),),
        )
        truth = await run(verifier, spec)
        assert len(truth.tokens) == 7 and 5 not in truth.tokens
        assert truth.finish_reason is FinishReason.LENGTH
        for drafts in (right(truth.tokens, 3), lambda output, stage: [5] * min(4, stage)):
            assert (await run(verifier, spec, drafts)).tokens == truth.tokens


async def test_as_many_new_tokens_as_can_be_asked_for_end_at_the_context() -> None:
    async with serving() as verifier:
        spec = sampled(verifier, GREEDY, max_new_tokens=2**32 - 1)
        made = await run(verifier, spec, any_tokens(2))
        assert made.finish_reason is FinishReason.CONTEXT
        assert len(PROMPT) + len(made.tokens) == CONTEXT


@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1])
async def test_every_seed_is_a_seed_and_0_is_not_none(seed: int) -> None:
    async with serving_pair() as pair:
        given = SamplingParams(temperature=1.2, seed=seed)
        alone = await pair.generate(PROMPTS[0], 12, draft_steps=0, sampling=given, ignore_eos=True)
        for steps, mode in ((3, BridgeMode.INTERSECTION), (5, BridgeMode.TEXT)):
            output = await pair.generate(
                PROMPTS[0], 12, draft_steps=steps, bridge=mode, sampling=given, ignore_eos=True
            )
            assert output.token_ids == alone.token_ids


async def test_stop_strings_given_twice_are_given_once_and_none_stops_nothing() -> None:
    async with serving_pair("same tokenizer") as pair:
        whole = await pair.generate(PROMPTS[1], 24, ignore_eos=True)
        assert len(whole.token_ids) == 24 and whole.statistics.stop_string == ""
        stop = whole.text[8:12]
        sixteen = (stop, *(f"{n:x}\x00{'é' * 126}" for n in range(14)), stop)
        assert all(len(each.encode()) <= 256 for each in sixteen)
        for stops, steps in product(((stop,), (stop, stop), sixteen), (0, 4)):
            request = Request(24, prompt=PROMPTS[1], stop=stops, draft_steps=steps, ignore_eos=True)
            output = await pair.client.generate(request)
            assert output.text == whole.text[: whole.text.index(stop)]
            assert output.statistics.stop_string == stop
