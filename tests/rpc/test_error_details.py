"""Errors on the wire: google.rpc.Status that any client reads, within the metadata limit."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from hypothesis import given
from hypothesis import strategies as st

from common.errors import (
    CrossdraftError,
    InvalidField,
    OverCapacity,
    UnknownFeature,
)
from common.rpc.error_details import (
    MESSAGE_BYTES,
    ErrorDetails,
    details_of,
    encoded,
    message_of,
    received,
    shortened,
    without_middle,
)
from common.rpc.server import GrpcServer, ServerSettings, Service
from drafter.verifier_client.lost import VerifierRefused

METADATA_BYTES = 8 << 10  # a client's limit, if it sets none
NAME = "test.Raising"
CAUSES = {
    "field": InvalidField("stop[1]", "0 bytes long", "from 1 to 256 bytes"),
    "retry": OverCapacity("sessions", 4, 1250),
    "feature": UnknownFeature("open.required_features[0]", "trees", ["logprobs"]),
    "handed on": VerifierRefused(grpc.StatusCode.NOT_FOUND, "no", reason="THEIRS", field="x"),
}
# One character of one, two, three and four bytes, and two that percent-encoding triples.
SCRIPTS = ["a", "é", "漢", "𝒳", "%", "\x01"]


async def failing(error: CrossdraftError) -> AsyncIterator[grpc.aio.AioRpcError]:
    """What a client gets over a real socket where a handler raises `error`."""

    async def handler(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        raise error

    def register(_: object, server: grpc.aio.Server) -> None:
        methods = {"Call": grpc.unary_unary_rpc_method_handler(handler)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, methods),))

    server = GrpcServer(
        ServerSettings("127.0.0.1:0", 2**20, 1.0), [Service(NAME, register, object())]
    )
    port = await server.start()
    await server.set_serving(True)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary(f"/{NAME}/Call")(b"")
        yield caught.value
    finally:
        await server.stop()


@pytest.mark.parametrize("name", CAUSES)
async def test_a_client_reads_reason_field_and_retry_delay_with_googles_own_messages(
    name: str,
) -> None:
    cause = CAUSES[name]
    async for error in failing(cause):
        status = rpc_status.from_call(error)
        info = error_details_pb2.ErrorInfo()
        assert status.details[0].Unpack(info)
        assert (info.domain, info.reason) == ("crossdraft", cause.reason)
        assert error.code() is cause.status and error.details() == str(cause)
        assert received(error.trailing_metadata()) == details_of(cause)
        kinds = {detail.TypeName() for detail in status.details[1:]}
        assert ("google.rpc.BadRequest" in kinds) == bool(cause.field)
        assert ("google.rpc.RetryInfo" in kinds) == (cause.retry_ms is not None)


def test_reasons_are_the_classes_names_in_upper_snake_case() -> None:
    assert InvalidField("f", 1, "2").reason == "INVALID_FIELD"
    assert OverCapacity("sessions", 1, 1).reason == "OVER_CAPACITY"


@pytest.mark.parametrize("character", SCRIPTS)
async def test_an_error_that_quotes_any_text_fits_the_metadata_limit(character: str) -> None:
    long = character * 5000
    cause = InvalidField(long, long, long)
    cause.metadata = {f"{long}{number}": long for number in range(20)}
    async for error in failing(cause):
        assert error.code() is cause.status  # over the limit it would be RESOURCE_EXHAUSTED
        message = error.details() or ""
        assert message == message_of(cause) and "…" in message
        details = received(error.trailing_metadata())
        assert details is not None and details.reason == "INVALID_FIELD"


@pytest.mark.parametrize("character", SCRIPTS)
def test_the_largest_details_leave_space_for_other_metadata(character: str) -> None:
    long = character * 5000
    message = shortened(long, MESSAGE_BYTES)
    facts = {f"{number}{long}": long for number in range(20)}
    key, data = encoded(grpc.StatusCode.INTERNAL, message, ErrorDetails(long, long, 2**31, facts))
    percent = sum(1 if 0x20 <= byte <= 0x7E and byte != 0x25 else 3 for byte in message.encode())
    base64 = -(-len(data) * 4 // 3)
    assert len(key) + percent + base64 < METADATA_BYTES - 1024


@pytest.mark.parametrize("character", SCRIPTS)
async def test_a_message_keeps_its_field_and_its_limit_whatever_it_quotes(character: str) -> None:
    cause = UnknownFeature("required_features[0]", character * 5000, ["logprobs", "sampling"])
    async for error in failing(cause):
        message = error.details() or ""
        assert message.startswith("required_features[0] is '") and len(message.encode()) <= 800
        assert message.endswith("'; it must be one of logprobs, sampling")
        violation = error_details_pb2.BadRequest()
        assert rpc_status.from_call(error).details[1].Unpack(violation)
        description = violation.field_violations[0].description
        assert len(description.encode()) <= 200 and description.endswith("logprobs, sampling")


@given(st.text(), st.integers(7, 40))
def test_what_loses_its_middle_fits_and_keeps_both_ends(text: str, limit: int) -> None:
    short, whole = without_middle(text, limit), text.encode(errors="replace").decode()
    assert len(short.encode()) <= limit
    if short != whole:
        before, _, after = short.partition("…") if "…" not in whole else ("", "", "")
        assert whole.startswith(before) and whole.endswith(after)


@given(st.text(), st.integers(3, 40))
def test_a_shortened_text_is_a_beginning_that_fits(text: str, limit: int) -> None:
    short = shortened(text, limit)
    assert len(short.encode()) <= limit or len(text.encode(errors="replace")) <= limit
    kept = short.removesuffix("…")
    assert text.encode(errors="replace").decode().startswith(kept)


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        (),
        (("grpc-status-details-bin", b"\xff\xff\xff"),),
        (("grpc-status-details-bin", "text"),),
        (("grpc-status-details-bin", b""),),
    ],
)
def test_details_of_others_or_none_are_none_of_ours(metadata: object) -> None:
    assert received(metadata) is None  # type: ignore[arg-type]
