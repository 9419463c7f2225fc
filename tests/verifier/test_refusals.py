"""What a verifier refuses, with which status, and that it harms nobody else."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from common.pb import verifier_pb2 as pb
from common.types import Proposal
from common.wire.verify import verify_once_to_pb
from tests.support.verifier_sessions import (
    PROMPT,
    VOCAB,
    beside_another,
    files,
    model,
    output,
    serving,
)
from tests.support.verify_streams import Refusal, Stream


@pytest.mark.parametrize(
    ("round_", "base", "field", "expected"),
    [
        (1, 5, "proposal.round", 2),  # repeated
        (0, 4, "proposal.round", 2),  # stale
        (3, 7, "proposal.round", 2),  # ahead
        (2, 5, "proposal.base_length", 6),
        (2, 7, "proposal.base_length", 6),
    ],
)
async def test_a_wrong_round_reports_the_verifiers_own_length(
    round_: int, base: int, field: str, expected: int
) -> None:
    async with serving() as verifier:
        stream = Stream(verifier)

        async def act() -> Refusal:
            await stream.send(verifier.open(PROMPT))
            verdict = await stream.send(Proposal(1, 5, ()))
            assert verdict.committed_length == 6
            return await stream.refused(Proposal(round_, base, (1,)))

        refusal = await beside_another(verifier, act)
        assert refusal.code is StatusCode.FAILED_PRECONDITION
        assert f"{field} is {round_ if 'round' in field else base}" in refusal.message
        assert refusal.metadata["committed_length"] == "6"
        assert refusal.metadata["expected"] == str(expected)


async def test_a_second_open_and_a_proposal_before_open_are_out_of_order() -> None:
    async with serving() as verifier:

        async def second_open() -> Refusal:
            stream = Stream(verifier)
            await stream.send(verifier.open(PROMPT))
            return await stream.refused(verifier.open(PROMPT))

        async def no_open() -> Refusal:
            return await Stream(verifier).refused(Proposal(1, 4, ()))

        for act, words in ((second_open, "second open"), (no_open, "must begin with open")):
            refusal = await beside_another(verifier, act)
            assert refusal.code is StatusCode.FAILED_PRECONDITION
            assert words in refusal.message


async def test_an_empty_request_is_refused() -> None:
    async with serving() as verifier:

        async def act() -> Refusal:
            return await Stream(verifier).refused(pb.VerifyRequest())

        refusal = await beside_another(verifier, act)
        assert refusal.code is StatusCode.INVALID_ARGUMENT
        assert "neither open nor proposal" in refusal.message


@pytest.mark.parametrize("bad", [VOCAB, 2**31 - 1])
async def test_an_id_outside_the_vocabulary_harms_its_own_session_only(bad: int) -> None:
    async with serving() as verifier:

        async def proposed() -> Refusal:
            stream = Stream(verifier)
            await stream.send(verifier.open(PROMPT))
            return await stream.refused(Proposal(1, 5, (3, bad)))

        async def prompted() -> Refusal:
            return await Stream(verifier).refused(verifier.open((3, bad)))

        async def stopped() -> Refusal:
            stops = frozenset({bad})
            return await Stream(verifier).refused(verifier.open(PROMPT, stop_ids=stops))

        for act, field in (
            (proposed, "proposal.token_ids[1]"),
            (prompted, "open.prompt_token_ids[1]"),
            (stopped, "open.stop_token_ids[0]"),
        ):
            refusal = await beside_another(verifier, act)
            assert refusal.code is StatusCode.INVALID_ARGUMENT
            assert refusal.message == f"{field} is {bad}; it must be in [0, {VOCAB})"
            assert refusal.field == field


async def test_another_tokenizer_is_a_failed_precondition() -> None:
    async with serving() as verifier:

        async def act() -> Refusal:
            return await Stream(verifier).refused(verifier.open(PROMPT, tokenizer_sha256="ab"))

        refusal = await beside_another(verifier, act)
        assert refusal.code is StatusCode.FAILED_PRECONDITION
        assert "open.tokenizer_sha256 is ab" in refusal.message
        assert files().sha256 in refusal.message


async def test_a_stateless_round_is_refused_as_the_stream_is() -> None:
    async with serving(max_draft_tokens=3) as verifier:
        spec = verifier.open(PROMPT)
        for request, words in (
            (pb.VerifyOnceRequest(), "no open"),
            (verify_once_to_pb(spec, (1, 2, 3, 4)), "draft_token_ids is 4 tokens long"),
            (verify_once_to_pb(spec, (1, VOCAB)), "draft_token_ids[1]"),
        ):

            async def act(request: pb.VerifyOnceRequest = request) -> Refusal:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await verifier.stub.VerifyOnce(request)
                return Refusal(caught.value)

            refusal = await beside_another(verifier, act)
            assert refusal.code is StatusCode.INVALID_ARGUMENT
            assert words in refusal.message


async def opened_beside_another(verifier: Any) -> Refusal:
    async def act() -> Refusal:
        return await Stream(verifier).refused(verifier.open(PROMPT))

    return await beside_another(verifier, act)


async def test_a_model_that_raises_ends_the_sessions_of_that_batch_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as verifier:
        forward = model().forward

        def failing(chunks: Any) -> Any:
            if any(PROMPT[0] in chunk.tokens for chunk in chunks):
                raise RuntimeError("secret")
            return forward(chunks)

        monkeypatch.setattr(verifier.engine._model, "forward", failing)
        refusal = await opened_beside_another(verifier)
        assert refusal.code is StatusCode.INTERNAL
        assert refusal.message == "the target model failed: RuntimeError"


@pytest.mark.parametrize("stage", ["forward", "accept"])
async def test_what_makes_a_pass_raise_ends_alone_whoever_shares_the_pass(
    monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """The pass is tried again by halves."""
    async with serving() as verifier:
        specs = [verifier.open((20 + i, 50, 80), 8, ignore_eos=True) for i in range(8)]
        culprit = specs[5].prompt[0]
        alone = [await output(verifier, spec) for spec in specs]
        engine, beside = verifier.engine, list[int]()
        gathered = threading.Event()
        forward, accept = engine._model.forward, engine._acceptance.accept

        def forwarding(chunks: Any) -> Any:
            gathered.wait(20)  # all others open while the first pass runs
            begins = [chunk for chunk in chunks if culprit in chunk.tokens]
            if stage == "forward" and begins:
                beside.append(len(chunks) - 1)
                raise RuntimeError("secret")
            return forward(chunks)

        def accepting(batch: Any, logits: Any) -> Any:
            if stage == "accept" and any(s.spec.prompt[0] == culprit for s in batch.verified):
                beside.append(len(batch.verified) - 1)
                raise IndexError("secret")
            return accept(batch, logits)

        monkeypatch.setattr(engine._model, "forward", forwarding)
        monkeypatch.setattr(engine._acceptance, "accept", accepting)
        runs = [
            asyncio.create_task(output(verifier, spec) if i != 5 else refused(verifier, spec))
            for i, spec in enumerate(specs)
        ]
        for _ in range(2000):
            if engine.open_sessions < len(specs):
                await asyncio.sleep(0.01)
        gathered.set()
        results = await asyncio.gather(*runs)
        assert beside[0] > 1 and beside[-1] == 0  # shared its pass, and was found
        assert (
            results[5]
            == f"the target model failed: {'RuntimeError' if stage == 'forward' else 'IndexError'}"
        )
        assert results[:5] + results[6:] == alone[:5] + alone[6:]


async def refused(verifier: Any, spec: Any) -> Any:
    return (await Stream(verifier).refused(spec)).message


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
async def test_logits_that_are_no_numbers_end_their_own_session_only(
    monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    async with serving() as verifier:
        forward = model().forward

        def overflowing(chunks: Any) -> Any:
            logits, row = forward(chunks).clone(), 0
            for chunk in chunks:
                if PROMPT[0] in chunk.tokens:
                    logits[row : row + chunk.logit_rows, 3] = value
                row += chunk.logit_rows
            return logits

        monkeypatch.setattr(verifier.engine._model, "forward", overflowing)
        refusal = await opened_beside_another(verifier)
        assert refusal.code is StatusCode.INTERNAL
        assert refusal.message == "the target model failed: its logits aren't finite"
