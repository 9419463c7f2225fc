"""What goes wrong around a stream: clients leave, the draft model fails, the verifier restarts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from cli.children import free_addresses
from cli.client import Client, Output, Request
from common.model import PagedModel
from common.types import BridgeMode, Origin
from drafter import verifier_client
from drafter.service import DrafterService
from drafter.session import SpeculativeSession
from tests.fake_models import knowing_model
from tests.fake_pairs import (
    CONTEXT,
    PROMPTS,
    RunningPair,
    draft_model,
    files,
    known,
    serving_pair,
    target_model,
)
from tests.fake_services import Stream, serving_drafter, serving_verifier

STAGES = ("open", "propose", "check", "emit")
Hook = Callable[[SpeculativeSession, str], Awaitable[None]]


def at_every_stage(monkeypatch: pytest.MonkeyPatch, hook: Hook) -> None:
    """Have `hook` run in the drafter as a session comes to a stage."""
    for stage in STAGES[:3]:
        original = getattr(SpeculativeSession, stage)

        async def entered(
            session: SpeculativeSession, *arguments: Any, stage: str = stage, do: Any = original
        ) -> Any:
            await hook(session, stage)
            return await do(session, *arguments)

        monkeypatch.setattr(SpeculativeSession, stage, entered)
    pieces = DrafterService._pieces

    def emitting(self: DrafterService, run: Any, text: Any, session: SpeculativeSession) -> Any:
        with pytest.raises(StopIteration):  # this stage can't wait, so that its hook mustn't
            hook(session, "emit").__await__().__next__()
        return pieces(self, run, text, session)

    monkeypatch.setattr(DrafterService, "_pieces", emitting)


async def cancelled_at(
    pair: RunningPair, monkeypatch: pytest.MonkeyPatch, count: int, choose: random.Random
) -> dict[str, int]:
    """Run `count` requests, 8 at once, and cancel each at some stage of some round."""
    due: dict[int, tuple[str, int, asyncio.Task[Output]]] = {}
    hits = dict.fromkeys(STAGES, 0)
    visits: dict[tuple[int, str], int] = {}

    async def hook(session: SpeculativeSession, stage: str) -> None:
        number = session._spec.prompt[0]  # tells requests apart
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
    """504 times with room for all, 504 times where sessions preempt each other."""
    sizes = {"pages": CONTEXT // 4 + 3} if pressed else {}
    drafter = {"context": CONTEXT, **sizes}
    async with serving_pair("two byte-level tokenizers", sizes, **drafter) as pair:
        hits = await cancelled_at(pair, monkeypatch, 504, random.Random(pressed))
        assert sum(hits.values()) == 504
        assert min(hits.values()) > 80
        assert pair.verifier.engine.open_sessions <= 8
        output = await pair.generate(PROMPTS[0], draft_steps=0)
        assert (await pair.generate(PROMPTS[0])).token_ids == output.token_ids


async def test_a_draft_model_that_raises_leaves_the_target_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving_pair(lookup=False) as pair:
        expected = (await pair.generate(PROMPTS[0], 20, draft_steps=0)).token_ids
        assert (await pair.client.pair()).drafting
        model, steps = pair.drafter.pair.engine._model, 0
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


async def test_one_step_that_raises_fails_every_draft_in_it_and_no_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving_pair("same tokenizer", lookup=False) as pair:
        expected = [await pair.generate(prompt, draft_steps=0) for prompt in PROMPTS]
        model = pair.drafter.pair.engine._model
        forward = model.forward

        def failing(chunks: Any) -> Any:
            if len(chunks) >= 4:
                raise RuntimeError
            return forward(chunks)

        monkeypatch.setattr(model, "forward", failing)
        outputs = await asyncio.gather(*(pair.generate(prompt) for prompt in PROMPTS))
        assert [o.token_ids for o in outputs] == [o.token_ids for o in expected]


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


async def test_a_drafter_waits_for_a_verifier_that_starts_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (address,) = free_addresses(1)
    port = int(address.rpartition(":")[2])
    failed = asyncio.Event()
    judge = verifier_client._raise_unless_lost

    def judging(error: grpc.aio.AioRpcError) -> None:
        failed.set()
        judge(error)

    monkeypatch.setattr(verifier_client, "_raise_unless_lost", judging)
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
        async with serving_drafter(draft_model("wide"), files("wide"), port, patience_s=0):
            pass


@pytest.mark.parametrize("stage", ["propose", "check"])
@pytest.mark.parametrize("steps", [0, 3])
async def test_a_verifier_that_restarts_in_mid_stream_is_a_pause_and_no_more(
    stage: str, steps: int, monkeypatch: pytest.MonkeyPatch
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
        request = Request(16, prompt=PROMPTS[0], ignore_eos=True, draft_steps=steps)
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
            draft_model("wide"), files("wide"), verifier.port, patience_s=0.1
        ) as drafter,
        Client(drafter.address) as client,
    ):

        async def hook(session: SpeculativeSession, at: str) -> None:
            if at == "check" and session.output_length >= 3:
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
