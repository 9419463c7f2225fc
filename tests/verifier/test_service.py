"""The verifier over real gRPC: sessions, stateless rounds, its tokenizer, many at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from common.pb import verifier_pb2 as pb
from common.types import FinishReason, OpenSession, Proposal, Verdict
from common.wire.verify import verdict_from_pb, verify_once_to_pb, verify_request_to_pb
from tests.kv.preemptions import count_preemptions
from tests.support.fake_services import MESSAGE_BYTES, RunningVerifier, serving_verifier
from tests.support.fake_tokenizers import byte_level_tokenizer, files_of
from tests.support.verifier_sessions import (
    CONTEXT,
    PROMPT,
    VOCAB,
    beside_another,
    checked,
    files,
    model,
    output,
    serving,
)
from tests.support.verify_streams import Stream


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


async def test_proposals_sent_ahead_are_answered_in_order() -> None:
    async with serving() as verifier:
        spec = verifier.open(PROMPT, max_new_tokens=3, ignore_eos=True)

        async def requests() -> AsyncIterator[pb.VerifyRequest]:
            for content in (spec, Proposal(1, 5, ()), Proposal(2, 6, ())):
                yield verify_request_to_pb(content)

        verdicts = [verdict_from_pb(r.verdict) async for r in verifier.stub.Verify(requests())]
        assert [verdict.round for verdict in verdicts] == [0, 1, 2]
        assert [verdict.next_token for verdict in verdicts] == await output(verifier, spec)


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
        while verdict.finish_reason is None:  # more is proposed than can be accepted
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
        assert (answer.max_draft_tokens, answer.max_q_entries) == (8, 256)
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
        assert sum(len(spec.prompt) for spec in specs) > verifier.engine.pool.capacity_tokens
        preempted, opened = count_preemptions(monkeypatch), asyncio.Barrier(len(specs))
        other = RunningVerifier(verifier.engine, verifier.info, verifier.server, verifier.port)
        async with other.channel:
            together = await asyncio.gather(
                *(
                    checked((verifier, other)[i % 2], spec, alone[i], (0, 1, 3, 8)[i % 4], opened)
                    for i, spec in enumerate(specs)
                )
            )
        assert together == alone
        assert preempted


async def test_two_sessions_that_do_not_fit_together_never_take_each_others_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each has 0.6 of the pool: the later one waits for the other's end, and both are right."""
    async with serving(pages=CONTEXT // 4) as verifier:
        specs = [verifier.open([3 + i] * 60, 12, ignore_eos=True) for i in range(2)]
        alone = [await output(verifier, spec) for spec in specs]
        preempted = count_preemptions(monkeypatch)
        runs = (checked(verifier, spec, alone[i], 1) for i, spec in enumerate(specs))
        assert await asyncio.gather(*runs) == alone
        assert len(preempted) <= 1  # the later one, if it had begun before the other was done


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
