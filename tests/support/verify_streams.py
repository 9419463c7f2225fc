"""A client's end of one Verify stream, and what it is told when it is refused."""

from __future__ import annotations

import grpc
import pytest

from common.pb import verifier_pb2
from common.types import OpenSession, Proposal, Verdict
from common.wire.verify import verdict_from_pb, verify_request_to_pb
from tests.support.fake_services import RunningVerifier


class Stream:
    """A Verify stream: what is sent, and the verdict or error that comes back."""

    def __init__(self, verifier: RunningVerifier) -> None:
        self._call = verifier.stub.Verify()

    async def send(self, content: OpenSession | Proposal | verifier_pb2.VerifyRequest) -> Verdict:
        is_message = isinstance(content, verifier_pb2.VerifyRequest)
        await self._call.write(content if is_message else verify_request_to_pb(content))
        response = await self._call.read()
        assert response is not grpc.aio.EOF
        return verdict_from_pb(response.verdict)

    async def refused(
        self, content: OpenSession | Proposal | verifier_pb2.VerifyRequest
    ) -> Refusal:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.send(content)
        return Refusal(caught.value)

    async def ended(self) -> bool:
        """Whether the verifier has closed the stream, with status OK."""
        return (
            await self._call.read() is grpc.aio.EOF
            and await self._call.code() is grpc.StatusCode.OK
        )

    async def status(self) -> tuple[grpc.StatusCode, str]:
        """How the verifier ends the stream, whenever it does."""
        return await self._call.code(), await self._call.details()

    def cancel(self) -> None:
        self._call.cancel()


class Refusal:
    """A status as a client sees it."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        self.code = error.code()
        self.message = error.details() or ""
        self.details = dict(error.trailing_metadata() or ())
