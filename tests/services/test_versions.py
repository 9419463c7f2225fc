"""Peers of different versions, over real sockets: what is new is ignored, or refused by name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from grpc import StatusCode

from client.client import Client, Request
from common.pb import drafter_pb2, drafter_pb2_grpc, sampling_pb2, verifier_pb2
from common.rpc.error_details import received
from common.types import FinishReason, Proposal
from common.wire.checks import FEATURES
from common.wire.generate import deltas_response
from common.wire.verify import verify_request_to_pb
from tests.support.fake_pairs import serving_pair
from tests.support.fake_services import serving
from tests.support.verifier_sessions import PROMPT
from tests.support.verifier_sessions import serving as serving_verifier
from tests.support.verify_streams import Stream, details_received

NEW_FIELDS = b"\xf8\x07\x01" + b"\xc2\x3e\x03new"  # field 127, a varint; field 1000, a string
NEW_VALUE = 99  # of any enum


def newer(message: Message) -> Any:
    """The message as a newer version sends it: with fields that we don't know, at every level."""
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for each in value if field.is_repeated else [value]:
            newer(each)
    message.MergeFromString(NEW_FIELDS)
    return message


async def texts(stub: Any, request: drafter_pb2.GenerateRequest) -> tuple[str, Any]:
    responses = [response async for response in stub.Generate(request)]
    text = "".join(delta.text for each in responses for delta in each.deltas.deltas)
    return text, responses[-1].summary


async def test_a_drafter_serves_a_newer_client() -> None:
    async with (
        serving_pair() as pair,
        grpc.aio.insecure_channel(pair.drafter.address) as channel,
    ):
        stub = drafter_pb2_grpc.DrafterServiceStub(channel)
        request = drafter_pb2.GenerateRequest(
            chat=None, prompt="The quick", max_new_tokens=6, sampling=sampling_pb2.Sampling(top_k=5)
        )
        expected, _ = await texts(stub, request)
        sent = newer(request)
        sent.bridge_mode = sent.acceptance_rule = NEW_VALUE
        text, summary = await texts(stub, sent)
        assert text == expected
        assert summary.acceptance_rule == sampling_pb2.ACCEPTANCE_RULE_GREEDY  # what was used
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/crossdraft.v1.DrafterService/NewMethod")(b"")
        assert caught.value.code() is StatusCode.UNIMPLEMENTED
        assert (await texts(stub, sent))[0] == expected


async def test_a_verifier_serves_a_newer_drafter() -> None:
    async with serving_verifier() as verifier:
        expected = Stream(verifier)
        first = await expected.send(verifier.open(PROMPT))
        second = await expected.send(Proposal(1, first.committed_length, (1, 2)))
        stream = Stream(verifier)
        opened = newer(verify_request_to_pb(verifier.open(PROMPT)))
        opened.open.acceptance_rule = NEW_VALUE
        assert (await stream.send(opened)).next_token == first.next_token
        proposal = verify_request_to_pb(Proposal(1, first.committed_length, (1, 2)))
        assert (await stream.send(newer(proposal))).next_token == second.next_token
        method = "/crossdraft.v1.VerifierService/NewMethod"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await verifier.channel.unary_unary(method)(b"")
        assert caught.value.code() is StatusCode.UNIMPLEMENTED
        expected.cancel()
        stream.cancel()


