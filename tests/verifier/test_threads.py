"""Texts don't depend on how many threads a verifier computes with, whatever shares its batches."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

import pytest

from common.model.paged_model import PagedModel
from common.sampling.parameters import SamplingParams
from tests.support.fake_models import knowing_model
from tests.support.fake_pairs import PAIRS, PROMPTS, RunningPair, draft_model, known, serving_models

PAIR = "two byte-level tokenizers"
WAYS: list[dict[str, Any]] = [
    {},
    {"sampling": SamplingParams(temperature=0.9, top_p=0.95, seed=7)},
    {"sampling": SamplingParams(temperature=1.2, seed=8, frequency_penalty=0.3)},
]


@cache
def target() -> PagedModel:
    """Cut between threads from 16 rows on, and never between vectors."""
    return PagedModel(knowing_model(known(PAIRS[PAIR][0]), intermediate_size=2051))


async def texts(pair: RunningPair, draft_steps: int) -> list[str]:
    work = [
        pair.generate(prompt, draft_steps=draft_steps, **way) for prompt in PROMPTS for way in WAYS
    ]
    return [output.text for output in await asyncio.gather(*work)]


_alone: list[str] = []


async def alone() -> list[str]:
    """One request after another at one thread, without drafts."""
    if not _alone:
        models = target(), draft_model(PAIRS[PAIR][1])
        async with serving_models(models, PAIR, {"threads": 1, "pages": 256}, threads=1) as pair:
            for prompt in PROMPTS:
                for way in WAYS:
                    _alone.append((await pair.generate(prompt, draft_steps=0, **way)).text)
    return _alone


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 6, 8, 16])
async def test_greedy_and_seeded_texts_are_the_same_at_any_number_of_threads(
    threads: int,
) -> None:
    expected = await alone()
    models = target(), draft_model(PAIRS[PAIR][1])
    sizes = {"threads": threads, "pages": 256, "max_sessions": 32}
    async with serving_models(models, PAIR, sizes, threads=threads) as pair:
        for draft_steps in (0, 3, 8):
            assert await texts(pair, draft_steps) == expected, draft_steps
