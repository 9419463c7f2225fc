"""Conversations through both services: what may stand in a message, and which messages count."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc
import pytest
from grpc import StatusCode

from client import resuming
from client.client import Client, Output, Request
from client.results import TokenDelta
from client.resuming import generate_resuming
from common.errors import IncompleteStream
from common.rpc.error_details import received
from common.vocabulary.chat_template import MAX_TIME_US
from common.vocabulary.vocabulary import Vocabulary
from tests.support.fake_pairs import CONTEXT, draft_model, target_model
from tests.support.fake_services import serving_drafter, serving_verifier
from tests.support.fake_tokenizers import CHATML, byte_level_tokenizer, files_of
from tests.vocabulary.conversations import FORGED, KNOWING


@asynccontextmanager
async def chatting_client(target_template: str, **settings: Any) -> AsyncIterator[Client]:
    """A client of a pair whose draft model renders any role."""
    target = files_of(byte_level_tokenizer(size=400), chat_template=target_template)
    draft = files_of(byte_level_tokenizer(size=290), chat_template=CHATML)
    async with (
        serving_verifier(target_model("wide"), target, context=CONTEXT) as verifier,
        serving_drafter(draft_model("narrow"), draft, verifier.port, **settings) as drafter,
        Client(drafter.address) as client,
    ):
        yield client


# The time comes last, so that the first token of the answer depends on it.
TIMED = CHATML + "{{ strftime_now('%Y-%m-%d %H:%M:%S.%f') }}"


async def test_a_message_that_would_be_left_out_is_refused_by_field_and_value() -> None:
    async with chatting_client(KNOWING) as client:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.generate(Request(2, messages=(("user", "x"), ("developer", "be nice"))))
        assert caught.value.code() is StatusCode.INVALID_ARGUMENT
        assert caught.value.details() == (
            "chat.messages[1].role is 'developer'; it must be one whose messages the chat template "
            "renders there"
        )
        details = received(caught.value.trailing_metadata())
        assert details is not None and details.field == "chat.messages[1].role"


@pytest.mark.parametrize("trusting", [False, True])
async def test_a_message_holds_turns_only_where_the_drafter_is_set_to_allow_it(
    trusting: bool,
) -> None:
    """A forged turn has fewer tokens than its text."""
    async with chatting_client(CHATML, markup_in_messages=trusting) as client:
        forged = await client.generate(Request(2, messages=(("user", FORGED),)))
        as_turns = (("user", "hi"), ("system", "obey"), ("user", ""))
        turns = await client.generate(Request(2, messages=as_turns))
    difference = forged.statistics.prompt_tokens - turns.statistics.prompt_tokens
    assert (difference < 0) if trusting else (difference > 10)


class BreakingOff:
    """A client whose first streams end after a few deltas, without a summary."""

    def __init__(self, client: Client, after: int, times: int) -> None:
        self._client, self._after, self.left = client, after, times
        self.asked = list[Request]()

    async def generate(self, request: Request, hear: Any, timeout_s: float | None) -> Output:
        self.asked.append(request)
        heard = list[TokenDelta]()

        def some(delta: TokenDelta) -> None:
            heard.append(delta)
            if not self.left or len(heard) <= self._after:
                hear(delta)

        output = await self._client.generate(request, some, timeout_s)
        if self.left:
            self.left -= 1
            raise IncompleteStream("broken off")
        return output


@pytest.mark.parametrize("after", [0, 1, 4])
async def test_a_resumed_chat_is_rendered_as_of_the_time_of_its_first_stream(
    after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    render, rendered = Vocabulary.render_chat, list[list[int]]()

    def noted(vocabulary: Vocabulary, *arguments: Any) -> list[int]:
        rendered.append(render(vocabulary, *arguments))
        return rendered[-1]

    monkeypatch.setattr(Vocabulary, "render_chat", noted)
    monkeypatch.setattr(resuming, "PAUSE_S", 0.002)
    async with chatting_client(TIMED) as client:
        request = Request(12, messages=(("user", "hi"),), draft_steps=0, ignore_eos=True)
        breaking = BreakingOff(client, after, times=2)
        output = await generate_resuming(cast(Client, breaking), request, 20.0)
        assert [len(each.resumed_ids) for each in breaking.asked] == [0, after, 2 * after]
        first, *later = rendered
        if after:  # otherwise nothing had come that could be continued
            assert later == [first, first]
            used = breaking.asked[-1].chat_time_us
            assert used is not None and abs(time.time_ns() // 1000 - used) < 600e6
        whole = await client.generate(
            dataclasses.replace(request, chat_time_us=breaking.asked[-1].chat_time_us or 1)
        )
        if after:
            assert (output.text, output.token_ids) == (whole.text, whole.token_ids)


async def test_only_a_chat_whose_template_reads_the_clock_reports_a_time() -> None:
    """So that a drafter that doesn't know of it can go on with any other."""
    for template, timed in ((TIMED, True), (CHATML, False)):
        async with chatting_client(template) as client:
            deltas = list[TokenDelta]()
            await client.generate(Request(4, messages=(("user", "x"),)), deltas.append)
            assert (deltas[0].chat_time_us is not None) == timed
            assert deltas[-1].chat_time_us is None
            await client.generate(Request(4, prompt="x"), deltas.append)
            assert deltas[-1].chat_time_us is None


async def test_a_time_that_no_clock_shows_is_refused() -> None:
    async with chatting_client(TIMED) as client:
        request = Request(2, messages=(("user", "x"),), chat_time_us=MAX_TIME_US)
        await client.generate(request)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.generate(dataclasses.replace(request, chat_time_us=MAX_TIME_US + 1))
        assert caught.value.code() is StatusCode.INVALID_ARGUMENT
        assert caught.value.details() == (
            f"chat.time_us is {MAX_TIME_US + 1}; it must be at most {MAX_TIME_US}"
        )
