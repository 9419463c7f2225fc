"""A network that delays, stalls and cuts before a verifier: a pause, and the same text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from client.client import Client, Request
from common.rpc import channel as grpc_channel
from common.sampling.parameters import SamplingParams
from common.types import Proposal, Verdict
from drafter.session import SpeculativeSession
from drafter.verifier_client import client as verifier_client
from drafter.verifier_client.session import VerifierSession
from tests.support.fake_pairs import CONTEXT, PROMPTS, draft_model, files, target_model
from tests.support.fake_services import RunningVerifier, serving_drafter, serving_verifier
from tests.support.network import Network, network_to
from tests.support.stages import at_every_stage
from tests.support.verify_streams import Stream

SEEDED = SamplingParams(temperature=0.9, seed=11, presence_penalty=0.5)
REQUESTS = tuple(
    Request(24, prompt=PROMPTS[index], ignore_eos=True, sampling=sampling)
    for index, sampling in enumerate((SamplingParams(), SEEDED, SamplingParams(), SEEDED))
)


@asynccontextmanager
async def pair_over_network(**times: Any) -> AsyncIterator[tuple[Network, Client]]:
    """Holds nothing at the end. Without `times`, rounds may take as long as they do."""
    async with (
        serving_verifier(target_model("wide"), files("wide"), context=CONTEXT) as verifier,
        network_to(verifier.port) as network,
        serving_drafter(draft_model("narrow"), files("narrow"), network.port, **times) as drafter,
        Client(drafter.address) as client,
    ):
        yield network, client
        await drafter.idle()
        drafter.assert_nothing_held()
        network.cut()  # what is still on its way, too
        await verifier.idle()
        verifier.assert_nothing_held()


async def texts(client: Client) -> list[Any]:
    outputs = await asyncio.gather(*map(client.generate, REQUESTS))
    return [(output.text, output.token_ids) for output in outputs]


@pytest.mark.long
async def test_a_slow_network_is_slow_and_no_more() -> None:
    async with pair_over_network() as (network, client):
        expected = await texts(client)
        network.delay_s = 0.02
        assert await texts(client) == expected


@pytest.mark.long
async def test_connections_that_are_cut_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier_client, "RETRY_S", 0.01)
    async with pair_over_network() as (network, client):
        expected = await texts(client)
        rounds = cuts = 0

        async def hook(session: SpeculativeSession, stage: str) -> None:
            nonlocal rounds, cuts
            rounds += stage in ("propose", "verify")
            if rounds % 17 == 16 and cuts < 8:
                rounds, cuts = rounds + 1, cuts + 1
                network.cut()

        at_every_stage(monkeypatch, hook)
        before = network.connections
        assert await texts(client) == expected
        assert cuts >= 4 and network.connections > before


@pytest.mark.long
@pytest.mark.parametrize("then", [Network.cut, Network.release], ids=["lost", "late"])
async def test_a_round_that_stalls_is_asked_again(
    then: Callable[[Network], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """late: the first stream's verdict comes after all, when nobody waits for it any more."""
    monkeypatch.setattr(verifier_client, "RETRY_S", 0.01)
    async with pair_over_network(round_timeout_s=0.5) as (network, client):
        expected = await texts(client)
        stalls, reopened = 0, 0
        open_ = VerifierSession._open

        async def hook(session: SpeculativeSession, stage: str) -> None:
            nonlocal stalls
            if stage == "verify" and session.output_length >= 5 and not stalls:
                stalls += 1
                network.stall()

        async def opening(session: VerifierSession, first: bool) -> Verdict:
            nonlocal reopened
            if not first:
                reopened += 1
                then(network)
            return await open_(session, first)

        monkeypatch.setattr(VerifierSession, "_open", opening)
        at_every_stage(monkeypatch, hook)
        assert await texts(client) == expected
        assert stalls == 1 and reopened >= 1


async def idle_then_one_round(verifier: RunningVerifier, idle_s: float) -> Verdict:
    stream = Stream(verifier)
    first = await stream.send(verifier.open((5, 6), 4, ignore_eos=True))
    await asyncio.sleep(idle_s)  # what is tested is that nothing happens
    verdict = await stream.send(Proposal(1, first.committed_length, ()))
    stream.cancel()
    return verdict


def scaled(monkeypatch: pytest.MonkeyPatch, permitted_ms: int) -> None:
    """A ping every 200 ms. Its answer may take its time: this machine may have much else to do."""
    monkeypatch.setattr(grpc_channel, "PING_EVERY_MS", grpc_channel.PING_EVERY_MS // 100)
    monkeypatch.setattr(grpc_channel, "PING_PERMITTED_EVERY_MS", permitted_ms)


@pytest.mark.long
async def test_an_idle_stream_outlives_many_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten minutes at a hundredth of the times: 30 pings of each end, and no GOAWAY."""
    scaled(monkeypatch, grpc_channel.PING_PERMITTED_EVERY_MS // 100)
    async with serving_verifier(target_model("wide"), files("wide")) as verifier:
        assert (await idle_then_one_round(verifier, 6.0)).round == 1
        await verifier.idle()
        verifier.assert_nothing_held()


@pytest.mark.long
async def test_pings_that_are_too_many_end_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the test above could fail."""
    scaled(monkeypatch, grpc_channel.PING_PERMITTED_EVERY_MS)
    async with serving_verifier(target_model("wide"), files("wide")) as verifier:
        stream = Stream(verifier)
        await stream.send(verifier.open((5, 6), 4, ignore_eos=True))
        code, message = await asyncio.wait_for(stream.status(), 60)
        assert code is grpc.StatusCode.UNAVAILABLE
        # Some servers' words have underscores.
        assert "too many pings" in message.lower().replace("_", " ")
