"""examples/lookup_client.py against a real verifier: exact text, in fewer rounds than tokens."""

from __future__ import annotations

import asyncio
import re

import pytest
from tokenizers import Tokenizer

from examples.lookup_client import lookup, main
from tests.statistics.sampled_sessions import COUPLED, GREEDY, run, sampled
from tests.support.fake_pairs import files, target_model
from tests.support.fake_services import RunningVerifier, serving_verifier
from tests.support.fake_tokenizers import LINES

TEXT = LINES[2] * 2  # the model knows how such a line goes on


async def client_output(
    verifier: RunningVerifier, capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[str, int, int]:
    """(text, tokens after the first, rounds for them) of the example, run as its own user would."""
    address = f"127.0.0.1:{verifier.port}"
    arguments = [TEXT, "--verifier", address, "--max-new-tokens", "30", *options]
    await asyncio.to_thread(main, arguments)
    text, reported, _ = re.split(
        r"\n(\d+ tokens in \d+ rounds) after the first\n", capsys.readouterr().out
    )
    tokens, rounds = map(int, re.findall(r"\d+", reported))
    return text, tokens, rounds


@pytest.mark.parametrize(
    ("options", "rule", "params"),
    [
        ((), GREEDY, {}),
        (("--temperature", "0.7", "--seed", "5"), COUPLED, {"temperature": 0.7, "seed": 5}),
        (
            ("--temperature", "0.9", "--top-p", "0.8", "--top-k", "9", "--seed", "0"),
            COUPLED,
            {"temperature": 0.9, "top_p": 0.8, "top_k": 9, "seed": 0},
        ),
    ],
)
async def test_it_prints_the_targets_own_text(options, rule, params, capsys) -> None:
    served = files("wide")
    async with serving_verifier(target_model("wide"), served, pages=128) as verifier:
        tokenizer = Tokenizer.from_buffer(served.files["tokenizer.json"])
        prompt = tokenizer.encode(TEXT).ids
        spec = sampled(verifier, rule, prompt, 30, ignore_eos=False, **params)
        alone = (await run(verifier, spec)).tokens
        text, tokens, rounds = await client_output(verifier, capsys, *options)
        assert text == tokenizer.decode(alone)
        assert tokens == len(alone) - 1
        assert rounds < tokens
        await verifier.idle()
        verifier.assert_nothing_held()


async def test_without_a_seed_it_says_something_else_each_time(capsys) -> None:
    served = files("wide")
    async with serving_verifier(target_model("wide"), served, pages=128) as verifier:
        hot = ("--temperature", "3.0")
        texts = {(await client_output(verifier, capsys, *hot))[0] for _ in range(3)}
        assert len(texts) == 3
        await verifier.idle()
        verifier.assert_nothing_held()


def test_it_takes_the_longest_match_and_of_those_the_latest() -> None:
    assert lookup([1, 2, 3, 4, 9, 2, 3, 5, 2, 3], 2) == [5, 2]
    assert lookup([7, 1, 2, 3, 8, 2, 3, 5, 1, 2, 3], 4) == [8, 2, 3, 5]
    assert lookup([1, 2, 3], 4) == []
    assert lookup([4, 4, 4], 4) == [4]
