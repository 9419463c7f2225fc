"""Sampling parameters that can't be: refused by name, and nobody else is harmed."""

from __future__ import annotations

import math
from typing import Any

import pytest
from grpc import StatusCode

from common.pb import sampling_pb2
from common.pb import verifier_pb2 as pb
from common.wire.verify import open_to_pb
from tests.support.verifier_sessions import PROMPT, VOCAB, beside_another, serving
from tests.support.verify_streams import Refusal, Stream

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("temperature", value) for value in (NAN, -0.5, INF, 1e-7, 101.0)],
        *[("top_k", value) for value in (0, 2**31)],
        *[(name, value) for name in ("top_p", "min_p") for value in (NAN, -0.1, 1.01)],
        *[("repetition_penalty", value) for value in (NAN, 0.0, -1.0, 1e-300, 1e300)],
        *[("presence_penalty", value) for value in (NAN, -2.5, INF)],
        *[("frequency_penalty", value) for value in (NAN, 2.5, -INF)],
        *[("logprobs", value) for value in (21, 2**32 - 1)],
        ("min_new_tokens", 2**31),
    ],
)
async def test_a_parameter_that_cannot_be_is_refused_by_name(name: str, value: Any) -> None:
    async with serving() as verifier:
        opened = open_to_pb(verifier.open(PROMPT))
        setattr(opened.sampling, name, value)

        async def act() -> Refusal:
            return await Stream(verifier).refused(pb.VerifyRequest(open=opened))

        refusal = await beside_another(verifier, act)
        assert refusal.code is StatusCode.INVALID_ARGUMENT
        assert refusal.message.startswith(f"sampling.{name} is ")
        assert "; it must be " in refusal.message
        assert refusal.field == f"sampling.{name}"


@pytest.mark.parametrize(
    ("token_id", "bias", "words"),
    [
        (VOCAB, 1.0, f"for id {VOCAB}; it must be < {VOCAB}"),
        (2**32 - 1, 1.0, "for id 4294967295"),
        (5, NAN, "nan for id 5"),
        (5, 101.0, "101.0 for id 5; it must be from -100 to 100"),
    ],
)
async def test_a_bias_that_cannot_be_is_refused_with_its_id(
    token_id: int, bias: float, words: str
) -> None:
    async with serving() as verifier:
        opened = open_to_pb(verifier.open(PROMPT))
        opened.sampling.logit_bias[token_id] = bias

        async def act() -> Refusal:
            return await Stream(verifier).refused(pb.VerifyRequest(open=opened))

        refusal = await beside_another(verifier, act)
        assert refusal.code is StatusCode.INVALID_ARGUMENT
        assert words in refusal.message
        assert refusal.field == "sampling.logit_bias"


async def test_a_distribution_without_any_id_left_is_refused() -> None:
    async with serving() as verifier:
        for greedy in (True, False):
            opened = open_to_pb(verifier.open(PROMPT, ignore_eos=True))
            opened.stop_token_ids.extend(range(VOCAB))
            opened.sampling.min_new_tokens = 1
            if not greedy:
                opened.sampling.temperature = 1.0
                opened.acceptance_rule = sampling_pb2.ACCEPTANCE_RULE_TARGET_ONLY

            async def act(opened: pb.Open = opened) -> Refusal:
                return await Stream(verifier).refused(pb.VerifyRequest(open=opened))

            refusal = await beside_another(verifier, act)
            assert refusal.code is StatusCode.INVALID_ARGUMENT
            assert refusal.field == "open.stop_token_ids"
