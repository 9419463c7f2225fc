"""Conversations through both services: what may stand in a message, and which messages count."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from client.client import Client, Request
from common.rpc.error_details import received
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
