"""Four times as many requests as fit: some are served, the others are refused at once."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from client.client import Request
from client.resuming import generate_resuming
from drafter.session import SpeculativeSession
from tests.kv.test_pages_freed import counting
from tests.support.fake_pairs import PROMPTS, serving_pair, setting
from tests.support.stages import at_every_stage
from tests.support.verify_streams import details_received
from verifier.batcher import Batcher
from verifier.engine import VerifierEngine

CAPACITY, TIMES = 4, 4
REQUEST = Request(40, prompt=PROMPTS[0], ignore_eos=True)


@pytest.mark.long
@pytest.mark.parametrize("full", ["drafter", "verifier"])
async def test_over_capacity_is_refused_at_once_and_costs_the_others_nothing(
    full: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that got in wait in their middle until all others have come and been refused."""
    gates = list[asyncio.Event]()

    async def hook(session: SpeculativeSession, stage: str) -> None:
        if gates and stage == "verify" and session.output_length >= 3:
            await gates[-1].wait()

    at_every_stage(monkeypatch, hook)
    limits = {"max_sessions": CAPACITY}
    places: dict[str, Any] = limits if full == "drafter" else {"verifier": limits}
    async with serving_pair(**places) as pair:
        expected = await pair.client.generate(REQUEST)
        for _ in range(5):
            gates.append(asyncio.Event())
            heard = [asyncio.Event() for _ in range(CAPACITY)]
            running = [
                asyncio.create_task(pair.client.generate(REQUEST, setting(each))) for each in heard
            ]
            await asyncio.gather(*(each.wait() for each in heard))
            for _ in range(CAPACITY * (TIMES - 1)):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await pair.client.generate(REQUEST)
                assert caught.value.code() is StatusCode.RESOURCE_EXHAUSTED
                assert (details_received(caught.value).retry_ms or 0) > 0
            assert not any(task.done() for task in running)
            gates[-1].set()
            outputs = await asyncio.gather(*running)
            assert all(output.token_ids == expected.token_ids for output in outputs)
        await pair.assert_nothing_held()


@pytest.mark.long
async def test_a_client_that_comes_again_is_served_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("drafter.service.RETRY_MS", 10)
    async with serving_pair(max_sessions=CAPACITY) as pair:
        expected = await pair.client.generate(REQUEST)
        outputs = await asyncio.gather(
            *(generate_resuming(pair.client, REQUEST, 600.0) for _ in range(CAPACITY * TIMES))
        )
        assert all(output.token_ids == expected.token_ids for output in outputs)


async def test_after_a_deadline_work_stops_within_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 ms for a request that would take seconds."""
    step = VerifierEngine.step

    def slow(engine: VerifierEngine) -> bool:
        did = step(engine)
        time.sleep(0.02 * did)  # a larger model
        return did

    monkeypatch.setattr(VerifierEngine, "step", slow)
    with counting(VerifierEngine, Batcher, "remove") as steps:
        async with serving_pair() as pair:
            request = Request(110, prompt="x", ignore_eos=True, draft_steps=0)
            for _ in range(3):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await pair.client.generate(request, timeout_s=0.1)
                assert caught.value.code() is StatusCode.DEADLINE_EXCEEDED
                await pair.drafter.idle()
                await pair.verifier.idle()
                begun = steps.begun
                pair.verifier.assert_nothing_held()
                assert steps.begun == begun < 110
    assert max(steps.waited) <= 1
