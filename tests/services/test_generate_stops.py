"""Stop strings and log-probabilities through both services: everything ends at one token."""

from __future__ import annotations

from itertools import product

import pytest

from client.client import Output, Request
from common.sampling.parameters import SamplingParams
from common.types import FinishReason
from tests.drafter.test_stop_strings import at_once
from tests.support.fake_pairs import PROMPTS, RunningPair, known, serving_pair

STEPS = (0, 1, 3, 8)
LENGTH = 24
SAMPLING = SamplingParams(temperature=1.0, seed=5, logprobs=2)


def texts_of(output: Output) -> list[bytes]:
    vocabulary = known("wide")
    return [
        b"" if vocabulary.is_special(id_) else vocabulary.token_bytes(id_)
        for id_ in output.token_ids
    ]


def stops_in(text: str) -> list[tuple[str, ...]]:
    """Stop strings here and there: in tokens and over several of them, one a prefix of another."""
    found: list[tuple[str, ...]] = [("never there",)]
    for at in range(0, len(text) - 1, 5):
        for length in (1, 4, 9):
            found.append((text[at : at + length],))
        found.append((text[at : at + 7], text[at : at + 3], "never there"))
    return found


@pytest.mark.long
@pytest.mark.parametrize("sampling", [SamplingParams(logprobs=1), SAMPLING])
async def test_text_ids_logprobs_and_usage_end_at_one_token(sampling: SamplingParams) -> None:
    async with serving_pair("same tokenizer") as pair:
        whole = await generate(pair, 0, (), sampling)
        tokens, stopped = texts_of(whole), 0
        for number, stops in enumerate(stops_in(whole.text)):
            steps = STEPS[number % len(STEPS)]
            deltas: list[str] = []
            output = await generate(pair, steps, stops, sampling, deltas)
            count, text, found = at_once(tokens, [stop.encode() for stop in stops])
            assert output.text == "".join(deltas) == text.decode("utf-8", "replace")
            assert output.token_ids == whole.token_ids[:count]
            assert output.logprobs == whole.logprobs[:count] and len(output.logprobs) == count
            statistics = output.statistics
            assert statistics.output_tokens == count
            assert statistics.stop_string.encode() == (found or b"")
            if found:
                assert statistics.finish_reason is FinishReason.STOP
                stopped += 1
            else:
                assert statistics.finish_reason is whole.statistics.finish_reason
        assert stopped > 20
        await pair.verifier.idle()
        pair.verifier.assert_nothing_held()  # each session ended at its stop string


async def generate(
    pair: RunningPair,
    steps: int,
    stops: tuple[str, ...],
    sampling: SamplingParams,
    deltas: list[str] | None = None,
) -> Output:
    request = Request(
        LENGTH, prompt=PROMPTS[1], draft_steps=steps, stop=stops, sampling=sampling, ignore_eos=True
    )
    shown: list[str] = [] if deltas is None else deltas
    return await pair.client.generate(request, lambda delta: shown.append(delta.text))


async def test_what_may_be_a_stop_string_waits_and_comes_after_all() -> None:
    """The last character is the beginning of a stop string that never comes."""
    async with serving_pair("same tokenizer") as pair:
        whole = await generate(pair, 3, (), SamplingParams())
        stops = (whole.text[-3:] + "\x00",)
        output = await generate(pair, 3, stops, SamplingParams())
        assert (output.text, output.token_ids) == (whole.text, whole.token_ids)
        assert output.statistics.output_tokens == LENGTH
        assert output.statistics.finish_reason is FinishReason.LENGTH


@pytest.mark.long
async def test_logprobs_are_those_of_the_target_alone() -> None:
    async with serving_pair("two byte-level tokenizers") as pair:
        for logprobs, temperature in product((0, 3), (None, 1.0)):
            sampling = SamplingParams(temperature, seed=3, logprobs=logprobs)
            alone = await generate(pair, 0, (), sampling)
            assert len(alone.logprobs) == len(alone.token_ids) == LENGTH
            for steps in (1, 3, 8):
                output = await generate(pair, steps, (), sampling)
                assert output.logprobs == alone.logprobs
            for each, token in zip(alone.logprobs, alone.token_ids, strict=True):
                assert len(each.top_ids) == len(each.top_logprobs) == logprobs
                assert each.logprob < 0
                if token in each.top_ids:
                    assert each.top_logprobs[each.top_ids.index(token)] == each.logprob
        assert (await generate(pair, 3, (), SamplingParams())).logprobs == ()
