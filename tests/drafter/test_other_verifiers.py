"""Several verifiers of one name: another one is asked where one is full, silent or slow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from grpc import StatusCode

from cli.children import free_addresses
from common.errors import OverCapacity, VerifierUnavailable
from common.pb import verifier_pb2 as pb
from common.pb import verifier_pb2_grpc
from common.rpc import verifier_id
from common.rpc.channel import open_channel
from common.types import Proposal
from drafter.drafting import Drafting
from drafter.verifier_client import client as verifier_client
from drafter.verifier_client import selection as selection
from drafter.verifier_client import session as verifier_session
from drafter.verifier_client.client import VerifierClient
from drafter.verifier_client.lost import VerifierRefused
from drafter.verifier_client.session import VerifierSession
from tests.drafter.fake_verifier import SPEC, Breaking, FakeVerifier, aborting, hanging
from tests.support.fake_pairs import PROMPTS, serving_pair
from tests.support.fake_services import MESSAGE_BYTES, serving

NAME = "crossdraft.v1.VerifierService"
LONG_S = 600.0  # for what would hang for ever
ROUND = Proposal(1, 3, (8, 9))


class Named(FakeVerifier):
    """Sends its id."""

    def __init__(self, break_off: Breaking | None = None, at_open: bool = False) -> None:
        super().__init__(break_off, at_open)
        self.id = verifier_id.new()
        self.asked = 0
        self.full = False
        self.silent = False  # its process hangs
        self.hangs = False  # its engine does

    async def Verify(self, requests: Any, context: Any) -> AsyncIterator[pb.VerifyResponse]:
        self.asked += 1
        await self._unless(lambda: self.silent)
        context.set_trailing_metadata(((verifier_id.KEY, self.id),))
        await context.send_initial_metadata(((verifier_id.KEY, self.id),))
        taken = self._taken(requests)
        if self.full:
            await anext(taken)  # as a verifier does, which reads what it refuses
            raise OverCapacity("sessions", 4, 250)
        async for response in super().Verify(taken, context):
            yield response

    async def _taken(self, requests: Any) -> AsyncIterator[Any]:
        async for request in requests:
            await self._unless(lambda: self.silent or self.hangs)
            yield request

    async def _unless(self, stuck: Any) -> None:
        if stuck():
            await asyncio.Event().wait()


@asynccontextmanager
async def client_of(
    *fakes: FakeVerifier, timeout_s: float = LONG_S, round_timeout_s: float | None = None
) -> AsyncIterator[VerifierClient]:
    """In turns at all of them, each of which is known to it already."""
    register = verifier_pb2_grpc.add_VerifierServiceServicer_to_server
    async with AsyncExitStack() as stack:
        ports = [
            (await stack.enter_async_context(serving(NAME, register, fake)))[1] for fake in fakes
        ]
        address = "ipv4:" + ",".join(f"127.0.0.1:{port}" for port in ports)
        channel = await stack.enter_async_context(open_channel(address, MESSAGE_BYTES))
        client = VerifierClient(channel, timeout_s, round_timeout_s)
        while len(fakes) > 1 and not all(fake.opened for fake in fakes):
            session = client.session(SPEC)
            await session.open()
            session.close()
        yield client


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier_client, "RETRY_S", 0.01)


async def opened(client: VerifierClient) -> VerifierSession:
    session = client.session(SPEC)
    await asyncio.wait_for(session.open(), LONG_S)
    return session


async def test_a_new_session_finds_the_verifier_that_has_capacity() -> None:
    full, free = Named(), Named()
    async with client_of(full, free) as client:
        full.full, before = True, len(free.opened)
        for session in [await opened(client) for _ in range(6)]:
            session.close()
        assert len(free.opened) == before + 6
        free.full = True
        asked = full.asked, free.asked
        with pytest.raises(VerifierRefused, match="all 4 sessions") as caught:
            await opened(client)
        assert caught.value.status is StatusCode.RESOURCE_EXHAUSTED
        assert caught.value.retry_ms == 250
        assert verifier_id.KEY not in caught.value.metadata  # it goes no further
        assert full.asked > asked[0] and free.asked > asked[1]


async def test_a_full_verifier_without_others_is_asked_a_few_times_and_no_more() -> None:
    fake = Named()
    fake.full = True
    async with client_of(fake) as client:
        with pytest.raises(VerifierRefused):
            await opened(client)
        assert fake.asked == selection.REFUSALS
        # Once it has been met so often, there can't be another one.
        for _ in range(selection.SOLE_AFTER):
            before = fake.asked
            with pytest.raises(VerifierRefused):
                await opened(client)
        assert fake.asked == before + 1


async def test_a_new_session_that_is_lost_and_then_refused_waits_for_no_capacity() -> None:
    """It has had nothing yet, so that whoever asked may as well come again."""

    async def break_off(context: Any) -> None:
        fake.full = True
        await context.abort(StatusCode.UNAVAILABLE, "killed")

    fake = Named(break_off, at_open=True)
    async with client_of(fake) as client:
        with pytest.raises(VerifierRefused, match="all 4 sessions"):
            await opened(client)
    assert fake.opened


async def test_while_sessions_are_refused_the_draft_model_reads_no_prompt_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[Drafting] = []
    monkeypatch.setattr(Drafting, "read_ahead", lambda drafting: read.append(drafting))
    async with serving_pair() as pair:
        expected = await pair.generate(PROMPTS[0])
        assert len(read) == 1
        pair.drafter.pair.verifier.history.refused()
        monkeypatch.setattr(selection, "FULL_S", LONG_S)
        output = await pair.generate(PROMPTS[0])
        assert len(read) == 1 and output.token_ids == expected.token_ids
        monkeypatch.setattr(selection, "FULL_S", 0.0)
        await pair.generate(PROMPTS[0])
        assert len(read) == 2


@pytest.mark.parametrize("hangs", ["silent", "hangs"])
async def test_a_session_that_a_verifier_kept_too_long_goes_on_at_another(
    hangs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it is that one's turn, and a first round may take as long as it does."""
    monkeypatch.setattr(verifier_session, "ANSWER_S", 0.5)
    one, other = Named(), Named()
    async with client_of(one, other, round_timeout_s=0.5) as client:
        before = len(one.opened)
        session = await opened(client)
        slow, well = (one, other) if len(one.opened) > before else (other, one)
        (await opened(client)).close()  # takes the turn of the one that is well
        vars(slow)[hangs] = True
        times = len(well.opened)
        answer = await asyncio.wait_for(session.verify(ROUND), LONG_S)
        assert answer.reopened and len(well.opened) == times + 1
        assert well.opened[-1] == (5, 6, 7)
        session.close()


