"""Every limit of a verifier is told with its number, and going over one harms nobody else."""

from __future__ import annotations

import grpc
import pytest
from grpc import StatusCode

from common.pb import verifier_pb2 as pb
from common.types import Proposal
from common.wire_verify import open_to_pb
from tests.fake_services import MESSAGE_BYTES
from tests.verifier_sessions import CONTEXT, PROMPT, beside_another, serving
from tests.verify_streams import Refusal, Stream


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
        assert int(refusal.details["retry_ms"]) > 0
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
        monkeypatch.setattr("common.wire_verify.model_to_pb", lambda info: large)

        async def act() -> StatusCode:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await verifier.stub.GetModel(pb.GetModelRequest())
            return caught.value.code()

        assert await beside_another(verifier, act) is StatusCode.RESOURCE_EXHAUSTED


async def test_more_biased_ids_or_stop_ids_than_the_limit_are_refused() -> None:
    """Ids out of range come after the count, so that nobody looks at each of a million."""
    async with serving() as verifier:
        biased, stopping = open_to_pb(verifier.open(PROMPT)), open_to_pb(verifier.open(PROMPT))
        biased.sampling.logit_bias.update(dict.fromkeys(range(4097), 1.0))
        stopping.stop_token_ids.extend([2**32 - 1] * 4097)
        for opened, field in (
            (biased, "sampling.logit_bias"),
            (stopping, "open.stop_token_ids"),
        ):

            async def act(opened: pb.Open = opened) -> Refusal:
                return await Stream(verifier).refused(pb.VerifyRequest(open=opened))

            refusal = await beside_another(verifier, act)
            assert refusal.code is StatusCode.INVALID_ARGUMENT
            assert refusal.message == f"{field} is 4097 ids long; it must be at most 4096"
