"""Bias, penalties and min_new_tokens: what came before a token counts, and never its draft."""

from __future__ import annotations

from typing import Any

import pytest

from common.types import FinishReason
from common.wire.verify import verdict_from_pb, verify_once_to_pb
from tests.statistics.sampled_sessions import (
    COUPLED,
    FAVOURED,
    GREEDY,
    any_tokens,
    half_right,
    nothing,
    right,
    run,
    sampled,
    wrong,
)
from tests.support.target_alone import bare_logits
from tests.support.verifier_sessions import PROMPT, VOCAB, serving

PENALTIES: list[dict[str, Any]] = [
    {"presence_penalty": -2.0},
    {"presence_penalty": 2.0, "frequency_penalty": 2.0},
    {"frequency_penalty": -2.0},
    {"presence_penalty": 1.5},
    {"repetition_penalty": 1.8},
    {"repetition_penalty": 0.4},
    {
        "presence_penalty": 1.5,
        "frequency_penalty": -2.0,
        "repetition_penalty": 1.2,
        "min_new_tokens": 7,
    },
]


@pytest.mark.parametrize("rule", [GREEDY, COUPLED])
@pytest.mark.parametrize("params", PENALTIES)
async def test_penalties_give_the_same_at_any_acceptance(rule, params: dict[str, Any]) -> None:
    async with serving() as verifier:
        spec = sampled(verifier, rule, max_new_tokens=14, logit_bias=FAVOURED, **params)
        truth = (await run(verifier, spec)).tokens
        drafts = [half_right(truth, 4), any_tokens(3), *(right(truth, k) for k in (1, 2, 5, 8))]
        for each in [*drafts, wrong(truth, 8)]:
            assert (await run(verifier, spec, each)).tokens == truth
        accepted = (await run(verifier, spec, right(truth, 3))).accepted
        assert accepted[:3] == [3, 3, 3]


@pytest.mark.parametrize("params", PENALTIES)
async def test_greedy_output_is_the_argmax_after_penalties_counted_anew(
    params: dict[str, Any],
) -> None:
    """Token by token, from the formulas, without the verifier's own counting."""
    async with serving() as verifier:
        spec = sampled(verifier, GREEDY, logit_bias=FAVOURED, **params)
        tokens = (await run(verifier, spec, any_tokens(2))).tokens
    repetition, presence, frequency = (
        params.get(f"{name}_penalty", default)
        for name, default in (("repetition", 1.0), ("presence", 0.0), ("frequency", 0.0))
    )
    changed = 0
    for length, token in enumerate(tokens):
        output = tokens[:length]
        biased = bare_logits([*PROMPT, *output])
        for token_id, bias in FAVOURED:
            biased[token_id] += bias
        logits = biased.clone()
        for seen in {*PROMPT, *output}:
            logits[seen] *= repetition if logits[seen] <= 0 else 1 / repetition
        for said in set(output):
            logits[said] -= presence + frequency * output.count(said)
        assert token == int(logits.argmax())
        changed += token != int(biased.argmax())
    assert changed  # a penalty that does nothing tests nothing


@pytest.mark.long
@pytest.mark.parametrize("rule", [GREEDY, COUPLED])
async def test_min_new_tokens_counts_tokens_and_not_rounds(rule) -> None:
    """The target would stop at once: its likeliest token is the stop id, wherever it may be."""
    async with serving() as verifier:
        for minimum in (0, 1, 4, 5, 6, 9):
            params: dict[str, Any] = {"logit_bias": ((5, 100.0),), "min_new_tokens": minimum}
            stops = frozenset({5})
            spec = sampled(verifier, rule, stop_ids=stops, **params)
            bare = await run(verifier, spec)
            assert len(bare.tokens) == max(1, minimum + 1)
            assert bare.finish_reason is FinishReason.STOP
            assert 5 not in bare.tokens[:-1] and bare.tokens[-1] == 5
            for k in (1, 2, 3, 8):
                for drafts in (right(bare.tokens, k), half_right(bare.tokens, k)):
                    assert (await run(verifier, spec, drafts)).tokens == bare.tokens
            early = await run(verifier, spec, lambda output, stage: [5] * min(4, stage))
            assert early.tokens == bare.tokens


async def test_min_new_tokens_keeps_the_models_own_ends_away_unless_they_are_ignored() -> None:
    async with serving() as verifier:
        params: dict[str, Any] = {"logit_bias": ((0, 100.0),), "min_new_tokens": 3}
        kept = await run(verifier, sampled(verifier, GREEDY, ignore_eos=False, **params))
        assert kept.tokens.index(0) == 3 and kept.finish_reason is FinishReason.STOP
        ignored = await run(verifier, sampled(verifier, GREEDY, ignore_eos=True, **params))
        assert ignored.tokens == [0] * 16


@pytest.mark.parametrize("rule", [GREEDY, COUPLED])
async def test_a_stateless_round_counts_as_the_session_does(rule) -> None:
    params: dict[str, Any] = {
        "presence_penalty": 1.5,
        "frequency_penalty": 0.7,
        "repetition_penalty": 1.3,
        "min_new_tokens": 8,
    }
    async with serving() as verifier:
        truth = (await run(verifier, sampled(verifier, rule, **params), nothing)).tokens
        for done in range(0, 12, 3):
            prompt = (*PROMPT, *truth[:done])
            spec = sampled(verifier, rule, prompt, resumed_output_tokens=done, **params)
            draft = (*truth[done : done + 2], (truth[done + 2] + 1) % VOCAB)
            answer = await verifier.stub.VerifyOnce(verify_once_to_pb(spec, draft))
            verdict = verdict_from_pb(answer.verdict)
            assert verdict.accepted_length == 2
            assert verdict.next_token == truth[done + 2]
