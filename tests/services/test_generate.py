"""Text in, text out through both services: always the target's own, whatever drafts there are."""

from __future__ import annotations

import asyncio
import random
from itertools import product

import grpc
import pytest
from grpc import StatusCode

from client.client import Client, Output, Request
from common.model.paged_model import PagedModel
from common.types import BridgeMode, FinishReason, Origin
from drafter.generate.detokenize import StreamingText
from tests.kv.preemptions import count_preemptions
from tests.support.fake_models import random_model
from tests.support.fake_pairs import (
    CONTEXT,
    PAIRS,
    PROMPTS,
    RunningPair,
    draft_model,
    files,
    known,
    serving_pair,
)
from tests.support.fake_services import serving_drafter, serving_verifier
from tests.support.verify_streams import details_received

STEPS = (1, 3, 5, 8)
EVERY_WAY = tuple(product(STEPS, BridgeMode))


async def alone(pair: RunningPair, prompts: tuple[str, ...] = PROMPTS) -> dict[str, Output]:
    """Each prompt at k = 0, by itself."""
    return {prompt: await pair.generate(prompt, draft_steps=0) for prompt in prompts}


@pytest.mark.parametrize("kind", PAIRS)
async def test_output_is_the_targets_own_at_every_k_in_every_mode(kind: str) -> None:
    accepted, prompts = 0, (PROMPTS[2], PROMPTS[-1])
    async with serving_pair(kind, lookup=False) as pair:
        expected = await alone(pair, prompts)
        assert any(len(output.token_ids) > 10 for output in expected.values())
        for (steps, mode), prompt in product(EVERY_WAY, prompts):
            output = await pair.generate(prompt, draft_steps=steps, bridge=mode)
            assert output.token_ids == expected[prompt].token_ids, (steps, mode, prompt)
            assert output.text == expected[prompt].text
            assert output.statistics.finish_reason is expected[prompt].statistics.finish_reason
            accepted += output.origins.count(Origin.DRAFT)
    assert accepted > 20


