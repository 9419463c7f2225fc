"""A draft model that hangs costs its sessions the drafts, and nothing else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from client.client import Request
from client.results import TokenDelta
from common.types import Origin
from tests.support.fake_pairs import PROMPTS, RunningPair, serving_pair


class Hang:
    """The draft model's passes: whether they hang, and how many there were."""

    def __init__(self) -> None:
        self.begins, self.hangs, self.ends = (threading.Event() for _ in range(3))
        self.passes = 0


@contextmanager
def hanging(
    pair: RunningPair, monkeypatch: pytest.MonkeyPatch, timeout_s: float = 2.0
) -> Iterator[Hang]:
    """A draft model that hangs once `begins` is set, until `ends` is."""
    vars(pair.drafter.pair).update(draft_timeout_s=timeout_s)
    model, hang = pair.drafter.pair.engine.model, Hang()
    forward = model.forward

    def passing(chunks: Any) -> Any:
        hang.passes += 1
        if hang.begins.is_set():
            hang.hangs.set()
            hang.ends.wait()
        return forward(chunks)

    with monkeypatch.context() as patch:
        patch.setattr(model, "forward", passing)
        try:
            yield hang
        finally:
            hang.ends.set()


async def test_sessions_of_a_draft_model_that_hangs_go_on_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving_pair(lookup=False) as pair:
        expected = [await pair.generate(prompt, draft_steps=0) for prompt in PROMPTS]
        with hanging(pair, monkeypatch) as hang:
            hang.begins.set()
            outputs = await asyncio.gather(*(pair.generate(prompt) for prompt in PROMPTS))
            assert [o.token_ids for o in outputs] == [o.token_ids for o in expected]
            assert not any(o.statistics.drafting for o in outputs)
            assert all(Origin.DRAFT not in o.origins for o in outputs)
            assert not (await pair.client.pair()).drafting
        await pair.drafter.idle()  # the pass that hung has returned
        assert (await pair.generate(PROMPTS[0])).statistics.drafting
        assert (await pair.client.pair()).drafting


async def test_a_late_draft_is_never_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """It hangs in mid-session and returns after the session has gone on."""
    async with serving_pair("same tokenizer", lookup=False) as pair:
        expected = await pair.generate(PROMPTS[0], 40, draft_steps=0, ignore_eos=True)
        with hanging(pair, monkeypatch) as hang:
            heard = 0
            passes_then = 0

            def hear(_: TokenDelta) -> None:
                nonlocal heard, passes_then
                heard += 1
                if heard == 10:
                    hang.begins.set()
                if hang.begins.is_set() and not pair.drafter.pair.engine.healthy:
                    passes_then = passes_then or hang.passes
                    hang.ends.set()

            request = Request(40, prompt=PROMPTS[0], ignore_eos=True)
            output = await pair.client.generate(request, hear)
            assert hang.ends.is_set() and hang.passes == passes_then
        assert output.token_ids == expected.token_ids
        assert Origin.DRAFT in output.origins[:10]
        assert Origin.DRAFT not in output.origins[-10:]
        assert not output.statistics.drafting


async def test_a_draft_model_that_is_merely_waited_for_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving_pair("same tokenizer", lookup=False) as pair:
        with hanging(pair, monkeypatch, timeout_s=60.0) as hang:
            hang.begins.set()
            running = asyncio.create_task(pair.generate(PROMPTS[0], 20, ignore_eos=True))
            await asyncio.to_thread(hang.hangs.wait)
            hang.ends.set()
            output = await running
        assert output.statistics.drafting and Origin.DRAFT in output.origins
