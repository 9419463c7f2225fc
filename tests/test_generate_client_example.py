"""The example client against both services, as a user runs it."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

from common.sampling import SamplingParams
from tests.fake_pairs import PROMPTS, serving_pair

ROOT = Path(__file__).parent.parent
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


async def test_the_example_streams_the_text_that_the_seed_stands_for() -> None:
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