@pytest.mark.long
@pytest.mark.parametrize("kind", PAIRS)
async def test_eight_at_once_joining_and_leaving_under_pressure_change_nothing(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pools hold one context and a little: sessions are preempted on both ends, again and again."""
    order = random.Random(kind)
    async with serving_pair(
        kind, {"pages": CONTEXT // 4 + 3}, pages=CONTEXT // 4 + 3, context=CONTEXT
    ) as pair:
        preempted = count_preemptions(monkeypatch)
        before = "def add(left, right):\n    return left + right\n"
        requests = [(before + prompt, order.randint(1, 40)) for prompt in PROMPTS * 4]
        expected = {
            request: (await pair.generate(*request, draft_steps=0)).token_ids
            for request in set(requests)
        }
        order.shuffle(requests)
        places = asyncio.Semaphore(8)

        async def one(prompt: str, length: int) -> bool:
            steps, mode = order.choice(EVERY_WAY)
            async with places:
                output = await pair.generate(prompt, length, draft_steps=steps, bridge=mode)
            return output.token_ids == expected[prompt, length]

        assert all(await asyncio.gather(*(one(*request) for request in requests)))
        pools = {sequence.table._pool for sequence in preempted}
        assert pools == {pair.verifier.engine.pool, pair.drafter.pair.engine.pool}


async def test_two_drafters_share_a_verifier() -> None:
    async with (
        serving_pair("same tokenizer") as pair,
        serving_drafter(
            draft_model("sentencepiece"), files("sentencepiece"), pair.verifier.port
        ) as second,
        Client(second.address) as other,
    ):
        expected = await alone(pair)
        requests = [Request(14, prompt=prompt, draft_steps=3) for prompt in PROMPTS]
        outputs = await asyncio.gather(
            *(client.generate(request) for request in requests for client in (pair.client, other))
        )
        for request, first, again in zip(requests, outputs[::2], outputs[1::2], strict=True):
            assert request.prompt is not None
            assert first.token_ids == again.token_ids == expected[request.prompt].token_ids
        await second.idle()
        second.assert_nothing_held()


@pytest.mark.long
async def test_a_hundred_requests_in_a_row_over_one_channel() -> None:
    async with serving_pair() as pair:
        expected = await alone(pair)
        for number in range(100):
            prompt, length = PROMPTS[number % len(PROMPTS)], 1 + number % 5
            output = await pair.generate(prompt, length)
            assert output.token_ids == expected[prompt].token_ids[:length]


def decoded(name: str, ids: tuple[int, ...]) -> str:
    plain = [id_ for id_ in ids if not known(name).is_special(id_)]
    return known(name).bytes_of(plain).decode("utf-8", "replace")


@pytest.mark.long
async def test_pieces_join_to_the_one_shot_decoding_of_any_bytes() -> None:
    """A target that writes anything: halves of characters, bytes that are none, markup."""
    target = PagedModel(random_model("llama", known("wide").width, seed=3))
    split = 0
    async with (
        serving_verifier(target, files("wide")) as verifier,
        serving_drafter(draft_model("narrow"), files("narrow"), verifier.port) as drafter,
        Client(drafter.address) as client,
    ):
        for prompt, length in product(PROMPTS, range(1, 24, 4)):
            deltas: list[str] = []
            request = Request(length, prompt=prompt, ignore_eos=True, draft_steps=1)
            output = await client.generate(request, lambda delta: deltas.append(delta.text))  # noqa: B023
            assert output.text == "".join(deltas) == decoded("wide", output.token_ids)
            split += "" in deltas
    assert split > 10


async def test_characters_split_over_tokens_are_held_back_until_they_are_whole() -> None:
    """Byte by byte, every character of a text comes in one piece."""
    text = "é 中\t🙂👍🏽  똻\n"
    vocabulary = known("narrow")
    ids = vocabulary.encode_bytes(text.encode()) or []
    assert len(ids) > len(text)
    stream, deltas = StreamingText(), []
    for token_id in ids:
        deltas.append(stream.push(vocabulary.token_bytes(token_id)))
    assert "".join(deltas) == text and stream.flush() == ""
    assert set("".join(deltas[:-1])) <= set(text)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 9])
async def test_max_new_tokens_of_one_k_and_k_plus_one(length: int) -> None:
    async with serving_pair("same tokenizer") as pair:
        whole = await pair.generate(PROMPTS[0], 12, draft_steps=0, ignore_eos=True)
        for steps in (1, 3, 8):
            output = await pair.generate(PROMPTS[0], length, draft_steps=steps, ignore_eos=True)
            assert output.token_ids == whole.token_ids[:length]
            assert output.statistics.finish_reason is FinishReason.LENGTH


async def test_stop_ids_end_the_text_wherever_they_come() -> None:
    async with serving_pair("same tokenizer") as pair:
        whole = (await pair.generate(PROMPTS[1], 12, draft_steps=0, ignore_eos=True)).token_ids
        for steps, place in product((0, 3, 8), range(12)):
            stop = whole[place]
            output = await pair.generate(
                PROMPTS[1], 12, draft_steps=steps, stop_ids=(stop,), ignore_eos=True
            )
            assert output.token_ids == whole[: whole.index(stop) + 1]
            assert output.statistics.finish_reason is FinishReason.STOP


@pytest.mark.parametrize("left", range(1, 11))
async def test_the_last_ten_positions_before_the_context_limit(left: int) -> None:
    async with serving_pair("same tokenizer") as pair:
        ids = tuple((known("wide").encode_bytes(b"def add(left, right) ") or []) * 20)
        request = {"prompt_ids": ids[: CONTEXT - left], "ignore_eos": True}
        for steps in (0, 1, 3, 8):
            output = await pair.client.generate(Request(50, draft_steps=steps, **request))  # type: ignore[arg-type]
            assert len(output.token_ids) == left
            assert output.statistics.finish_reason is FinishReason.CONTEXT
            if steps == 0:
                expected = output.token_ids
            assert output.token_ids == expected


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request(0, prompt="x"), "max_new_tokens is 0; it must be at least 1"),
        (Request(1, prompt=""), "prompt is empty"),
        (Request(1, prompt_ids=()), "prompt_token_ids is empty"),
        (Request(1, prompt_ids=(5, 2**31 - 1)), "prompt_token_ids.ids[1] is 2147483647"),
        (Request(1, prompt="x", stop_ids=(400,)), "stop_token_ids[0] is 400"),
        (Request(1, messages=()), "chat.messages is empty"),
        (Request(1, messages=(("user", "hi"),)), "no chat template"),
        (Request(1), "none of prompt, chat, prompt_token_ids"),
        (Request(1, prompt="x", draft_steps=17), "draft_steps is 17; it must be at most 16"),
        (Request(1, prompt="The fox " * 100), f"the limit is {CONTEXT - 1}"),
    ],
)
async def test_what_cannot_work_is_refused_by_name(request_: Request, words: str) -> None:
    async with serving_pair() as pair:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await pair.client.generate(request_)
        assert caught.value.code() is StatusCode.INVALID_ARGUMENT
        assert words in (caught.value.details() or "")


@pytest.mark.parametrize("full", ["streams", "sessions"])
async def test_a_full_drafter_and_a_full_verifier_say_when_to_try_again(full: str) -> None:
    verifier, drafter = (
        ({}, {"max_sessions": 1}) if full == "streams" else ({"max_sessions": 1}, {})
    )
    async with serving_pair("same tokenizer", verifier, **drafter) as pair:
        begun = asyncio.Event()
        first = asyncio.create_task(
            pair.client.generate(
                Request(100, prompt="x", ignore_eos=True, draft_steps=0), lambda _: begun.set()
            )
        )
        await begun.wait()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await pair.generate("x")
        assert caught.value.code() is StatusCode.RESOURCE_EXHAUSTED
        assert f"all 1 {full} are in use" in (caught.value.details() or "")
        assert (details_received(caught.value).retry_ms or 0) > 0
        assert len((await first).token_ids) == 100
