"""What goes wrong is counted by its own name: statuses, lost verifiers, failing draft models."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from client.client import Client, Request
from common.pb import verifier_pb2
from common.rpc.calls import ended_by
from common.telemetry import metrics
from drafter.verifier_client.selection import REFUSALS
from tests.support.fake_pairs import PROMPTS, serving_pair
from tests.support.lost_verifiers import lose_once
from tests.support.metric_samples import samples_of


async def refused(client: Client, request: Request) -> StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.generate(request)
    status: StatusCode = caught.value.code()
    return status


async def test_errors_are_counted_by_method_status_and_cause() -> None:
    async with serving_pair(verifier={"max_sessions": 1}) as pair:
        verifier, drafter = samples_of(pair)
        assert await refused(pair.client, Request(0, prompt="x")) is StatusCode.INVALID_ARGUMENT
        counted = {"method": "Generate", "status": "INVALID_ARGUMENT", "error": "INVALID_FIELD"}
        assert drafter(metrics.GRPC_CALLS, **counted) == 1
        session = pair.verifier.engine.open(pair.verifier.open((5, 6)))
        assert await refused(pair.client, Request(1, prompt="x")) is StatusCode.RESOURCE_EXHAUSTED
        pair.verifier.engine.close(session)
        # The verifier's error keeps its name on its way through the drafter.
        full = {"status": "RESOURCE_EXHAUSTED", "error": "OVER_CAPACITY"}
        assert verifier(metrics.GRPC_CALLS, method="Verify", **full) == REFUSALS
        assert drafter(metrics.GRPC_CALLS, method="Generate", **full) == 1
        unknown = pair.verifier.channel.unary_unary("/crossdraft.v1.VerifierService/Nothing")
        with pytest.raises(grpc.aio.AioRpcError):
            await unknown(b"")
        assert verifier(metrics.GRPC_CALLS, method="other", status="UNIMPLEMENTED") == 1
        await pair.verifier.stub.GetModel(verifier_pb2.GetModelRequest())
        assert verifier(metrics.GRPC_CALLS, method="GetModel", status="OK", error="none") == 2


async def test_empty_answers_are_counted_apart() -> None:
    async with serving_pair("same tokenizer") as pair:
        _, drafter = samples_of(pair)
        output = await pair.generate(PROMPTS[0], 8, ignore_eos=True)
        assert output.text and drafter(metrics.EMPTY_ANSWERS) == 0
        await pair.generate(PROMPTS[0], 8, stop=(output.text[0],))
        assert drafter(metrics.EMPTY_ANSWERS) == 1
        assert drafter(metrics.ANSWERS, finish_reason="stop") == 1


async def test_a_failing_draft_model_is_seen_and_so_is_its_recovery(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving_pair() as pair:
        _, drafter = samples_of(pair)
        model = pair.drafter.pair.engine.model
        with monkeypatch.context() as broken:
            broken.setattr(type(model), "forward", _failing(model))
            await pair.generate("x")
            assert drafter(metrics.DRAFT_HEALTHY) == 0
            assert drafter(metrics.FAILED_PASSES, engine="draft") >= 1
            assert drafter(metrics.UNDRAFTED_ANSWERS) == 1
        await pair.generate("x")
        assert drafter(metrics.DRAFT_HEALTHY) == 1
        assert drafter(metrics.UNDRAFTED_ANSWERS) == 1


def _failing(model: Any):
    real = type(model).forward

    def forward(self, chunks):
        if self is model:
            raise RuntimeError("no draft")
        return real(self, chunks)

    return forward


async def test_a_pause_at_a_lost_verifier_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    lose_once(monkeypatch)
    async with serving_pair() as pair:
        verifier, drafter = samples_of(pair)
        output = await pair.generate("x", 12, ignore_eos=True, draft_steps=0)
        assert len(output.token_ids) == 12
        assert drafter(metrics.PAUSE_SECONDS, "_count") == 1
        assert verifier(metrics.PREFILLS) == 2


@pytest.mark.parametrize(
    ("left", "status"), [(None, "CANCELLED"), (5.0, "CANCELLED"), (0, "DEADLINE_EXCEEDED")]
)
def test_a_call_whose_time_is_over_isnt_one_that_was_given_up(
    left: float | None, status: str
) -> None:
    class Context:
        def time_remaining(self) -> float | None:
            return left

    found, _ = ended_by(asyncio.CancelledError(), Context())
    assert found.name == status
