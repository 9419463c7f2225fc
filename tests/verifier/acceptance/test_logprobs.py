"""Log-probabilities are the target's own, of every committed token, whatever k and company."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from common.types import FinishReason
from common.wire.verify import verdict_from_pb, verify_once_to_pb
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
    wrong,
)
from tests.support.target_alone import bare_logits
from tests.support.verifier_sessions import PROMPT, serving
from verifier.acceptance.logprobs import fetch_logprobs, run_logprobs


@pytest.mark.parametrize("top", [0, 1, 5, 20])
@pytest.mark.parametrize(
    ("rule", "params"),
    [
        (GREEDY, {}),
        (GREEDY, {"presence_penalty": 2.0}),
        (COUPLED, {"temperature": 1.3, "top_p": 0.9}),
    ],
)
async def test_they_equal_those_of_a_run_without_drafts_bit_for_bit(
    rule, params: dict[str, Any], top: int
) -> None:
    """First, middle and last tokens of a run, accepted ones and the verifier's own."""
    async with serving() as verifier:
        spec = sampled(verifier, rule, max_new_tokens=14, logprobs=top, **params)
        bare = await run(verifier, spec)
        assert all(len(each.top_ids) == len(each.top_logprobs) == top for each in bare.logprobs)
        truth = bare.tokens
        drafts = [right(truth, 3), right(truth, 8), half_right(truth, 5), wrong(truth, 2)]
        for each in [*drafts, any_tokens(4)]:
            drafted = await run(verifier, spec, each)
            assert (drafted.tokens, drafted.logprobs) == (truth, bare.logprobs)


async def test_they_are_before_everything_that_a_request_asks() -> None:
    async with serving() as verifier:
        plain = await run(verifier, sampled(verifier, GREEDY, max_new_tokens=6, logprobs=3))
        for length, reported in enumerate(plain.logprobs):
            distribution = bare_logits([*PROMPT, *plain.tokens[:length]]).log_softmax(dim=-1)
            best = distribution.topk(3)
            assert reported.logprob == pytest.approx(
                float(distribution[plain.tokens[length]]), abs=1e-5
            )
            assert reported.top_ids == tuple(best.indices.tolist())
            assert reported.top_logprobs == pytest.approx(best.values.tolist(), abs=1e-5)
            assert reported.top_ids[0] == plain.tokens[length]
        first = plain.tokens[0]
        asked: dict[str, Any] = {"logit_bias": ((first, -100.0),), "logprobs": 3}
        other = await run(verifier, sampled(verifier, GREEDY, max_new_tokens=6, **asked))
        assert other.tokens[0] != first
        assert other.logprobs[0].top_ids == plain.logprobs[0].top_ids
        assert other.logprobs[0].top_logprobs == plain.logprobs[0].top_logprobs


@pytest.mark.parametrize("rule", [TARGET_ONLY, REJECTION])
async def test_every_committed_token_has_its_own_logprobs_where_drafts_make_the_text(rule) -> None:
    """The text is another one then, and its values are those of a session that is at its place."""
    async with serving() as verifier:
        spec = sampled(verifier, rule, seed=3, logprobs=2, top_k=4)
        truth = (await run(verifier, spec)).tokens
        drafted = await run(verifier, spec, half_right(truth, 5))
        for length, (token, reported) in enumerate(
            zip(drafted.tokens, drafted.logprobs, strict=True)
        ):
            prompt = (*PROMPT, *drafted.tokens[:length])
            biased = sampled(verifier, GREEDY, prompt, logit_bias=((token, 100.0),), logprobs=2)
            answer = await verifier.stub.VerifyOnce(verify_once_to_pb(biased, ()))
            verdict = verdict_from_pb(answer.verdict)
            assert (verdict.next_token, verdict.logprobs) == (token, (reported,))


async def test_a_cut_run_cuts_them_too() -> None:
    async with serving() as verifier:
        truth = (await run(verifier, sampled(verifier, GREEDY))).tokens
        stop = next(token for token in truth[3:] if token not in truth[:3])
        spec = sampled(verifier, GREEDY, stop_ids=frozenset({stop}), logprobs=1)
        bare = await run(verifier, spec)
        assert bare.finish_reason is FinishReason.STOP
        drafted = await run(verifier, spec, right(truth, 8))
        assert (drafted.tokens, drafted.logprobs) == (bare.tokens, bare.logprobs)
        assert len(drafted.logprobs) == len(bare.tokens)


def test_of_equal_values_the_lower_id_comes_first() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 3.0, 3.0, 2.0]])
    (reported,) = run_logprobs(logits, [0], 4)
    assert reported.top_ids == (1, 3, 4, 2)
    (two,) = run_logprobs(logits, [0], 2)
    assert two.top_ids == (1, 3)


def test_ids_that_do_not_exist_have_no_share_and_no_place() -> None:
    logits = torch.tensor([[1.0, 2.0, 9.0, 9.0]])
    real = torch.tensor([True, True, False, False])
    (reported,) = run_logprobs(logits, [0], 20, real)
    assert reported.top_ids == (1, 0)
    assert sum(torch.tensor(reported.top_logprobs).exp().tolist()) == pytest.approx(1.0)


@pytest.mark.parametrize("top", [0, 1, 7, 20])
def test_a_device_reports_what_the_cpu_reports_of_equal_values_too(top: int) -> None:
    logits = torch.randint(-3, 3, (4, 30), generator=torch.Generator().manual_seed(top)).bfloat16()
    real = torch.arange(30) % 7 != 3
    for ids in (None, real):
        expected = run_logprobs(logits, [0, 1, 29, 8], top, ids)
        assert fetch_logprobs(logits, [0, 1, 29, 8], top, ids) == expected
