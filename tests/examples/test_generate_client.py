"""The example client against both services, as a user runs it."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from grpc import StatusCode

from common.pb import drafter_pb2 as pb
from common.pb import drafter_pb2_grpc
from common.sampling.parameters import SamplingParams
from common.wire.generate import deltas_response
from tests.support.fake_pairs import PROMPTS, serving_pair
from tests.support.fake_services import serving

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "generate_client.py"


async def run(*arguments: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLE),
        *arguments,
        stdout=PIPE,
        stderr=PIPE,
        env={"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"},
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_the_example_streams_the_text_of_the_seed() -> None:
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) < 80
    async with serving_pair() as pair:
        sampling = SamplingParams(temperature=0.8, seed=7)
        expected = await pair.generate(PROMPTS[1], 12, sampling=sampling, draft_steps=0)
        flags = ("--max-new-tokens", "12", "--temperature", "0.8", "--seed", "7")
        code, out, err = await run(pair.drafter.address, PROMPTS[1], *flags)
        assert (code, out) == (0, expected.text), err
        assert f"{expected.statistics.output_tokens} tokens in " in err
        code, out, err = await run(pair.drafter.address, PROMPTS[1], "--temperature", "-1")
        assert code == 1 and out == "" and "sampling.temperature is -1.0" in err


class Breaking(drafter_pb2_grpc.DrafterServiceServicer):
    """One token, and then the end as `code` without a name; asked again, it says what was known."""

    def __init__(self, code: StatusCode) -> None:
        self.code = code

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        if not request.resumed_token_ids:
            yield deltas_response([pb.TokenDelta(token_id=7, text="seven")])
            await context.abort(self.code, "of the connection")
        yield deltas_response([pb.TokenDelta(text=f" {request.resumed_token_ids}")])
        yield pb.GenerateResponse(summary=pb.Summary())


@pytest.mark.parametrize("code", ["UNAVAILABLE", "CANCELLED", "INTERNAL", "UNKNOWN"])
async def test_the_example_goes_on_however_its_drafter_was_lost(code: str) -> None:
    register = drafter_pb2_grpc.add_DrafterServiceServicer_to_server
    fake = Breaking(StatusCode[code])
    async with serving("crossdraft.v1.DrafterService", register, fake) as (_, port):
        address = f"127.0.0.1:{port}"
        status, out, err = await run(address, "x", "--retry", "60")
        assert (status, out) == (0, "seven [7]"), err
        status, out, err = await run(address, "x")
        assert (status, out) == (1, "seven") and "of the connection" in err
