"""Every limit of a verifier is reported with its number, and going over one harms nobody else."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from grpc import StatusCode

from common.pb import verifier_pb2 as pb
from common.pb.sampling_pb2 import Sampling, SparseDistribution
from common.types import Proposal
from common.wire.verify import open_to_pb
from tests.support.fake_services import MESSAGE_BYTES
from tests.support.verifier_sessions import CONTEXT, PROMPT, beside_another, serving
from tests.support.verify_streams import Refusal, Stream


async def test_more_draft_tokens_than_the_limit_are_refused() -> None:
    async with serving(max_draft_tokens=3) as verifier:

        async def act() -> Refusal:
            stream = Stream(verifier)
            await stream.send(verifier.open(PROMPT))
            return await stream.refused(Proposal(1, 5, (1, 2, 3, 4)))

        refusal = await beside_another(verifier, act)
        assert refusal.code is StatusCode.INVALID_ARGUMENT
        assert refusal.message == "proposal.token_ids is 4 tokens long; it must be at most 3"


@pytest.mark.parametrize(
    ("prompt", "max_new_tokens", "words"),
    [
        ((), 4, "open.prompt_token_ids is empty"),
        (PROMPT, 0, "open.max_new_tokens is 0; it must be at least 1"),
        ((5,) * CONTEXT, 4, f"the prompt has {CONTEXT} tokens; the limit is {CONTEXT - 1}"),
        ((5,) * (CONTEXT + 50), 4, f"the limit is {CONTEXT - 1}"),
    ],
)
async def test_prompts_and_limits_that_cannot_work_are_refused(
    prompt: tuple[int, ...], max_new_tokens: int, words: str
) -> None:
    async with serving() as verifier:

        async def act() -> Refusal:
            return await Stream(verifier).refused(verifier.open(prompt, max_new_tokens))

        refusal = await beside_another(verifier, act)
        assert refusal.code is StatusCode.INVALID_ARGUMENT
        assert words in refusal.message


async def test_over_capacity_says_when_to_try_again() -> None:
    async with serving(max_sessions=2) as verifier:
        held = Stream(verifier)
        await held.send(verifier.open(PROMPT))

        async def act() -> Refusal:
            return await Stream(verifier).refused(verifier.open(PROMPT))

        refusal = await beside_another(verifier, act)
        assert refusal.code is StatusCode.RESOURCE_EXHAUSTED
        assert "all 2 sessions are in use" in refusal.message
        assert (refusal.retry_ms or 0) > 0
        held.cancel()


async def test_a_request_over_the_message_limit_is_resource_exhausted() -> None:
    async with serving() as verifier:
        assert MESSAGE_BYTES < 3_000_000
        large = pb.VerifyRequest(open=pb.Open(tokenizer_sha256="x" * 3_000_000))

        async def act() -> Refusal:
            return await Stream(verifier).refused(large)

        refusal = await beside_another(verifier, act)
        assert refusal.code is StatusCode.RESOURCE_EXHAUSTED
        assert str(MESSAGE_BYTES) in refusal.message


async def test_a_response_over_the_message_limit_is_resource_exhausted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as verifier:
        large = pb.GetModelResponse(model="x" * 3_000_000)
        monkeypatch.setattr("common.wire.verify.model_to_pb", lambda info: large)

        async def act() -> StatusCode:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await verifier.stub.GetModel(pb.GetModelRequest())
            return caught.value.code()

        assert await beside_another(verifier, act) is StatusCode.RESOURCE_EXHAUSTED


FILLING = [1] * 400_000  # ids that fill a message
Q_FILLING = [SparseDistribution(token_ids=[1], probabilities=[1.0])] * 100_000


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt_token_ids": FILLING}, "the prompt has 400004 tokens; the limit is 119"),
        ({"stop_token_ids": FILLING}, "open.stop_token_ids is 400000 ids long; it must be at most"),
        (
            {"tokenizer_sha256": "x" * 400_000},
            "open.tokenizer_sha256 is 400064 characters long; it must be 64 hexadecimal digits",
        ),
        (
            {"sampling": Sampling(logit_bias=dict.fromkeys(range(2000), 1.0))},
            "sampling.logit_bias is 2000 entries long; it must be at most 1024",
        ),
    ],
)
async def test_an_open_that_is_mostly_filling_is_refused_by_count(
    fields: dict[str, Any], words: str
) -> None:
    async with serving() as verifier:
        message = open_to_pb(verifier.open(PROMPT))
        if "tokenizer_sha256" in fields:
            message.tokenizer_sha256 += fields["tokenizer_sha256"]
        else:
            message.MergeFrom(pb.Open(**fields))

        async def act() -> Refusal:
            return await Stream(verifier).refused(pb.VerifyRequest(open=message))

        refusal = await beside_another(verifier, act)
        assert refusal.code is StatusCode.INVALID_ARGUMENT
        assert words in refusal.message


@pytest.mark.parametrize(
    ("proposal", "words"),
    [
        (pb.Proposal(token_ids=FILLING), "proposal.token_ids is 400000 tokens long"),
        (pb.Proposal(q=Q_FILLING), "proposal.q is 100000 rows long; it must be at most 8"),
        (
            pb.Proposal(token_ids=[1], q=[SparseDistribution(token_ids=FILLING)]),
            "proposal.q[0].token_ids is 400000 long; it must be at most 256",
        ),
        (
            pb.Proposal(token_ids=[1], q=[SparseDistribution(probabilities=[0.0] * 400_000)]),
            "proposal.q[0].token_ids is 400000 long; it must be at most 256",
        ),
    ],
)
async def test_a_proposal_that_is_mostly_filling_is_refused_by_count(
    proposal: pb.Proposal, words: str
) -> None:
    async with serving() as verifier:

        async def in_a_session() -> Refusal:
            stream = Stream(verifier)
            await stream.send(verifier.open(PROMPT))
            return await stream.refused(pb.VerifyRequest(proposal=proposal))

        async def once() -> tuple[StatusCode, str]:
            request = pb.VerifyOnceRequest(
                open=open_to_pb(verifier.open(PROMPT)),
                draft_token_ids=proposal.token_ids,
                q=proposal.q,
            )
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await verifier.stub.VerifyOnce(request)
            return caught.value.code(), caught.value.details() or ""

        refusal = await beside_another(verifier, in_a_session)
        assert refusal.code is StatusCode.INVALID_ARGUMENT
        assert words in refusal.message
        code, message = await beside_another(verifier, once)
        assert code is StatusCode.INVALID_ARGUMENT
        assert message == refusal.message.replace("proposal.token_ids", "draft_token_ids").replace(
            "proposal.", ""
        )


@pytest.mark.parametrize("opened", [False, True])
async def test_a_session_that_sends_nothing_is_let_go_of(opened: bool) -> None:
    async with serving(idle_timeout_s=0.2) as verifier:
        stream = Stream(verifier)
        if opened:
            await stream.send(verifier.open(PROMPT))
        code, message = await stream.status()
        assert code is StatusCode.DEADLINE_EXCEEDED
        assert message == "no open or proposal came for 0.2 s, which is the limit"
        await verifier.idle()
        verifier.assert_nothing_held()
