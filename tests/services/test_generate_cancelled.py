"""A client that leaves, at any moment, leaves nothing behind."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from client.client import Output, Request
from common.types import BridgeMode
from drafter.session import SpeculativeSession
from tests.support.fake_pairs import CONTEXT, PROMPTS, RunningPair, known, serving_pair
from tests.support.stages import STAGES, at_every_stage

pytestmark = pytest.mark.long


async def cancelled_at(
    pair: RunningPair, monkeypatch: pytest.MonkeyPatch, count: int, choose: random.Random
) -> dict[str, int]:
    """Run `count` requests, 8 at once, and cancel each at some stage of some round."""
    due: dict[int, tuple[str, int, asyncio.Task[Output]]] = {}
    hits = dict.fromkeys(STAGES, 0)
    visits: dict[tuple[int, str], int] = {}

    async def hook(session: SpeculativeSession, stage: str) -> None:
        number = session._spec.prompt[0]  # identifies requests
        at, visit, task = due[number]
        visits[number, stage] = visits.get((number, stage), 0) + 1
        if (at, visit) == (stage, visits[number, stage]):
            hits[stage] += 1
            task.cancel()

    at_every_stage(monkeypatch, hook)
    prompts = [known("wide").encode_bytes(prompt.encode()) or [] for prompt in PROMPTS]

    async def worker(number: int) -> None:
        for _ in range(count // 8):
            ids = (number, *prompts[choose.randrange(len(prompts))])
            mode = choose.choice(list(BridgeMode))
            request = Request(30, prompt_ids=ids, draft_steps=3, bridge=mode, ignore_eos=True)
            task = asyncio.create_task(pair.client.generate(request))
            stage = choose.choice(STAGES)
            due[number] = (stage, 1 if stage == "open" else choose.randint(1, 4), task)
            for each in STAGES:
                visits.pop((number, each), None)
            with pytest.raises(asyncio.CancelledError):
                await task
            # The server still works on it, but under this number the next one begins.
            await gone(number)

    async def gone(number: int) -> None:
        sessions = [s for s in live if s._spec.prompt[0] == number]
        await asyncio.gather(*(live[session].wait() for session in sessions))

    live: dict[SpeculativeSession, asyncio.Event] = {}
    made, closed = SpeculativeSession.__init__, SpeculativeSession.close

    def making(session: SpeculativeSession, *arguments: Any) -> None:
        made(session, *arguments)
        live[session] = asyncio.Event()

    def closing(session: SpeculativeSession) -> None:
        closed(session)
        if session in live:  # the first time
            live.pop(session).set()

    monkeypatch.setattr(SpeculativeSession, "__init__", making)
    monkeypatch.setattr(SpeculativeSession, "close", closing)
    await asyncio.gather(*(worker(10 + number) for number in range(8)))
    monkeypatch.undo()
    return hits


@pytest.mark.parametrize("pressed", [False, True])
async def test_a_client_that_leaves_at_any_moment_frees_every_page(
    pressed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """504 times with pages for all, 504 times where sessions preempt each other."""
    sizes = {"pages": CONTEXT // 4 + 3} if pressed else {}
    drafter = {"context": CONTEXT, **sizes}
    async with serving_pair("two byte-level tokenizers", sizes, **drafter) as pair:
        hits = await cancelled_at(pair, monkeypatch, 504, random.Random(pressed))
        assert sum(hits.values()) == 504
        assert min(hits.values()) > 80
        assert pair.verifier.engine.open_sessions <= 8
        output = await pair.generate(PROMPTS[0], draft_steps=0)
        assert (await pair.generate(PROMPTS[0])).token_ids == output.token_ids
