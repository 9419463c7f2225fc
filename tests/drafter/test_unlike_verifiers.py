"""A verifier that comes back as another one, or two unlike ones behind one name: running streams.

None goes on in another model's words unless the operator allows it; limits are those of whoever has
the stream.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from client.client import Client
from common.model.paged_model import PagedModel
from common.sampling.acceptance_rule import AcceptanceRule
from common.sampling.parameters import SamplingParams
from common.telemetry import metrics
from common.types import IDENTITY_PARTS, BridgeMode
from drafter import pairing
from drafter.session import SpeculativeSession
from drafter.verifier_client import client as verifier_client
from tests.drafter.replaced_verifiers import (
    REQUEST,
    UNLIKE,
    of_drafter,
    one_verifier,
    verifier,
)
from tests.support.fake_models import knowing_model
from tests.support.fake_pairs import draft_model, files, known
from tests.support.fake_services import serving_drafter
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


@pytest.mark.parametrize("part", IDENTITY_PARTS)
async def test_a_running_stream_does_not_go_on_in_another_models_words(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with one_verifier() as pair:
        in_mid_stream(monkeypatch, lambda: pair.replace(**UNLIKE[part]))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await pair.client.generate(REQUEST)
        assert caught.value.code() is StatusCode.FAILED_PRECONDITION
        details = caught.value.details() or ""
        assert details.startswith(f"open.identity.{part} is ")
        assert details.count("open.identity.") == 1
        monkeypatch.undo()
        assert (await pair.client.generate(REQUEST)).token_ids  # a new one begins there


@pytest.mark.parametrize("part", IDENTITY_PARTS)
async def test_it_goes_on_where_the_operator_allows_it_and_the_summary_and_a_metric_say_so(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with one_verifier(resume_on=f"chat_template,{part}") as pair:
        expected = await pair.client.generate(REQUEST)
        assert expected.statistics.resumed_on == ()
        in_mid_stream(monkeypatch, lambda: pair.replace(**UNLIKE[part]))
        output = await pair.client.generate(REQUEST)
        assert output.token_ids == expected.token_ids  # the same model, by another name
        assert output.statistics.resumed_on == (part,)
        assert output.statistics.target == pair.verifier.info.identity
        assert of_drafter(pair)(metrics.RESUMED_ON, part=part) == 1


async def test_the_same_verifier_again_is_a_pause_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with one_verifier() as pair:
        expected = await pair.client.generate(REQUEST)
        in_mid_stream(monkeypatch, pair.replace)
        output = await pair.client.generate(REQUEST)
        assert output.token_ids == expected.token_ids
        assert output.statistics.resumed_on == ()


@pytest.mark.parametrize(
    ("sampling", "rule"),
    [
        (SamplingParams(), None),
        (SamplingParams(temperature=0.8, seed=5), None),
        (SamplingParams(temperature=0.8), AcceptanceRule.REJECTION),
    ],
)
async def test_proposals_are_cut_to_the_limits_of_whoever_has_the_stream(
    sampling: SamplingParams, rule: AcceptanceRule | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verifier with smaller limits, in mid-stream and for new streams: never an error."""
    smaller = {"max_draft_tokens": 2, "max_q_entries": 4}
    request = replace(
        REQUEST, sampling=sampling, rule=rule, draft_steps=6, bridge=BridgeMode.INTERSECTION
    )
    async with one_verifier() as pair:
        expected = await pair.client.generate(request)
        in_mid_stream(monkeypatch, lambda: pair.replace(**smaller))
        for _ in range(2):
            output = await pair.client.generate(request)
            assert output.statistics.output_tokens == 16
            if rule is None:
                assert output.token_ids == expected.token_ids
        drafted = output.statistics.drafted_by_position
        assert 0 < len(drafted) <= 2
        assert pair.drafter.service._pairing.last.info.max_draft_tokens == 2


async def test_two_kinds_behind_one_name_all_serve_and_no_stream_changes_its_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other weights and other limits; verifiers come and go, and each text is of one kind."""
    second = PagedModel(knowing_model(known("wide"), seed=3))
    async with AsyncExitStack() as stack:
        kinds = [
            await stack.enter_async_context(verifier()),
            await stack.enter_async_context(
                verifier(model=second, weights="others", max_draft_tokens=1, context=60)
            ),
        ]
        drafters = [
            await stack.enter_async_context(
                serving_drafter(draft_model("narrow"), files("narrow"), kind.port)
            )
            for kind in kinds
        ]
        own = []
        for drafter in drafters:
            client = await stack.enter_async_context(Client(drafter.address))
            own.append((await client.generate(replace(REQUEST, draft_steps=0))).token_ids)
        assert own[0] != own[1]
        both = ",".join(f"127.0.0.1:{kind.port}" for kind in kinds)
        drafter = await stack.enter_async_context(
            serving_drafter(draft_model("narrow"), files("narrow"), f"ipv4:{both}")
        )
        client = await stack.enter_async_context(Client(drafter.address))
        outputs = await asyncio.gather(*(client.generate(REQUEST) for _ in range(10)))
        assert {output.token_ids for output in outputs} == set(own)
        by_target = {output.statistics.target: output.token_ids for output in outputs}
        assert by_target == {kind.info.identity: ids for kind, ids in zip(kinds, own, strict=True)}