async def test_a_required_feature_that_a_service_lacks_is_refused_by_name() -> None:
    async with (
        serving_pair() as pair,
        grpc.aio.insecure_channel(pair.drafter.address) as channel,
    ):
        stub = drafter_pb2_grpc.DrafterServiceStub(channel)
        request = drafter_pb2.GenerateRequest(
            prompt="x", max_new_tokens=1, required_features=["resume", "time travel"]
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await texts(stub, request)
        assert caught.value.code() is StatusCode.FAILED_PRECONDITION
        details = details_received(caught.value)
        assert (details.reason, details.field) == ("UNKNOWN_FEATURE", "required_features[1]")
        assert details.metadata["feature"] == "time travel"
        del request.required_features[1]
        assert (await texts(stub, request))[1].output_tokens == 1

        opened = verify_request_to_pb(pair.verifier.open((5, 6)))
        opened.open.required_features.append("time travel")
        refusal = await Stream(pair.verifier).refused(opened)
        assert refusal.code is StatusCode.FAILED_PRECONDITION
        assert refusal.field == "open.required_features[0]" and "'time travel'" in refusal.message

        stream = Stream(pair.verifier)
        verdict = await stream.send(pair.verifier.open((5, 6)))
        late = verify_request_to_pb(Proposal(1, verdict.committed_length, ()))
        late.proposal.required_features.append("time travel")
        refusal = await stream.refused(late)
        assert refusal.field == "proposal.required_features[0]"
        await pair.verifier.idle()
        pair.verifier.assert_nothing_held()


async def test_both_services_list_their_features() -> None:
    async with serving_pair() as pair:
        model = await pair.verifier.stub.GetModel(verifier_pb2.GetModelRequest())
        assert set(model.features) == FEATURES
        async with grpc.aio.insecure_channel(pair.drafter.address) as channel:
            stub = drafter_pb2_grpc.DrafterServiceStub(channel)
            answer = await stub.GetPair(drafter_pb2.GetPairRequest())
        assert set(answer.features) == FEATURES


class NewerDrafter(drafter_pb2_grpc.DrafterServiceServicer):
    """Answers with fields and enum values that this client doesn't know."""

    async def Generate(
        self, request: drafter_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[drafter_pb2.GenerateResponse]:
        delta = drafter_pb2.TokenDelta(token_id=5, text="new")
        delta.origin = NEW_VALUE  # type: ignore[assignment]
        yield newer(deltas_response([delta]))
        yield drafter_pb2.GenerateResponse.FromString(NEW_FIELDS)  # an event of a new kind
        summary = drafter_pb2.Summary(output_tokens=1)
        summary.finish_reason = summary.acceptance_rule = NEW_VALUE  # type: ignore[assignment]
        yield newer(drafter_pb2.GenerateResponse(summary=summary))


async def test_a_client_understands_a_newer_drafter() -> None:
    register = drafter_pb2_grpc.add_DrafterServiceServicer_to_server
    async with (
        serving("crossdraft.v1.DrafterService", register, NewerDrafter()) as (_, port),
        Client(f"127.0.0.1:{port}") as client,
    ):
        output = await client.generate(Request(4, prompt="x"))
    assert (output.text, output.token_ids, output.origins) == ("new", (5,), (None,))
    assert output.statistics.finish_reason is FinishReason.OTHER
    assert output.statistics.rule is None
    assert output.as_json()["finish_reason"] == "other"


async def test_a_drafter_understands_a_newer_verifier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every message of the verifier has new fields, and its sessions end for a new reason."""
    from common.wire import verify as wire_verify

    to_pb, model_to_pb = wire_verify.verdict_to_pb, wire_verify.model_to_pb

    def newer_verdict(verdict: Any) -> verifier_pb2.Verdict:
        message = newer(to_pb(verdict))
        if message.finish_reason:
            message.finish_reason = NEW_VALUE
        return message

    async with serving_pair() as pair:
        expected = await pair.generate("The quick", 8)
    monkeypatch.setattr(wire_verify, "verdict_to_pb", newer_verdict)
    monkeypatch.setattr(wire_verify, "model_to_pb", lambda info: newer(model_to_pb(info)))
    async with serving_pair() as pair:
        output = await pair.generate("The quick", 8)
        assert output.text == expected.text
        assert output.statistics.finish_reason is FinishReason.OTHER


def test_a_status_of_another_domain_is_nobodys_of_ours() -> None:
    assert received((("grpc-status-details-bin", b""),)) is None
