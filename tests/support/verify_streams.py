"""A client's end of one Verify stream, and what it gets when it is refused."""

from __future__ import annotations

import grpc
import pytest
from grpc_status import rpc_status

from common.pb import verifier_pb2
from common.rpc.error_details import ErrorDetails, received
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


def details_received(error: grpc.aio.AioRpcError) -> ErrorDetails:
    """What an error of ours carries, as grpcio-status and ours read it."""
    assert rpc_status.from_call(error) is not None  # raises where code or message differ
    details = received(error.trailing_metadata())
    assert details is not None
    return details


class Refusal:
    """A status as a client sees it."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        self.code = error.code()
        self.message = error.details() or ""
        # A status that gRPC itself makes has no details.
        details = received(error.trailing_metadata()) or ErrorDetails("")
        self.reason = details.reason
        self.field = details.field
        self.retry_ms = details.retry_ms
        self.metadata = details.metadata
