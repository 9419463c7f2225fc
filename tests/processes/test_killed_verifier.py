"""SIGKILL, SIGSTOP and SIGTERM to a verifier in mid-stream: a pause, and the same text."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from pathlib import Path

import pytest

from client.client import Client, Output, Request
from common.sampling.parameters import SamplingParams
from tests.processes.processes import Processes, ServiceProcess
from tests.support.fake_pairs import PROMPTS

pytestmark = pytest.mark.long

HANG_S = 20.0
LENGTH = 120  # tokens of each generation
WAVES, EACH = 10, 5  # 50 generations
SEEDED = SamplingParams(temperature=0.9, seed=11, presence_penalty=0.5)


def requests(count: int) -> list[Request]:
    """Greedy and seeded by turns."""
    return [
        Request(
            LENGTH,
            prompt=PROMPTS[index % len(PROMPTS)],
            ignore_eos=True,
            sampling=SEEDED if index % 2 else SamplingParams(),
        )
        for index in range(count)
    ]


class Pauses:
    """The longest time between two pieces of any stream."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def generate(self, client: Client, request: Request) -> Output:
        last = time.monotonic()

        def heard(_: object) -> None:
            nonlocal last
            now = time.monotonic()
            self.longest_s, last = max(self.longest_s, now - last), now

        return await client.generate(request, heard)


async def all_of(client: Client, asked: list[Request], pauses: Pauses) -> list[tuple[str, object]]:
    outputs = await asyncio.gather(*(pauses.generate(client, each) for each in asked))
    return [(output.text, output.token_ids) for output in outputs]


@pytest.mark.parametrize("spare", [False, True], ids=["restarted", "another is there"])
async def test_every_client_gets_its_text_though_verifiers_are_killed(
    spare: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """50 generations in waves; in each a verifier is killed at a random moment."""
    choose, pauses, recovered = random.Random(spare), Pauses(), list[float]()
    async with Processes(tmp_path) as processes:
        verifiers = [await processes.verifier() for _ in range(1 + spare)]
        drafter = await processes.drafter(*(each.address for each in verifiers))
        async with Client(drafter.address) as client:
            asked = requests(EACH)
            expected = await all_of(client, asked, Pauses())
            began = time.monotonic()
            await all_of(client, asked, Pauses())
            undisturbed_s = time.monotonic() - began
            for _ in range(WAVES):
                running = asyncio.create_task(all_of(client, asked, pauses))
                await asyncio.sleep(choose.uniform(0, 0.8) * undisturbed_s)
                victim = choose.choice(verifiers)
                await victim.kill()
                if spare:
                    assert await running == expected
                    await victim.start()
                else:
                    await victim.start()
                    ready = time.monotonic()
                    assert await running == expected
                    recovered.append(time.monotonic() - ready)
    with capsys.disabled():
        print(
            f"\n{undisturbed_s:.2f} s undisturbed; longest pause {pauses.longest_s:.2f} s", end=""
        )
        if recovered:
            print(f"; all done at most {max(recovered):.2f} s after a verifier was back", end="")


async def test_a_hung_verifier_counts_as_lost_after_a_round_s_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pauses = Pauses()
    async with Processes(tmp_path) as processes:
        verifiers = [await processes.verifier() for _ in range(2)]
        drafter = await processes.drafter(
            *(each.address for each in verifiers), round_timeout_s=1.0, open_timeout_s=2.0
        )
        async with Client(drafter.address) as client:
            asked = requests(6)
            expected = await all_of(client, asked, Pauses())
            running = asyncio.create_task(all_of(client, asked, pauses))
            await asyncio.sleep(0.1)
            await verifiers[0].signal(signal.SIGSTOP)
            assert await running == expected
            await verifiers[0].signal(signal.SIGCONT)
            assert await all_of(client, asked, Pauses()) == expected
    with capsys.disabled():
        print(f"\nlongest pause {pauses.longest_s:.2f} s, a round may take 1 s", end="")


async def test_a_verifier_that_hangs_for_a_while_goes_on_where_it_was(tmp_path: Path) -> None:
    """Nobody else is there, and its own time isn't over: neither a round's nor a ping's."""
    async with Processes(tmp_path) as processes:
        verifier = await processes.verifier()
        drafter = await processes.drafter(verifier.address)
        async with Client(drafter.address) as client:
            asked = requests(3)
            expected = await all_of(client, asked, Pauses())
            running = asyncio.create_task(all_of(client, asked, Pauses()))
            await asyncio.sleep(0.1)
            await verifier.signal(signal.SIGSTOP)
            await asyncio.sleep(HANG_S)
            await verifier.signal(signal.SIGCONT)
            assert await running == expected


async def test_a_rolling_restart_of_verifiers_under_load_loses_nothing(tmp_path: Path) -> None:
    async with Processes(tmp_path) as processes:
        verifiers = [await processes.verifier() for _ in range(2)]
        drafter = await processes.drafter(*(each.address for each in verifiers))
        async with Client(drafter.address) as client:
            asked = requests(4)
            expected = await all_of(client, asked, Pauses())
            over = asyncio.Event()

            async def load() -> int:
                waves = 0
                while not over.is_set() or waves == 0:
                    assert await all_of(client, asked, Pauses()) == expected
                    waves += 1
                return waves

            loading = asyncio.create_task(load())
            for verifier in verifiers:
                await restart(verifier)
            over.set()
            assert await loading >= 1


async def restart(process: ServiceProcess) -> None:
    await process.signal(signal.SIGTERM)
    assert await process.ended() == 0, process.tail()
    await process.start()
