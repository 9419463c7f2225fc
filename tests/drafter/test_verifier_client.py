"""The drafter's end of the seam against verifiers that break off, change or answer amiss."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from common.errors import ModelFailed, VerifierRefused, VerifierUnavailable
from common.pb import verifier_pb2 as pb
from common.pb import verifier_pb2_grpc
from common.rpc.channel import open_channel
from common.rpc.error_details import ErrorDetails, encoded
from common.types import BridgeMode, ModelInfo, OpenSession, Proposal, RoundCost, Verdict
from common.wire import verify as wire_verify
from drafter.session import Pair, SpeculativeSession
from drafter.verifier_client import client as verifier_client
from drafter.verifier_client.client import VerifierClient
from tests.support.fake_services import MESSAGE_BYTES, serving
from tests.support.fake_tokenizers import byte_level_tokenizer, files_of

FILES = files_of(byte_level_tokenizer(size=270))
SPEC = OpenSession((5, 6), 8, FILES.sha256)
COST = RoundCost(1, 1, 1, 1, 1)
Breaking = Callable[[grpc.aio.ServicerContext], Any]


class FakeVerifier(verifier_pb2_grpc.VerifierServiceServicer):
    """Commits one token a round; breaks its first streams at their first proposal, or at open."""

    def __init__(self, break_off: Breaking | None = None, at_open: bool = False) -> None:
        self.break_off = break_off
        self.at_open = at_open
        self.sha256 = [FILES.sha256]  # one for each GetModel; the last one stays
        self.short = 0  # bytes that go missing
        self.silences = 0  # so many times it never says what it serves
        self.opened: list[tuple[int, ...]] = []
        self.resumed: list[int] = []  # output tokens of an earlier life, of each opened session

    async def GetModel(self, request: Any, context: Any) -> pb.GetModelResponse:
        if self.silences:
            self.silences -= 1
            await asyncio.Event().wait()
        sha256 = self.sha256.pop(0) if len(self.sha256) > 1 else self.sha256[0]
        info = ModelInfo(
            "fake", sha256, 270, frozenset({0}), 64, 8, 256, 4, MESSAGE_BYTES, True, "0"
        )
        return wire_verify.model_to_pb(info)

    async def GetTokenizer(
        self, request: Any, context: Any
    ) -> AsyncIterator[pb.GetTokenizerResponse]:
        for name, data in FILES.files.items():
            half = len(data) // 2
            yield pb.GetTokenizerResponse(filename=name, chunk=data[:half], file_bytes=len(data))
            yield pb.GetTokenizerResponse(filename=name, chunk=data[half + self.short :])

    async def Verify(self, requests: Any, context: Any) -> AsyncIterator[pb.VerifyResponse]:
        length = 0
        async for request in requests:
            content = wire_verify.verify_request_from_pb(request)
            if isinstance(content, OpenSession):
                self.opened.append(content.prompt)
                self.resumed.append(content.resumed_output_tokens)
                length, round_ = len(content.prompt), 0
            else:
                round_ = content.round
            if self.break_off and isinstance(content, OpenSession) is self.at_open:
                break_off, self.break_off = self.break_off, None
                await break_off(context)
                return
            length += 1
            verdict = Verdict(round_, 0, 7, length, None, COST)
            yield pb.VerifyResponse(verdict=wire_verify.verdict_to_pb(verdict))


@asynccontextmanager
async def client_of(
    fake: FakeVerifier,
    timeout_s: float = 5.0,
    round_timeout_s: float | None = None,
    open_timeout_s: float | None = None,
) -> AsyncIterator[VerifierClient]:
    register = verifier_pb2_grpc.add_VerifierServiceServicer_to_server
    async with (
        serving("crossdraft.v1.VerifierService", register, fake) as (_, port),
        open_channel(f"127.0.0.1:{port}", MESSAGE_BYTES) as channel,
    ):
        yield VerifierClient(channel, timeout_s, round_timeout_s, open_timeout_s)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier_client, "RETRY_S", 0.01)


def aborting(*arguments: Any) -> Breaking:
    async def break_off(context: grpc.aio.ServicerContext) -> None:
        await context.abort(*arguments)

    return break_off


async def ending(context: grpc.aio.ServicerContext) -> None:
    """The stream ends with status OK and no finish reason."""


async def failing(context: grpc.aio.ServicerContext) -> None:
    raise ModelFailed("the target model failed: RuntimeError")


async def late(context: grpc.aio.ServicerContext) -> None:
    """The verdict of another round."""
    verdict = Verdict(5, 0, 7, 3, None, COST)
    await context.write(pb.VerifyResponse(verdict=wire_verify.verdict_to_pb(verdict)))


async def hanging(context: grpc.aio.ServicerContext) -> None:
    await asyncio.Event().wait()


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


async def test_a_reopened_round_is_a_prefill_and_no_rejection() -> None:
    async with client_of(FakeVerifier(ending)) as client:
        info = ModelInfo("fake", FILES.sha256, 270, frozenset({0}), 64, 8, 256, 4, 9, True, "0")
        unused: Any = None
        pair = Pair(unused, unused, client, info, unused, lookup=False)
        session = SpeculativeSession(pair, SPEC, {}, 0, BridgeMode.TEXT)
        await session.open()
        assert session.statistics.wire_bytes > 0
        run = await session.check(Proposal(1, 3, (8, 9)))
        assert (run.token_ids, session.output_length) == ((7,), 2)
        assert session.statistics.rounds == session.statistics.committed == 0
        assert session.statistics.drafted_by_position == []
        again = await session.propose()
        assert (again.round, again.base_length) == (2, 4)
        await session.check(again)
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


async def test_a_verifier_that_changes_while_it_is_described_is_asked_again() -> None:
    fake = FakeVerifier()
    fake.sha256 = ["of another", FILES.sha256]
    async with client_of(fake) as client:
        info, files = await client.describe()
    assert info.tokenizer_sha256 == files.sha256 == FILES.sha256
    assert files.files == FILES.files


async def test_a_verifier_that_stays_silent_while_it_is_described_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("drafter.verifier_client.description.LIMIT_S", 0.2)
    fake = FakeVerifier()
    fake.silences = 1
    async with client_of(fake) as client:
        info, _ = await client.describe()
    assert info.tokenizer_sha256 == FILES.sha256 and not fake.silences


@pytest.mark.parametrize("changes", [{"sha256": ["of another"]}, {"short": 1}])
async def test_a_tokenizer_that_isnt_the_models_is_never_taken(changes: dict[str, Any]) -> None:
    fake = FakeVerifier()
    vars(fake).update(changes)
    async with client_of(fake, timeout_s=0.05) as client:
        with pytest.raises(VerifierUnavailable):
            await client.describe()
