"""SIGKILL and SIGTERM to a drafter in mid-stream: UNAVAILABLE, and the rest from its successor."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
import time
from asyncio.subprocess import PIPE
from pathlib import Path

import grpc
import pytest

from client.client import Client, Request
from client.results import TokenDelta
from client.resuming import generate_resuming
from tests.processes.processes import Processes
from tests.processes.test_killed_verifier import requests, restart
from tests.support.fake_pairs import PROMPTS

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 120.0
LENGTH = 300  # tokens, long enough to be killed in


async def command(*arguments: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        stdout=PIPE,
        stderr=PIPE,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", "OMP_NUM_THREADS": "1"},
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_without_retrying_a_client_gets_unavailable_and_what_it_needs_to_go_on(
    tmp_path: Path,
) -> None:
    async with Processes(tmp_path) as processes:
        verifier = await processes.verifier()
        drafter = await processes.drafter(verifier.address)
        async with Client(drafter.address) as client:
            (request,) = requests(1)
            expected = await client.generate(request)
            deltas, killed = list[TokenDelta](), asyncio.Event()

            def heard(delta: TokenDelta) -> None:
                deltas.append(delta)
                if len(deltas) == 20:
                    killed.set()

            running = asyncio.create_task(client.generate(request, heard))
            await killed.wait()
            await drafter.kill()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await running
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            ids = tuple(delta.token_id for delta in deltas)
            assert ids == expected.token_ids[: len(ids)] and len(ids) < len(expected.token_ids)
            await drafter.start()
            rest = await generate_resuming(
                client, Request(**{**vars(request), "resumed_ids": ids}), TIMEOUT_S
            )
            assert "".join(delta.text for delta in deltas) + rest.text == expected.text


async def test_command_and_example_finish_though_drafters_are_killed(tmp_path: Path) -> None:
    choose = random.Random(1)
    flags = ["--max-new-tokens", str(LENGTH), "--retry", str(TIMEOUT_S)]
    sampled = ["--seed", "7", "--temperature", "0.8"]
    async with Processes(tmp_path) as processes:
        verifier = await processes.verifier()
        drafter = await processes.drafter(verifier.address)
        example = ["examples/generate_client.py", drafter.address, PROMPTS[0], *flags, *sampled]
        generate = ["-m", "cli", "generate", PROMPTS[0], "--address", drafter.address, "--json"]
        generate += [*flags, *sampled]
        code, expected, err = await command(*example)
        assert code == 0, err
        asked = [asyncio.create_task(command(*each)) for each in (example, generate)]
        kills = 0
        while not all(task.done() for task in asked):
            await asyncio.sleep(choose.uniform(0.1, 1.5))
            await drafter.kill()
            kills += 1
            await drafter.start()
        (code, out, err), (json_code, json_out, json_err) = [task.result() for task in asked]
        assert (code, out) == (0, expected), err
        assert json_code == 0, json_err
        assert json.loads(json_out)["text"] == expected
        assert kills


async def test_a_rolling_restart_of_both_services_under_load_loses_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with Processes(tmp_path) as processes:
        verifiers = [await processes.verifier() for _ in range(2)]
        addresses = [each.address for each in verifiers]
        drafters = [await processes.drafter(*addresses) for _ in range(2)]
        async with Client(f"ipv4:{','.join(each.address for each in drafters)}") as client:
            asked = requests(4)
            expected = [(await client.generate(each)).token_ids for each in asked]
            over, waves, began = asyncio.Event(), 0, time.monotonic()

            async def load() -> None:
                nonlocal waves
                while not over.is_set():
                    outputs = await asyncio.gather(
                        *(generate_resuming(client, each, TIMEOUT_S) for each in asked)
                    )
                    assert [output.token_ids for output in outputs] == expected
                    waves += 1

            loading = asyncio.create_task(load())
            for process in (verifiers[0], drafters[0], verifiers[1], drafters[1]):
                await restart(process)
            over.set()
            await loading
    with capsys.disabled():
        print(
            f"\n{4 * waves} generations in {time.monotonic() - began:.1f} s, none changed", end=""
        )


async def test_a_drain_lets_streams_finish(tmp_path: Path) -> None:
    async with Processes(tmp_path) as processes:
        verifier = await processes.verifier()
        drafter = await processes.drafter(verifier.address, grace_s=TIMEOUT_S)
        async with Client(drafter.address) as client:
            (request,) = requests(1)
            expected = await client.generate(request)
            begun = asyncio.Event()
            running = asyncio.create_task(client.generate(request, lambda _: begun.set()))
            await begun.wait()
            await drafter.signal(signal.SIGTERM)
            assert (await running).token_ids == expected.token_ids
            assert await drafter.ended() == 0
