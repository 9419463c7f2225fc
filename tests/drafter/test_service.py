"""What a request may hold, and what the drafter does with it before anything is drafted."""

from __future__ import annotations

import threading
import time
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from client.client import Client, Request
from common.errors import InvalidField
from common.pb import drafter_pb2 as pb
from common.pb import drafter_pb2_grpc
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


UNKNOWN = b"\xf8\x07\x01"  # field 127, varint 1


@pytest.mark.parametrize(
    ("request_", "where"),
    [
        (pb.GenerateRequest(prompt="x"), "request"),
        (pb.GenerateRequest(chat=pb.Chat(messages=[pb.ChatMessage(role="user")])), "chat"),
        (pb.GenerateRequest(prompt_token_ids=pb.TokenIds(ids=[5])), "prompt_token_ids"),
        (
            pb.GenerateRequest(chat=pb.Chat(messages=[pb.ChatMessage(role="user")])),
            "chat.messages[0]",
        ),
    ],
)
async def test_a_field_of_another_version_is_refused_wherever_it_stands(
    request_: pb.GenerateRequest, where: str
) -> None:
    inner: Any = {
        "request": request_,
        "chat": request_.chat,
        "prompt_token_ids": request_.prompt_token_ids,
        "chat.messages[0]": request_.chat.messages[0] if request_.chat.messages else None,
    }[where]
    request_.max_new_tokens = 2
    inner.MergeFromString(UNKNOWN)
    async with (
        serving_pair() as pair,
        grpc.aio.insecure_channel(pair.drafter.address) as channel,
    ):
        stub = drafter_pb2_grpc.DrafterServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in stub.Generate(request_):
                pass
    assert caught.value.code() is StatusCode.INVALID_ARGUMENT
    assert (caught.value.details() or "").startswith(f"{where} carries field 127")
