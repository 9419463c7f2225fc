"""What a request may hold, and what the drafter does with it before anything is drafted."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import grpc
import pytest

from client.client import Client, Request
from common.errors import InvalidField
from common.vocabulary.vocabulary import Vocabulary
from tests.support.fake_pairs import CONTEXT, draft_model, known, serving_pair, target_model
from tests.support.fake_services import serving_drafter, serving_verifier
from tests.support.fake_tokenizers import CHATML, byte_level_tokenizer, files_of

REFUSING = "{{ raise_exception('no system messages, please') }}"
MESSAGES = (("system", "Be brief."), ("user", "def add(left, right):"))


async def test_a_draft_template_that_refuses_leaves_the_request_alone() -> None:
    target = files_of(byte_level_tokenizer(size=400), chat_template=CHATML)
    draft = files_of(byte_level_tokenizer(size=290), chat_template=REFUSING)
    model = draft_model("narrow")
    with pytest.raises(InvalidField, match="no system messages"):
        Vocabulary(draft, known("narrow").width, ()).render_chat(MESSAGES)
    async with (
        serving_verifier(target_model("wide"), target, context=CONTEXT) as verifier,
        serving_drafter(model, draft, verifier.port) as drafter,
        Client(drafter.address) as client,
    ):
        outputs = [
            await client.generate(Request(8, messages=MESSAGES, draft_steps=steps))
            for steps in (0, 3)
        ]
        assert outputs[0].token_ids == outputs[1].token_ids
        assert outputs[1].statistics.drafting


async def test_at_k_0_the_draft_model_isnt_asked_for_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving_pair() as pair:

        def never(*_: Any) -> Any:
            raise AssertionError

        monkeypatch.setattr(pair.drafter.pair.engine, "open", never)
        output = await pair.generate("x", 5, draft_steps=0)
        assert not output.statistics.drafting
        monkeypatch.undo()
        assert (await pair.generate("x", 1, draft_steps=0)).statistics.wire_bytes > 0


async def test_reading_a_request_is_off_the_event_loop_and_on_its_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encode, threads = Vocabulary.encode_prompt, set[int]()

    def slow(vocabulary: Vocabulary, text: str) -> list[int]:
        threads.add(threading.get_ident())
        time.sleep(0.2)  # the work itself, of a known length; nothing waits for it to be over
        return encode(vocabulary, text)

    async with serving_pair() as pair:
        monkeypatch.setattr(Vocabulary, "encode_prompt", slow)
        output = await pair.generate("x", 2)
        monkeypatch.undo()
    assert threads and threading.get_ident() not in threads
    assert output.statistics.time_to_first_token_s >= 0.2


async def test_a_cancelled_call_keeps_its_place_until_its_thread_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a client that cancels and calls again would have any number of threads tokenise."""
    encode, begun, go_on = Vocabulary.encode_prompt, threading.Event(), threading.Event()

    def slow(vocabulary: Vocabulary, text: str) -> list[int]:
        begun.set()
        go_on.wait(20)
        return encode(vocabulary, text)

    async with serving_pair(max_sessions=1) as pair:
        monkeypatch.setattr(Vocabulary, "encode_prompt", slow)
        call = asyncio.create_task(pair.generate("x", 2))
        await asyncio.to_thread(begun.wait, 20)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await pair.drafter.idle()
        with pytest.raises(grpc.aio.AioRpcError, match="all 1 streams are in use"):
            await pair.generate("x", 2)
        go_on.set()
        monkeypatch.undo()
        for _ in range(2000):
            if pair.drafter.streams:
                await asyncio.sleep(0.01)
        assert (await pair.generate("x", 2)).token_ids


@pytest.mark.parametrize("failing", ["drafter.service.Reply", "drafter.session.PromptLookup"])
async def test_what_raises_before_the_first_run_leaves_no_session_behind(
    monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError

    async with serving_pair() as pair:  # which looks at its end whether anything is held
        monkeypatch.setattr(failing, fail)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await pair.generate("x", 2)
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        monkeypatch.undo()
        assert not pair.drafter.streams


UNKNOWN = b"\xf8\x07\x01"  # field 127, varint 1
