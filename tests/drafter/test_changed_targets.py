"""New streams take what verifiers serve now, without a restart of the drafter."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import grpc
import pytest
from grpc import StatusCode
from grpc_health.v1 import health_pb2, health_pb2_grpc

from client.client import Request
from common.model.paged_model import PagedModel
from common.telemetry import metrics
from common.vocabulary.vocabulary import TokenizerFiles, Vocabulary
from drafter import pairing
from drafter.session import SpeculativeSession
from drafter.verifier_client import client as verifier_client
from tests.drafter.replaced_verifiers import (
    CHAT,
    REQUEST,
    changed,
    of_drafter,
    one_verifier,
)
from tests.support.fake_models import knowing_model
from tests.support.fake_pairs import files, known
from tests.support.fake_tokenizers import CHATML, byte_level_tokenizer, files_of
from tests.support.stages import at_every_stage


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier_client, "RETRY_S", 0.01)
    monkeypatch.setattr(pairing, "RETRY_S", 0.05)


def in_mid_stream(monkeypatch: pytest.MonkeyPatch, act: Any) -> None:
    """`act` once, before a round of a session that has committed a few tokens."""
    acted: list[int] = []

    async def hook(session: SpeculativeSession, stage: str) -> None:
        if stage == "propose" and session.output_length >= 5 and not acted:
            acted.append(1)
            await act()

    at_every_stage(monkeypatch, hook)


async def test_a_new_stream_takes_another_tokenizer_without_a_restart() -> None:
    other = files_of(byte_level_tokenizer(size=350))
    async with one_verifier() as pair:
        await pair.client.generate(REQUEST)
        vocabulary = Vocabulary(other, known("wide").width, ())
        model = PagedModel(knowing_model(vocabulary, seed=0))
        await pair.replace(tokenizer=other, model=model)
        alone = await pair.client.generate(replace(REQUEST, draft_steps=0))
        output = await pair.client.generate(REQUEST)
        assert output.token_ids == alone.token_ids
        assert output.statistics.drafting
        assert vocabulary.bytes_of(output.token_ids).decode() == output.text
        assert pair.drafter.service._pairing.last.bridge.target.files.sha256 == other.sha256
        assert of_drafter(pair)(metrics.TARGET_CHANGES) == 1


@pytest.mark.parametrize("resumed", [False, True])
async def test_ids_of_the_old_tokenizer_are_refused_and_not_read_as_the_new_ones(
    resumed: bool,
) -> None:
    other = files_of(byte_level_tokenizer(size=350))
    async with one_verifier() as pair:
        begun = await pair.client.generate(REQUEST)
        await pair.replace(tokenizer=other)
        request = replace(REQUEST, prompt=None, prompt_ids=(5, 6))
        if resumed:
            request = replace(REQUEST, resumed_ids=begun.token_ids[:4])
        with pytest.raises(grpc.aio.AioRpcError, match=r"open\.tokenizer_sha256") as caught:
            await pair.client.generate(request)
        assert caught.value.code() is StatusCode.FAILED_PRECONDITION


async def test_a_client_that_resumes_does_not_get_another_models_words() -> None:
    """The first deltas say what the tokens come from, and who resumes sends it back."""
    async with one_verifier() as pair:
        begun = await pair.client.generate(REQUEST)
        assert begun.statistics.target == pair.verifier.info.identity
        request = replace(
            REQUEST, resumed_ids=begun.token_ids[:4], resumed_target=begun.statistics.target
        )
        assert (await pair.client.generate(request)).token_ids == begun.token_ids[4:]
        await pair.replace(weights="others")
        with pytest.raises(grpc.aio.AioRpcError, match=r"open\.identity\.weights") as caught:
            await pair.client.generate(request)
        assert caught.value.code() is StatusCode.FAILED_PRECONDITION


async def test_a_new_chat_takes_the_template_that_is_served_now() -> None:
    own = TokenizerFiles({**files("wide").files, "chat_template.jinja": CHATML.encode()})
    async with one_verifier(tokenizer=own) as pair:
        request = Request(1, messages=CHAT, draft_steps=0)
        before = await pair.client.generate(request)
        await pair.replace(tokenizer=changed("chat_template"))
        await pair.client.generate(REQUEST)  # a text has no template, and hides nothing from chats
        after = await pair.client.generate(request)
        expected = Vocabulary(changed("chat_template"), known("wide").width, ()).render_chat(CHAT)
        assert after.statistics.prompt_tokens == len(expected)
        assert before.statistics.prompt_tokens != len(expected)


async def test_while_nothing_can_be_served_health_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pairing, "WAIT_S", 0.5)
    other = files_of(byte_level_tokenizer(size=350))
    unservable = TokenizerFiles(
        {"tokenizer.json": other.files["tokenizer.json"].replace(b"ByteLevel", b"WordPiece")}
    )
    async with (
        one_verifier() as pair,
        grpc.aio.insecure_channel(pair.drafter.address) as channel,
    ):
        health = health_pb2_grpc.HealthStub(channel)
        await pair.drafter.server.set_serving(True)

        async def status() -> int:
            return (await health.Check(health_pb2.HealthCheckRequest())).status

        assert await status() == 1
        real = pair.drafter.pair.verifier.describe

        async def describing() -> Any:
            info, _ = await real()
            return info, unservable

        monkeypatch.setattr(pair.drafter.pair.verifier, "describe", describing)
        await pair.replace(tokenizer=other)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await pair.client.generate(REQUEST)
        assert caught.value.code() is StatusCode.UNAVAILABLE
        assert "serve another target now" in (caught.value.details() or "")
        assert await status() == 2
        monkeypatch.setattr(pair.drafter.pair.verifier, "describe", real)
        for _ in range(400):
            if await status() == 2:
                await asyncio.sleep(0.05)
        assert (await pair.client.generate(REQUEST)).token_ids
