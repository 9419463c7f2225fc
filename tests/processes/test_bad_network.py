"""Both services as processes, with a network between them that delays, cuts and stalls."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from bench.support.watching import pages_left, scrape
from cli.children import free_addresses
from client.client import Client, Request
from common.sampling.parameters import SamplingParams
from common.telemetry import metrics
from tests.processes.processes import START_S, Processes
from tests.support.fake_pairs import PROMPTS
from tests.support.network import Network, network_to

pytestmark = pytest.mark.long

SEEDED = SamplingParams(temperature=0.9, seed=11, presence_penalty=0.5)
REQUESTS = [
    Request(80, prompt=prompt, ignore_eos=True, sampling=sampling)
    for prompt in PROMPTS[:3]
    for sampling in (SamplingParams(), SEEDED)
]
LONG = Request(350, prompt="x", ignore_eos=True, draft_steps=0)


@asynccontextmanager
async def pair_over_network(
    logs: Path, **settings: Any
) -> AsyncIterator[tuple[Network, Client, dict[str, str]]]:
    """(the network between the two, a client, where each serves its metrics). Neither holds a page
    at the end."""
    at = dict(zip(("verifier", "drafter"), free_addresses(2), strict=True))
    urls = {name: f"http://{address}/metrics" for name, address in at.items()}
    async with Processes(logs) as processes:
        verifier = await processes.verifier(metrics_listen=at["verifier"])
        async with network_to(int(verifier.address.rpartition(":")[2])) as network:
            between = f"127.0.0.1:{network.port}"
            given = {"metrics_listen": at["drafter"], **settings}
            drafter = await processes.drafter(between, **given)
            async with Client(drafter.address) as client:
                yield network, client, urls
            network.cut()  # what is still on its way, too
            assert not any((await pages_left(urls, START_S)).values())


async def texts(client: Client) -> list[Any]:
    outputs = await asyncio.gather(*map(client.generate, REQUESTS))
    return [(output.text, output.token_ids) for output in outputs]


async def losses(urls: dict[str, str]) -> float:
    """Verifiers that sessions have lost."""
    return (await scrape(urls["drafter"]))(metrics.PAUSE_SECONDS, "_count")


async def test_texts_outlive_a_network_that_delays_and_cuts(tmp_path: Path) -> None:
    chance = random.Random(5)
    async with pair_over_network(tmp_path) as (network, client, urls):
        expected = await texts(client)
        network.delay_s = 0.005
        cuts = 0
        asking = asyncio.create_task(texts(client))
        while not asking.done():
            await asyncio.wait([asking], timeout=chance.uniform(0.1, 0.5))
            if cuts < 10 and not asking.done():
                network.cut()
                cuts += 1
        assert await asking == expected and cuts >= 3
        assert await losses(urls) >= 3


@pytest.mark.parametrize("late", [False, True], ids=["lost", "late"])
async def test_texts_outlive_a_network_that_stalls(late: bool, tmp_path: Path) -> None:
    """late: what had stalled arrives after all, verdicts of rounds that nobody waits for."""
    settings = {"round_timeout_s": 1.0, "open_timeout_s": 2.0}
    async with pair_over_network(tmp_path, **settings) as (network, client, urls):
        expected = await texts(client)
        network.delay_s = 0.002
        asking = asyncio.create_task(texts(client))
        for _ in range(2):
            await asyncio.wait([asking], timeout=0.3)
            network.stall()
            await asyncio.sleep(1.5)  # longer than a round may take
            if late:
                network.release()
            else:
                network.cut()
        assert await asking == expected
        assert await losses(urls) >= len(REQUESTS)


async def test_after_a_deadline_of_100_ms_no_round_is_made(tmp_path: Path) -> None:
    async with pair_over_network(tmp_path) as (network, client, urls):
        await client.generate(LONG)
        network.delay_s = 0.005  # a round takes 10 ms, the text seconds

        async def rounds() -> float:
            return (await scrape(urls["verifier"]))(metrics.ROUNDS)

        for _ in range(3):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.generate(LONG, timeout_s=0.1)
            assert caught.value.code() is StatusCode.DEADLINE_EXCEEDED
            assert not any((await pages_left(urls, START_S)).values())
            before = await rounds()
            await asyncio.sleep(0.3)  # some thirty rounds, if it went on
            assert await rounds() == before
