"""Stop strings where rounds, tokens and characters are cut, with a drafter that is always right.

The output is known from the target alone; each case looks for a place in it that is what its name
says, and the whole answer must end there: text, ids, log-probabilities and usage. Tokens that
end one character and begin another are in tests/drafter/test_stop_strings.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from client.client import Client, Output, Request
from common.model.paged_model import PagedModel
from common.sampling.parameters import SamplingParams
from common.types import FinishReason, Origin
from tests.drafter.test_stop_strings import at_once
from tests.support.fake_models import knowing_model
from tests.support.fake_pairs import CONTEXT, files, known
from tests.support.fake_services import serving_drafter, serving_verifier

TOKENIZER = "narrow"
PROMPT = "for i in range(10):\n        print(i, i * i)\n\nÉ é e"
K, LENGTH = 8, 46


@dataclass
class Reported:
    """The target's own output, and a client that is drafted for without a mistake."""

    client: Client
    whole: Output
    tokens: list[bytes]

    @property
    def text(self) -> bytes:
        return b"".join(self.tokens)

    @property
    def begins(self) -> list[int]:
        """Where each token begins, and where the last one ends."""
        return [len(b"".join(self.tokens[:count])) for count in range(len(self.tokens) + 1)]

    def strings(self, longest: int = 12) -> Iterator[tuple[int, int, bytes]]:
        """(begin, end, stop string): text that occurs nowhere before."""
        for begin in range(len(self.text)):
            for end in range(begin + 1, min(begin + longest, len(self.text)) + 1):
                stop = self.text[begin:end]
                if self.text.find(stop) == begin and is_text(stop):
                    yield begin, end, stop


def is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@asynccontextmanager
async def speaking(by_heart: bytes = b"") -> AsyncIterator[Reported]:
    target, same_model = (
        PagedModel(knowing_model(known(TOKENIZER), 0, by_heart)) for _ in range(2)
    )
    async with (
        serving_verifier(target, files(TOKENIZER), context=CONTEXT) as verifier,
        serving_drafter(same_model, files(TOKENIZER), verifier.port, lookup=False) as drafter,
        Client(drafter.address) as client,
    ):
        whole = await ask(client, (), 0)
        tokens = [known(TOKENIZER).token_bytes(id_) for id_ in whole.token_ids]
        assert len(tokens) == LENGTH
        yield Reported(client, whole, tokens)
        await verifier.idle()
        verifier.assert_nothing_held()  # each session ended at its stop string


async def ask(client: Client, stops: tuple[bytes, ...], steps: int = K) -> Output:
    strings = tuple(stop.decode() for stop in stops)
    sampling = SamplingParams(logprobs=2)
    return await client.generate(
        Request(LENGTH, PROMPT, draft_steps=steps, stop=strings, sampling=sampling, ignore_eos=True)
    )


async def ends_there(reported: Reported, *stops: bytes) -> int:
    """How many tokens are final; everything else is checked here."""
    count, text, found = at_once(reported.tokens, list(stops))
    assert found is not None
    for steps in (K, 0, 3):
        output = await ask(reported.client, stops, steps)
        assert output.text == text.decode("utf-8", "replace")
        assert output.token_ids == reported.whole.token_ids[:count]
        assert output.logprobs == reported.whole.logprobs[:count] and len(output.logprobs) == count
        assert output.statistics.output_tokens == count
        assert output.statistics.stop_string.encode() == found
        assert output.statistics.finish_reason is FinishReason.STOP
    return count


async def test_every_run_is_of_eight() -> None:
    """What the cases below build on: the first token, then eight drafts and one more each round."""
    async with speaking() as reported:
        origins = (await ask(reported.client, ())).origins
        run = [Origin.DRAFT] * K + [Origin.VERIFIER]
        assert list(origins[: 1 + 2 * len(run)]) == [Origin.VERIFIER, *run, *run]


async def test_inside_a_run_of_eight() -> None:
    async with speaking() as reported:
        begins = reported.begins
        stop = next(
            s for begin, end, s in reported.strings() if begins[3] <= begin < end <= begins[7]
        )
        assert 2 <= await ends_there(reported, stop) <= 7


async def test_across_two_rounds() -> None:
    async with speaking() as reported:
        border = reported.begins[2 + K]  # behind the first round's own token
        stop = next(s for begin, end, s in reported.strings() if begin < border < end)
        await ends_there(reported, stop)


async def test_from_the_middle_of_a_token_to_the_middle_of_another() -> None:
    """The token in which it begins is the last one, and its text is cut."""
    async with speaking() as reported:
        begins = set(reported.begins)
        cuts = sorted(begins)
        begin, stop = next(
            (begin, s)
            for begin, end, s in reported.strings()
            if begin not in begins and end not in begins and any(begin < c < end for c in cuts)
        )
        count = await ends_there(reported, stop)
        assert reported.begins[count - 1] < begin < reported.begins[count]


async def test_of_two_where_one_begins_the_other_the_shorter_one_decides() -> None:
    async with speaking() as reported:
        _, _, long = next(each for each in reported.strings() if each[1] - each[0] > 4)
        short = next(
            s for _, _, s in reported.strings() if long.startswith(s) and len(s) < len(long)
        )
        first = await ends_there(reported, short)
        assert (
            await ends_there(reported, long, short)
            == await ends_there(reported, short, long)
            == first
        )
        longer = long + b"\x00"  # whole nowhere: the shorter one still ends the output
        await ends_there(reported, longer, long)


async def test_a_character_of_several_tokens_begins_it_and_ends_it() -> None:
    async with speaking("é中".encode()) as reported:
        split = ("é".encode(), "中".encode())
        assert all(len(token) == 1 for token in reported.tokens[2:]), reported.tokens
        for stop in (split[1], b"".join(split), split[1] + split[0]):
            await ends_there(reported, stop)
