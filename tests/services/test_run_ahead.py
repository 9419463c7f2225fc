"""Drafting ahead changes no output."""

from __future__ import annotations

import pytest

from client.client import Request
from common.sampling.parameters import SamplingParams
from tests.support.fake_pairs import PROMPTS, serving_pair


@pytest.mark.parametrize("pair", ["two byte-level tokenizers", "same tokenizer"])
@pytest.mark.parametrize("seed", [None, 11])
async def test_output_is_the_same_with_and_without(pair: str, seed: int | None) -> None:
    sampling = SamplingParams(temperature=0.0 if seed is None else 0.9, seed=seed)
    texts = []
    for run_ahead in ("off", "on"):
        async with serving_pair(pair, run_ahead=run_ahead, lookup=False) as running:
            request = Request(max_new_tokens=48, prompt=PROMPTS[0], sampling=sampling)
            texts.append((await running.client.generate(request)).token_ids)
            counted = running.drafter.pair.engine._run_ahead_results
            hits = sum(counted[name,]._value.get() for name in ("hit", "part"))
            assert not hits or run_ahead == "on"
    assert texts[0] == texts[1]
