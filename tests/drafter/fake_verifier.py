"""A verifier that breaks off, changes or answers amiss, and a client of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc

from common.errors import ModelFailed
from common.pb import verifier_pb2 as pb
from common.pb import verifier_pb2_grpc
from common.rpc.channel import open_channel
from common.types import ModelInfo, OpenSession, RoundCost, Verdict
from common.wire import verify as wire_verify
from drafter.verifier_client.client import VerifierClient
from tests.support.fake_services import MESSAGE_BYTES, serving
from tests.support.fake_tokenizers import byte_level_tokenizer, files_of

FILES = files_of(byte_level_tokenizer(size=270))
SPEC = OpenSession((5, 6), 8, FILES.sha256)
COST = RoundCost(1, 1, 1, 1, 1)
Breaking = Callable[[grpc.aio.ServicerContext], Any]


class FakeVerifier(verifier_pb2_grpc.VerifierServiceServicer):
    """Commits one token a round; breaks its first streams at their first proposal, or at open."""

    def __init__(self, break_off: Breaking | None = None, at_open: bool = False) -> None:
        self.break_off = break_off
        self.at_open = at_open
        self.sha256 = [FILES.sha256]  # one for each GetModel; the last one stays
        self.short = 0  # bytes that go missing
        self.silences = 0  # so many times it never says what it serves
        self.opened: list[tuple[int, ...]] = []
        self.resumed: list[int] = []  # output tokens of an earlier life, of each opened session

    async def GetModel(self, request: Any, context: Any) -> pb.GetModelResponse:
        if self.silences:
            self.silences -= 1
            await asyncio.Event().wait()
        sha256 = self.sha256.pop(0) if len(self.sha256) > 1 else self.sha256[0]
        info = ModelInfo(
            "fake", sha256, 270, frozenset({0}), 64, 8, 256, 4, MESSAGE_BYTES, True, "0"
        )
        return wire_verify.model_to_pb(info)

    async def GetTokenizer(
        self, request: Any, context: Any
    ) -> AsyncIterator[pb.GetTokenizerResponse]:
        for name, data in FILES.files.items():
            half = len(data) // 2
            yield pb.GetTokenizerResponse(filename=name, chunk=data[:half], file_bytes=len(data))
            yield pb.GetTokenizerResponse(filename=name, chunk=data[half + self.short :])

    async def Verify(self, requests: Any, context: Any) -> AsyncIterator[pb.VerifyResponse]:
        length = 0
        async for request in requests:
            content = wire_verify.verify_request_from_pb(request)
            if isinstance(content, OpenSession):
                self.opened.append(content.prompt)
                self.resumed.append(content.resumed_output_tokens)
                length, round_ = len(content.prompt), 0
            else:
                round_ = content.round
            if self.break_off and isinstance(content, OpenSession) is self.at_open:
                break_off, self.break_off = self.break_off, None
                await break_off(context)
                return
            length += 1
            verdict = Verdict(round_, 0, 7, length, None, COST)
            yield pb.VerifyResponse(verdict=wire_verify.verdict_to_pb(verdict))


@asynccontextmanager
async def client_of(
    fake: FakeVerifier,
    timeout_s: float = 5.0,
    round_timeout_s: float | None = None,
    open_timeout_s: float | None = None,
) -> AsyncIterator[VerifierClient]:
    register = verifier_pb2_grpc.add_VerifierServiceServicer_to_server
    async with (
        serving("crossdraft.v1.VerifierService", register, fake) as (_, port),
        open_channel(f"127.0.0.1:{port}", MESSAGE_BYTES) as channel,
    ):
        yield VerifierClient(channel, timeout_s, round_timeout_s, open_timeout_s)


def aborting(*arguments: Any) -> Breaking:
    async def break_off(context: grpc.aio.ServicerContext) -> None:
        await context.abort(*arguments)

    return break_off


async def ending(context: grpc.aio.ServicerContext) -> None:
    """The stream ends with status OK and no finish reason."""


async def failing(context: grpc.aio.ServicerContext) -> None:
    raise ModelFailed("the target model failed: RuntimeError")


async def late(context: grpc.aio.ServicerContext) -> None:
    """The verdict of another round."""
    verdict = Verdict(5, 0, 7, 3, None, COST)
    await context.write(pb.VerifyResponse(verdict=wire_verify.verdict_to_pb(verdict)))


async def hanging(context: grpc.aio.ServicerContext) -> None:
    await asyncio.Event().wait()
