"""The verifier over real gRPC: its protocol, its refusals, and that they harm nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from common.model import PagedModel
from common.pb import verifier_pb2 as pb
from common.tokenizer import TokenizerFiles
from common.types import FinishReason, OpenSession, Proposal, Verdict
from common.wire_verify import verdict_from_pb, verify_once_to_pb, verify_request_to_pb
from tests.fake_models import random_model
from tests.fake_services import (
    MESSAGE_BYTES,
    Refusal,
    RunningVerifier,
    Stream,
    count_preemptions,
    serving_verifier,
)
from tests.fake_tokenizers import byte_level_tokenizer, files_of

VOCAB = 400
CONTEXT = 120
PROMPT = (20, 50, 80, 110)
UNKNOWN_FIELD = bytes([0xA0, 0x06, 5])  # field 100, varint 5


@cache
def files() -> TokenizerFiles:
    return files_of(byte_level_tokenizer())


@cache
def model() -> PagedModel:
    return PagedModel(random_model("llama", VOCAB))


@asynccontextmanager
async def serving(**sizes: int) -> AsyncIterator[RunningVerifier]:
    """A verifier that holds nothing once its calls are over."""
    async with serving_verifier(model(), files(), context=CONTEXT, **sizes) as verifier:
        yield verifier
        await verifier.idle()
        verifier.assert_nothing_held()


async def output(verifier: RunningVerifier, spec: OpenSession) -> list[int]:
    """A whole session at k = 0: the target alone."""
    return await checked(verifier, spec, [], 0)


async def checked(
    verifier: RunningVerifier, spec: OpenSession, truth: list[int], k: int
) -> list[int]:
    """A whole session of rounds with k draft tokens: all of them right, or the last one wrong."""
    stream, tokens = Stream(verifier), list[int]()
    verdict = await stream.send(spec)
    while True:
        assert verdict.next_token is not None
        tokens.append(verdict.next_token)
        if verdict.finish_reason is not None:
            assert await stream.ended()
            return tokens
        room = spec.max_new_tokens - len(tokens) - 1
        draft = truth[len(tokens) :][: min(k, room)]
        wrong = draft and verdict.round % 2
        if wrong:
            draft[-1] = (draft[-1] + 1) % VOCAB
        proposal = Proposal(verdict.round + 1, verdict.committed_length, tuple(draft))
        verdict = await stream.send(proposal)
        assert verdict.accepted_length == len(draft) - bool(wrong)
        tokens += draft[: verdict.accepted_length]


class Neighbour:
    """A session that runs beside others, and what it would have given alone."""

    def __init__(self, verifier: RunningVerifier) -> None:
        self._verifier = verifier
        self._spec = verifier.open((33, 44, 55), max_new_tokens=10, ignore_eos=True)
        self._stream = Stream(verifier)
        self._tokens: list[int] = []
        self._verdict: Verdict | None = None

    async def step(self) -> None:
        last = self._verdict
        content = Proposal(last.round + 1, last.committed_length, ()) if last else self._spec
        self._verdict = await self._stream.send(content)
        assert self._verdict.next_token is not None
        self._tokens.append(self._verdict.next_token)

    async def finish(self) -> None:
        """Go on to the end, and compare bit for bit with a session that ran alone."""
        while self._verdict is None or self._verdict.finish_reason is None:
            await self.step()
        assert self._tokens == await output(self._verifier, self._spec)


async def beside_another(verifier: RunningVerifier, act: Callable[[], Awaitable[Any]]) -> Any:
    """What `act` gives, while another session is in its middle; that one isn't disturbed."""
    neighbour = Neighbour(verifier)
    await neighbour.step()
    await neighbour.step()
    result = await act()
    await neighbour.finish()
    return result


async def test_a_session_answers_open_and_every_proposal() -> None:
    async with serving() as verifier:
        spec = verifier.open(PROMPT, max_new_tokens=12, ignore_eos=True)
        alone = await output(verifier, spec)
        assert len(alone) == 12
        for k in (1, 3, 8):
            assert await checked(verifier, spec, alone, k) == alone


