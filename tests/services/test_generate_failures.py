"""A draft model that fails, or can't read a text, costs speed and nothing else."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from client.client import Request
from common.types import Origin
from tests.support.fake_pairs import CONTEXT, PROMPTS, known, serving_pair


async def test_a_draft_model_that_raises_leaves_the_target_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving_pair(lookup=False) as pair:
        expected = (await pair.generate(PROMPTS[0], 20, draft_steps=0)).token_ids
        assert (await pair.client.pair()).drafting
        model, steps = pair.drafter.pair.engine.model, 0
        forward = model.forward

        def failing(chunks: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps > 6:
                raise RuntimeError("out of memory, say")
            return forward(chunks)

        monkeypatch.setattr(model, "forward", failing)
        output = await pair.generate(PROMPTS[0], 20, draft_steps=3)
        assert output.token_ids == expected
        assert not output.statistics.drafting
        assert steps == 7, "a draft model that failed a session isn't asked again in that session"
        assert output.statistics.text_rounds + output.statistics.intersection_rounds <= 2
        assert not (await pair.client.pair()).drafting
        assert (await pair.generate(PROMPTS[1], 6)).token_ids  # it fails while it reads the prompt
        monkeypatch.undo()
        assert (await pair.generate(PROMPTS[0], 20)).statistics.drafting
        assert (await pair.client.pair()).drafting


async def test_one_session_that_makes_a_step_raise_loses_its_drafts_and_no_other_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving_pair("same tokenizer", lookup=False) as pair:
        expected = [await pair.generate(prompt, draft_steps=0) for prompt in PROMPTS]
        culprit = pair.drafter.pair.bridge.draft.encode_bytes(PROMPTS[0].encode())
        assert culprit
        engine = pair.drafter.pair.engine
        forward, opening = engine.model.forward, engine.open
        opened, all_opened = [], threading.Event()
        tables, beside = list[Any](), list[int]()

        def counted() -> Any:
            opened.append(opening())
            if len(opened) == len(PROMPTS):
                all_opened.set()
            return opened[-1]

        def failing(chunks: Any) -> Any:
            tables.extend(c.table for c in chunks if c.tokens[: len(culprit)] == culprit)
            if not all_opened.is_set():  # all others come while the first pass runs
                all_opened.wait(20)
                return forward(chunks)
            if any(chunk.table in tables for chunk in chunks):
                beside.append(len(chunks) - 1)
                raise RuntimeError
            return forward(chunks)

        monkeypatch.setattr(engine, "open", counted)
        monkeypatch.setattr(engine.model, "forward", failing)
        outputs = await asyncio.gather(*(pair.generate(prompt) for prompt in PROMPTS))
        assert [o.token_ids for o in outputs] == [o.token_ids for o in expected]
        drafting = [output.statistics.drafting for output in outputs]
        assert drafting == [False, *[True] * (len(PROMPTS) - 1)]
        assert max(beside) > 0
        assert (await pair.client.pair()).drafting


async def test_a_prompt_over_the_drafts_context_runs_at_k_0_and_disturbs_nobody() -> None:
    async with serving_pair("same tokenizer", context=40, lookup=False) as pair:
        long = "The quick brown fox jumps over the lazy dog. " * 5
        prompts = (PROMPTS[0], long, PROMPTS[1])
        expected = [await pair.generate(prompt, draft_steps=0) for prompt in prompts]
        assert 40 < expected[1].statistics.prompt_tokens < CONTEXT - 14
        outputs = await asyncio.gather(*(pair.generate(prompt) for prompt in prompts))
        assert [o.token_ids for o in outputs] == [o.token_ids for o in expected]
        assert [o.statistics.drafting for o in outputs] == [True, False, True]
        assert Origin.DRAFT in outputs[0].origins and Origin.DRAFT not in outputs[1].origins
        assert (await pair.client.pair()).drafting


async def test_a_text_that_grows_over_the_drafts_context_goes_on_without_it() -> None:
    async with serving_pair("same tokenizer", context=24, lookup=False) as pair:
        whole = await pair.generate(PROMPTS[0], 60, draft_steps=0, ignore_eos=True)
        output = await pair.generate(PROMPTS[0], 60, draft_steps=5, ignore_eos=True)
        assert output.token_ids == whole.token_ids
        assert not output.statistics.drafting
        assert Origin.DRAFT in output.origins[:20] and Origin.DRAFT not in output.origins[24:]


async def test_a_prompt_that_is_nothing_to_the_draft_model() -> None:
    """<bos> alone: byte-level vocabularies put nothing before a prompt."""
    async with serving_pair("byte-level for byte fallback") as pair:
        alone, drafted = [await pair.generate("", draft_steps=steps) for steps in (0, 3)]
        assert alone.statistics.prompt_tokens == 1
        assert drafted.token_ids == alone.token_ids
        end = Request(8, prompt_ids=tuple(sorted(known("sentencepiece").special_ids)))
        assert (await pair.client.generate(end)).token_ids
