"""examples/verify_once_client.py and a real verifier: what it accepts is the target's own text."""

from __future__ import annotations

import asyncio

import pytest
from tokenizers import Tokenizer

from examples.verify_once_client import main
from tests.statistics.sampled_sessions import GREEDY, run, sampled
from tests.support.fake_pairs import files, target_model
from tests.support.fake_services import serving_verifier
from tests.support.fake_tokenizers import LINES


async def test_it_reports_how_much_of_a_text_the_target_would_have_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    served = files("wide")
    async with serving_verifier(target_model("wide"), served, pages=128) as verifier:
        tokenizer = Tokenizer.from_buffer(served.files["tokenizer.json"])
        prompt = LINES[2]
        spec = sampled(verifier, GREEDY, tokenizer.encode(prompt).ids, 4, ignore_eos=True)
        own = (await run(verifier, spec)).tokens
        written = tokenizer.decode(own[:3])
        assert tokenizer.encode(written).ids == own[:3], "the text is split as it was written"
        other = "~"
        assert tokenizer.encode(other).ids[0] != own[0]
        reported = []
        for proposal in (written, other):
            where = ["--verifier", f"127.0.0.1:{verifier.port}"]
            await asyncio.to_thread(main, [prompt, proposal, *where])
            reported.append(capsys.readouterr().out.splitlines())
        then = [f"then the target writes {tokenizer.decode([own[place]])!r}" for place in (3, 0)]
        assert reported[0] == [f"3 of 3 tokens are accepted: {written!r}", then[0]]
        assert reported[1] == ["0 of 1 tokens are accepted: ''", then[1]]
        await verifier.idle()
        verifier.assert_nothing_held()