async def test_the_first_verdict_is_the_first_token() -> None:
    async with serving() as verifier:
        stream = Stream(verifier)
        verdict = await stream.send(verifier.open(PROMPT))
        assert (verdict.round, verdict.accepted_length, verdict.committed_length) == (0, 0, 5)
        assert verdict.cost.batch_sessions == 1 and verdict.cost.forward_us > 0
        stream.cancel()


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
async def test_a_wrong_round_tells_the_verifiers_own_length(
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
        assert refusal.details["committed_length"] == "6"
        assert refusal.details["expected"] == str(expected)


async def test_proposals_sent_ahead_are_answered_in_order() -> None:
    async with serving() as verifier:
        spec = verifier.open(PROMPT, max_new_tokens=3, ignore_eos=True)

        async def requests() -> AsyncIterator[pb.VerifyRequest]:
            for content in (spec, Proposal(1, 5, ()), Proposal(2, 6, ())):
                yield verify_request_to_pb(content)

        verdicts = [verdict_from_pb(r.verdict) async for r in verifier.stub.Verify(requests())]
        assert [verdict.round for verdict in verdicts] == [0, 1, 2]
        assert [verdict.next_token for verdict in verdicts] == await output(verifier, spec)


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


def unknown(message: Any) -> Any:
    """The message, with a field of a later version in it."""
    return type(message).FromString(message.SerializeToString() + UNKNOWN_FIELD)


async def test_unknown_fields_and_empty_requests_are_refused() -> None:
    async with serving() as verifier:
        opened = verify_request_to_pb(verifier.open(PROMPT))
        for request, words in (
            (unknown(opened), "request carries field 100"),
            (pb.VerifyRequest(open=unknown(opened.open)), "open carries field 100"),
            (pb.VerifyRequest(), "neither open nor proposal"),
        ):

            async def act(request: pb.VerifyRequest = request) -> Refusal:
                return await Stream(verifier).refused(request)

            refusal = await beside_another(verifier, act)
            assert refusal.code is StatusCode.INVALID_ARGUMENT
            assert words in refusal.message


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
            assert refusal.details["field"] == field


async def test_more_draft_tokens_than_the_limit_are_refused() -> None:
    async with serving(max_draft_tokens=3) as verifier:

        async def act() -> Refusal:
            stream = Stream(verifier)
            await stream.send(verifier.open(PROMPT))
            return await stream.refused(Proposal(1, 5, (1, 2, 3, 4)))

        refusal = await beside_another(verifier, act)
        assert refusal.code is StatusCode.INVALID_ARGUMENT
        assert refusal.message == "proposal.token_ids is 4 tokens long; it must be at most 3"


async def test_another_tokenizer_is_a_failed_precondition() -> None:
    async with serving() as verifier:

        async def act() -> Refusal:
            return await Stream(verifier).refused(verifier.open(PROMPT, tokenizer_sha256="ab"))

        refusal = await beside_another(verifier, act)
        assert refusal.code is StatusCode.FAILED_PRECONDITION
        assert "open.tokenizer_sha256 is ab" in refusal.message
        assert files().sha256 in refusal.message


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


@pytest.mark.parametrize("length", [1, *range(CONTEXT - 10, CONTEXT)])
async def test_prompts_of_one_token_and_up_to_the_context_run_to_its_end(length: int) -> None:
    async with serving() as verifier:
        prompt = [3 + place % 300 for place in range(length)]
        spec = verifier.open(prompt, max_new_tokens=20, ignore_eos=True)
        alone = await output(verifier, spec)
        assert len(alone) == min(20, CONTEXT - length)
        stream = Stream(verifier)
        verdict = await stream.send(spec)
        tokens = [verdict.next_token]
        while verdict.finish_reason is None:  # more is proposed than can stand
            draft = tuple(alone[len(tokens) :])[:8] + (7,) * 8
            proposal = Proposal(verdict.round + 1, verdict.committed_length, draft[:8])
            verdict = await stream.send(proposal)
            tokens += draft[: verdict.accepted_length]
            if verdict.next_token is not None:
                tokens.append(verdict.next_token)
            assert verdict.committed_length == length + len(tokens) <= CONTEXT
        assert tokens == alone
        at_end = length + 20 > CONTEXT
        assert verdict.finish_reason is (FinishReason.CONTEXT if at_end else FinishReason.LENGTH)


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


async def test_the_tokenizer_arrives_whole_in_small_chunks() -> None:
    large = files_of(byte_level_tokenizer(), chat_template="é" * 1_500_000)
    async with serving_verifier(model(), large) as verifier:
        parts: dict[str, bytes] = {}
        sizes: dict[str, int] = {}
        async for part in verifier.stub.GetTokenizer(pb.GetTokenizerRequest()):
            assert part.ByteSize() < 2**20
            parts[part.filename] = parts.get(part.filename, b"") + part.chunk
            if part.file_bytes:
                sizes[part.filename] = part.file_bytes
        assert parts == dict(large.files)
        assert sizes == {name: len(data) for name, data in large.files.items()}
        assert max(sizes.values()) > MESSAGE_BYTES


async def test_it_says_what_it_serves() -> None:
    async with serving() as verifier:
        answer = await verifier.stub.GetModel(pb.GetModelRequest())
        assert answer.tokenizer_sha256 == files().sha256
        assert (answer.vocab_size, answer.max_context_length) == (VOCAB, CONTEXT)
        assert answer.row_invariant
        assert sorted(answer.eos_token_ids) == [0, 2]


async def once(verifier: RunningVerifier, spec: OpenSession, draft: tuple[int, ...]) -> Verdict:
    answer = await verifier.stub.VerifyOnce(verify_once_to_pb(spec, draft))
    return verdict_from_pb(answer.verdict)


async def test_a_stateless_round_answers_as_the_stream_does() -> None:
    async with serving() as verifier:
        spec = verifier.open(PROMPT, max_new_tokens=10, ignore_eos=True)
        truth = await output(verifier, spec)
        wrong = (truth[3] + 1) % VOCAB
        for draft, accepted in (
            ((), 0),
            (tuple(truth[:5]), 5),
            ((*truth[:3], wrong, *truth[4:6]), 3),
        ):
            verdict = await once(verifier, spec, draft)
            assert (verdict.round, verdict.accepted_length) == (0, accepted)
            assert verdict.next_token == truth[accepted]
            assert verdict.committed_length == len(PROMPT) + accepted + 1
        for length in range(9):  # any committed text may be the prompt
            longer = verifier.open((*PROMPT, *truth[:length]), 10, ignore_eos=True)
            assert (await once(verifier, longer, ())).next_token == truth[length]


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


async def test_many_sessions_at_once_under_pressure_give_what_each_gives_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two clients, a pool for two contexts, sessions that come and go at different rounds."""
    async with serving(pages=CONTEXT // 4 + 12) as verifier:
        specs = [
            verifier.open(
                [3 + (7 * i + place) % 300 for place in range(5 + 9 * i)], 6 + i, ignore_eos=True
            )
            for i in range(8)
        ]
        alone = [await output(verifier, spec) for spec in specs]
        preempted = count_preemptions(monkeypatch)
        other = RunningVerifier(verifier.engine, verifier.info, verifier.server, verifier.port)
        async with other.channel:
            together = await asyncio.gather(
                *(
                    checked((verifier, other)[i % 2], spec, alone[i], (0, 1, 3, 8)[i % 4])
                    for i, spec in enumerate(specs)
                )
            )
        assert together == alone
        assert len(preempted) > 5


async def test_ending_the_stream_at_any_time_frees_everything() -> None:
    async with serving() as verifier:
        spec = verifier.open(tuple(range(3, 100)), max_new_tokens=10, ignore_eos=True)

        async def act() -> None:
            for rounds in range(12):
                stream = Stream(verifier)
                if rounds == 0:
                    await stream._call.write(verify_request_to_pb(spec))  # in prefill
                else:
                    verdict = await stream.send(spec)
                    for _ in range(rounds % 4):
                        ahead = Proposal(verdict.round + 1, verdict.committed_length, (1, 2))
                        verdict = await stream.send(ahead)
                    ahead = Proposal(verdict.round + 1, verdict.committed_length, (1, 2))
                    await stream._call.write(verify_request_to_pb(ahead))  # in verification
                stream.cancel()

        await beside_another(verifier, act)


async def test_a_client_that_ends_its_side_ends_the_session() -> None:
    async with serving() as verifier:
        stream = Stream(verifier)
        await stream.send(verifier.open(PROMPT))
        await stream._call.done_writing()
        assert await stream.ended()
        await verifier.idle()
        verifier.assert_nothing_held()


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

        async def act() -> Refusal:
            return await Stream(verifier).refused(verifier.open(PROMPT))

        refusal = await beside_another(verifier, act)
        assert refusal.code is StatusCode.INTERNAL
        assert refusal.message == "the target model failed: RuntimeError"
