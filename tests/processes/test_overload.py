"""Four times as many clients as places, against both services as processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.load.overload_clients import asking, undisturbed
from bench.load.overload_report import Phase, broken
from bench.support.watching import pages_left
from cli.children import free_addresses
from client.client import Client, Request
from common.sampling.parameters import SamplingParams
from tests.processes.processes import START_S, Processes
from tests.support.fake_pairs import PROMPTS

pytestmark = pytest.mark.long

CAPACITY, TIMES = 2, 4
LASTING_S = 3.0  # longer than the hint, so that clients come again
SEEDED = SamplingParams(temperature=0.9, seed=11)
REQUESTS = [
    Request(60, prompt=prompt, ignore_eos=True, sampling=sampling)
    for prompt in PROMPTS[:4]
    for sampling in (SamplingParams(), SEEDED)
]


@pytest.mark.parametrize("full", ["drafter", "verifier"])
async def test_under_overload_texts_stay_refusals_have_a_hint_and_all_pages_come_back(
    full: str, tmp_path: Path
) -> None:
    metrics = dict(zip(("verifier", "drafter"), free_addresses(2), strict=True))
    places: dict[str, dict[str, Any]] = {
        name: {"max_sessions": CAPACITY * TIMES} for name in metrics
    }
    places[full] = {"max_sessions": CAPACITY}
    async with Processes(tmp_path) as processes:
        verifier = await processes.verifier(
            metrics_listen=metrics["verifier"], **places["verifier"], max_streams_per_peer=1000
        )
        drafter = await processes.drafter(
            verifier.address,
            metrics_listen=metrics["drafter"],
            **places["drafter"],
            max_streams_per_peer=1000,
        )
        async with Client(drafter.address) as client:
            expected = await undisturbed(client, REQUESTS)
            clients = CAPACITY * TIMES
            attempts = await asking(client, REQUESTS, expected, clients, LASTING_S)
        urls = {name: f"http://{address}/metrics" for name, address in metrics.items()}
        pages = await pages_left(urls, START_S)
    assert broken([Phase.of("overload", clients, attempts)], pages) == []
    assert all(each.hint_s for each in attempts if each.refused)
