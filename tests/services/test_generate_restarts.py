"""A verifier that comes late, restarts or stays away: a pause, or a clear word."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from cli.children import free_addresses
from client.client import Client, Request
from common.model.paged_model import PagedModel
from common.sampling.parameters import SamplingParams
from drafter.session import SpeculativeSession
from drafter.verifier_client import client as verifier_client
from tests.support.fake_models import knowing_model
from tests.support.fake_pairs import CONTEXT, PROMPTS, draft_model, files, known, target_model
from tests.support.fake_services import serving_drafter, serving_verifier
from tests.support.stages import at_every_stage
from tests.support.verify_streams import Stream


async def test_a_drafter_waits_for_a_verifier_that_starts_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (address,) = free_addresses(1)
    port = int(address.rpartition(":")[2])
    failed = asyncio.Event()
    judge = verifier_client.raise_unless_lost

    def judging(error: grpc.aio.AioRpcError) -> None:
        failed.set()
        judge(error)

    monkeypatch.setattr(verifier_client, "raise_unless_lost", judging)
    monkeypatch.setattr(verifier_client, "RETRY_S", 0.01)
    async with AsyncExitStack() as stack:
        drafter = serving_drafter(draft_model("wide"), files("wide"), port)
        starting = asyncio.create_task(drafter.__aenter__())
        await failed.wait()
        assert not starting.done()
        await stack.enter_async_context(
            serving_verifier(target_model("wide"), files("wide"), port, context=CONTEXT)
        )
        running = await starting
        stack.push_async_exit(drafter.__aexit__)
        client = await stack.enter_async_context(Client(running.address))
        assert (await client.generate(Request(5, prompt="x"))).token_ids


async def test_without_a_verifier_a_drafter_gives_up_and_says_so() -> None:
    (address,) = free_addresses(1)
    port = int(address.rpartition(":")[2])
    with pytest.raises(verifier_client.VerifierUnavailable, match="no verifier answers after"):
        async with serving_drafter(draft_model("wide"), files("wide"), port, timeout_s=0):
            pass


SEEDED = SamplingParams(
    1.0, seed=3, presence_penalty=1.5, frequency_penalty=-1.0, repetition_penalty=1.2
)


@pytest.mark.parametrize("stage", ["propose", "verify"])
@pytest.mark.parametrize(
    ("steps", "sampling"), [(0, SamplingParams()), (3, SamplingParams()), (3, SEEDED)]
)
async def test_a_verifier_that_restarts_in_mid_stream_is_a_pause_and_no_more(
    stage: str, steps: int, sampling: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """check: it goes while the round is under way. propose: before the round is sent."""
    again = PagedModel(knowing_model(known("wide"), seed=0))  # another process, the same weights
    monkeypatch.setattr(verifier_client, "RETRY_S", 0.01)
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(
            serving_verifier(target_model("wide"), files("wide"), context=CONTEXT)
        )
        drafter = await stack.enter_async_context(
            serving_drafter(draft_model("wide"), files("wide"), first.port)
        )
        client = await stack.enter_async_context(Client(drafter.address))
        request = Request(
            16, prompt=PROMPTS[0], ignore_eos=True, draft_steps=steps, sampling=sampling
        )
        expected = await client.generate(request)
        restarts: list[asyncio.Task[Any]] = []

        async def restart() -> None:
            await first.server.stop()
            second = serving_verifier(again, files("wide"), first.port, context=CONTEXT)
            await stack.enter_async_context(second)

        async def hook(session: SpeculativeSession, at: str) -> None:
            if at == stage and session.output_length >= 5 and not restarts:
                restarts.append(asyncio.create_task(restart()))
                if stage == "propose":
                    await restarts[0]

        at_every_stage(monkeypatch, hook)
        output = await client.generate(request)
        assert len(restarts) == 1
        await restarts[0]
        assert output.token_ids == expected.token_ids
        assert output.text == expected.text
        assert output.statistics.output_tokens == 16
        await first.idle()
        first.assert_nothing_held()


async def test_a_restarted_verifier_that_is_full_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verifier_client, "RETRY_S", 0.01)
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(
            serving_verifier(target_model("wide"), files("wide"), context=CONTEXT)
        )
        drafter = await stack.enter_async_context(
            serving_drafter(draft_model("wide"), files("wide"), first.port)
        )
        client = await stack.enter_async_context(Client(drafter.address))
        request = Request(16, prompt=PROMPTS[0], ignore_eos=True)
        expected = await client.generate(request)
        attempts = verifier_client.VerifierClient.attempts
        asked, held = 0, list[Stream]()

        async def counted(*arguments: Any) -> AsyncIterator[None]:
            nonlocal asked
            async for tick in attempts(*arguments):
                asked += 1
                if asked == 4:
                    held[0].cancel()
                yield tick

        async def hook(session: SpeculativeSession, at: str) -> None:
            if at == "propose" and session.output_length >= 5 and not held:
                await first.server.stop()
                again = PagedModel(knowing_model(known("wide"), seed=0))
                second = await stack.enter_async_context(
                    serving_verifier(
                        again, files("wide"), first.port, context=CONTEXT, max_sessions=1
                    )
                )
                held.append(Stream(second))
                await held[0].send(second.open((5, 6)))
                monkeypatch.setattr(verifier_client.VerifierClient, "attempts", counted)

        at_every_stage(monkeypatch, hook)
        assert (await client.generate(request)).token_ids == expected.token_ids
        assert asked >= 4


async def test_a_verifier_that_is_gone_for_good_is_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verifier_client, "RETRY_S", 0.01)
    async with (
        serving_verifier(target_model("wide"), files("wide"), context=CONTEXT) as verifier,
        serving_drafter(
            draft_model("wide"), files("wide"), verifier.port, timeout_s=0.1
        ) as drafter,
        Client(drafter.address) as client,
    ):

        async def hook(session: SpeculativeSession, at: str) -> None:
            if at == "verify" and session.output_length >= 3:
                await verifier.server.stop()

        at_every_stage(monkeypatch, hook)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.generate(Request(16, prompt=PROMPTS[0], ignore_eos=True))
        assert caught.value.code() is StatusCode.UNAVAILABLE
        assert "no other answers" in (caught.value.details() or "")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.generate(Request(16, prompt=PROMPTS[0]))
        assert caught.value.code() is StatusCode.UNAVAILABLE
        await drafter.idle()
        drafter.assert_nothing_held()