async def test_a_new_session_does_not_wait_at_a_verifier_that_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verifier_session, "ANSWER_S", 0.5)
    silent, well = Named(), Named()
    async with client_of(silent, well) as client:
        silent.silent = True
        for session in [await opened(client) for _ in range(2)]:
            session.close()


async def test_where_there_is_no_other_the_slow_one_is_taken_again() -> None:
    fake = Named(hanging)
    async with client_of(fake, round_timeout_s=0.5) as client:
        session = await opened(client)
        answer = await asyncio.wait_for(session.verify(ROUND), LONG_S)
        assert answer.reopened and fake.opened[-1] == (5, 6, 7)
        session.close()


async def test_a_verifier_lost_over_the_prompt_is_waited_for_as_in_later_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verifier_session, "OPEN_TIMEOUT_S", 0.0)
    fake = Named(aborting(StatusCode.UNAVAILABLE, "killed"), at_open=True)
    async with client_of(fake) as client:
        session = await opened(client)
        assert fake.opened == [(5, 6), (5, 6)]
        session.close()


async def test_a_new_request_waits_for_a_moment_where_there_is_no_verifier(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verifier_session, "OPEN_TIMEOUT_S", 0.0)
    (address,) = free_addresses(1)
    async with open_channel(address, MESSAGE_BYTES) as channel:
        with pytest.raises(VerifierUnavailable, match="no verifier answers after 0 s"):
            await opened(VerifierClient(channel, LONG_S))
