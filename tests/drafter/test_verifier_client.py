"""The drafter's end of the verifier's stream, with verifiers that break off or answer amiss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from common.pb import verifier_pb2 as pb
from common.rpc.error_details import ErrorDetails, encoded
from common.types import BridgeMode, ModelInfo, Proposal, TokenLogprobs, Verdict
from common.wire import verify as wire_verify
from drafter.session import Pair, SpeculativeSession
from drafter.verifier_client import client as verifier_client
from drafter.verifier_client.lost import VerifierLost, VerifierRefused, check_answer
from tests.drafter.fake_verifier import (
    COST,
    FILES,
    SPEC,
    FakeVerifier,
    aborting,
    client_of,
    ending,
    failing,
    hanging,
    late,
)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier_client, "RETRY_S", 0.01)


LOSSES = {
    "late": late,
    "ended": ending,
    "cancelled": aborting(StatusCode.CANCELLED, "a proxy gave up"),
    "reset": aborting(StatusCode.INTERNAL, "Received RST_STREAM with error code 2"),
    "unknown": aborting(StatusCode.UNKNOWN, "Stream removed"),
    "unavailable": aborting(StatusCode.UNAVAILABLE, "going away"),
}


@pytest.mark.parametrize("loss", LOSSES)
async def test_a_stream_that_breaks_off_is_opened_again_with_what_is_committed(loss: str) -> None:
    fake = FakeVerifier(LOSSES[loss])
    async with client_of(fake) as client:
        session = client.session(SPEC)
        first = await session.open()
        answer = await session.verify(Proposal(1, 3, (8, 9)))
        assert (first.reopened, answer.reopened) == (False, True)
        assert (answer.verdict.round, answer.verdict.accepted_length) == (1, 0)
        assert fake.opened == [(5, 6), (5, 6, 7)]
        assert fake.resumed == [0, 1]  # what penalties count as output
        after = await session.verify(Proposal(2, 4, ()))
        assert (after.reopened, after.verdict.round) == (False, 2)
        session.close()


@pytest.mark.parametrize("loss", LOSSES)
async def test_a_first_open_is_patient_for_a_moment(loss: str) -> None:
    fake = FakeVerifier(LOSSES[loss], at_open=True)
    async with client_of(fake) as client:
        session = client.session(SPEC)
        assert (await session.open()).verdict.next_token == 7
        assert fake.opened == [(5, 6), (5, 6)]
        session.close()


@pytest.mark.parametrize("at_open", [False, True])
async def test_a_verifier_that_takes_too_long_counts_as_lost(at_open: bool) -> None:
    fake = FakeVerifier(hanging, at_open)
    async with client_of(fake, 60.0, 1.0, 1.0) as client:
        session = client.session(SPEC)
        assert (await session.open()).verdict.next_token == 7
        answer = await session.verify(Proposal(1, 3, (8, 9)))
        assert answer.reopened or at_open
        assert fake.opened[-1] == ((5, 6) if at_open else (5, 6, 7))
        session.close()


@pytest.mark.parametrize(
    "wrong",
    [
        Verdict(2, 0, 7, 4, None, COST),  # of another round
        Verdict(1, 3, 7, 7, None, COST),  # more accepted than proposed
        Verdict(1, 1, 7, 4, None, COST),  # lengths that don't add up
        Verdict(1, 2, None, 5, None, COST),  # no next token, and yet no end
        Verdict(1, 0, 7, 4, None, COST, (TokenLogprobs(-1.0),)),  # not asked for
    ],
)
async def test_a_verdict_that_cannot_be_the_answer_is_never_taken(wrong: Verdict) -> None:
    async def answer(context: grpc.aio.ServicerContext) -> None:
        await context.write(pb.VerifyResponse(verdict=wire_verify.verdict_to_pb(wrong)))

    async with client_of(FakeVerifier(answer)) as client:
        session = client.session(SPEC)
        await session.open()
        assert (await session.verify(Proposal(1, 3, (8, 9)))).reopened
        session.close()


@pytest.mark.parametrize(
    "logprobs",
    [
        (),  # none
        (TokenLogprobs(-1.0),),  # of one token of two
        (TokenLogprobs(-1.0),) * 3,
        (TokenLogprobs(-1.0, (5, 6, 7), (-1.0, -2.0, -3.0)),) * 2,  # more than asked for
        (TokenLogprobs(-1.0, (5, 6), (-1.0,)),) * 2,  # ids and values don't match
    ],
)
def test_log_probabilities_that_are_not_the_committed_tokens_are_never_taken(
    logprobs: tuple[TokenLogprobs, ...],
) -> None:
    verdict = Verdict(1, 1, 7, 5, None, COST, logprobs)
    with pytest.raises(VerifierLost, match="its verdict on round 1 has"):
        check_answer(Proposal(1, 3, (8, 9)), verdict, 2)
    right = (TokenLogprobs(-1.0, (5, 6), (-1.0, -2.0)),) * 2
    check_answer(Proposal(1, 3, (8, 9)), replace(verdict, logprobs=right), 2)
    check_answer(Proposal(1, 3, (8, 9)), replace(verdict, logprobs=(TokenLogprobs(-1.0),) * 2), 0)


async def test_a_reopened_round_is_a_prefill_and_no_rejection() -> None:
    async with client_of(FakeVerifier(ending)) as client:
        info = ModelInfo("fake", FILES.sha256, 270, frozenset({0}), 64, 8, 256, 4, 9, True, "0")
        unused: Any = None
        pair = Pair(unused, unused, client, info, unused, lookup=False)
        session = SpeculativeSession(pair, SPEC, {}, 0, BridgeMode.TEXT)
        await session.open()
        assert session.statistics.wire_bytes > 0
        run = await session.verify(Proposal(1, 3, (8, 9)))
        assert (run.token_ids, session.output_length) == ((7,), 2)
        assert session.statistics.rounds == session.statistics.committed == 0
        assert session.statistics.drafted_by_position == []
        again = await session.propose()
        assert (again.round, again.base_length) == (2, 4)
        await session.verify(again)
        assert session.statistics.rounds == session.statistics.committed == 1
        session.close()


async def test_a_verifiers_own_error_is_handed_on() -> None:
    fake = FakeVerifier(failing)
    async with client_of(fake) as client:
        session = client.session(SPEC)
        await session.open()
        with pytest.raises(VerifierRefused, match="the target model failed") as caught:
            await session.verify(Proposal(1, 3, ()))
    assert caught.value.status is StatusCode.INTERNAL
    assert caught.value.reason == "MODEL_FAILED"
    assert len(fake.opened) == 1


async def test_any_details_travel_with_an_error() -> None:
    facts = {"status": "1", "message": "2", "self": "3"}
    sent = ErrorDetails("NOT_OURS", "field", 250, facts)
    details = (encoded(StatusCode.INVALID_ARGUMENT, "no", sent),)
    fake = FakeVerifier(aborting(StatusCode.INVALID_ARGUMENT, "no", details), at_open=True)
    async with client_of(fake) as client:
        with pytest.raises(VerifierRefused) as caught:
            await client.session(SPEC).open()
    refused = caught.value
    assert ErrorDetails(refused.reason, refused.field, refused.retry_ms, refused.metadata) == sent
