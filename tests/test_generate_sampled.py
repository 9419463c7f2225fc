"""Sampled text through both services: a seed means the same text, whatever drafts there are."""

from __future__ import annotations

import asyncio
from itertools import product
from typing import Any

import pytest

from cli.client import Client, Output, Request
from common.sampling import SamplingParams
from common.types import AcceptanceRule, BridgeMode, Origin
from drafter.session import SpeculativeSession
from tests.fake_pairs import (
    CONTEXT,
    PAIRS,
    PROMPTS,
    RunningPair,
    draft_model,
    files,
    serving_pair,
)
from tests.fake_services import count_preemptions, serving_drafter
from tests.stages import at_every_stage

PENALTIES = {"presence_penalty": 1.5, "frequency_penalty": -2.0, "repetition_penalty": 1.3}
LAWS = (
    SamplingParams(temperature=1.0, seed=7),
    SamplingParams(temperature=0.7, top_p=0.9, seed=2**64 - 1),
    SamplingParams(temperature=1.5, top_k=5, min_p=0.05, seed=1, **PENALTIES),
    SamplingParams(temperature=1.0, seed=3, logit_bias=((0, 20.0),), min_new_tokens=6),
    SamplingParams(presence_penalty=2.0, frequency_penalty=-2.0, repetition_penalty=1.5),
)
RULES = (AcceptanceRule.NO_Q, AcceptanceRule.REJECTION, AcceptanceRule.COUPLED)


@pytest.mark.parametrize("kind", PAIRS)
async def test_a_seed_gives_one_text_at_every_k_in_every_mode(kind: str) -> None:
    accepted = 0
    async with serving_pair(kind) as pair:
        for sampling, prompt in product(LAWS, (PROMPTS[2], PROMPTS[-1])):
            alone = await pair.generate(prompt, draft_steps=0, sampling=sampling)
            for steps, mode in product((1, 3, 8), BridgeMode):
                output = await pair.generate(
                    prompt, draft_steps=steps, bridge=mode, sampling=sampling
                )
                assert output.token_ids == alone.token_ids, (sampling, steps, mode)
                assert output.text == alone.text
                accepted += output.origins.count(Origin.DRAFT)
            assert alone.statistics.rule is (
                AcceptanceRule.GREEDY if sampling.greedy else AcceptanceRule.COUPLED
            )
    assert accepted > 60
