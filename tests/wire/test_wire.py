"""Values and messages: there and back, and what a message is refused for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from common.errors import InvalidField, MissingMessage, UnfitRule, UnknownFeature
from common.pb import verifier_pb2
from common.pb.sampling_pb2 import Sampling
from common.pb.sampling_pb2 import SparseDistribution as SparseDistributionMessage
from common.sampling.acceptance_rule import AcceptanceRule
from common.sampling.parameters import SamplingParams
from common.telemetry.metrics import DRAFTER_STAGE
from common.types import (
    BridgeMode,
    FinishReason,
    ModelInfo,
    OpenSession,
    Origin,
    Proposal,
    SparseDistribution,
    Verdict,
)
from common.wire import checks as wire
from common.wire import generate as wire_generate
from common.wire import sampling as wire_sampling
from common.wire import verify as wire_verify
from common.wire.enums import BRIDGES, FINISH_REASONS, ORIGINS, RULES
from tests.wire.wire_values import ids, models, opens, proposals, q_rows, samplings, verdicts


@given(opens | proposals)
def test_requests_come_back_whole(content: OpenSession | Proposal) -> None:
    sent = wire_verify.verify_request_to_pb(content).SerializeToString()
    request = verifier_pb2.VerifyRequest.FromString(sent)
    assert wire_verify.verify_request_from_pb(request) == content


@given(opens, ids, q_rows)
def test_stateless_rounds_come_back_whole(
    session: OpenSession, draft: tuple[int, ...], q: tuple[SparseDistribution, ...]
) -> None:
    sent = wire_verify.verify_once_to_pb(session, draft, q).SerializeToString()
    request = verifier_pb2.VerifyOnceRequest.FromString(sent)
    assert wire_verify.verify_once_from_pb(request) == (session, draft, q)


@given(samplings)
def test_parameters_come_back_whole(params: SamplingParams) -> None:
    sent = wire_sampling.sampling_to_pb(params).SerializeToString()
    assert wire_sampling.sampling_from_pb(Sampling.FromString(sent)) == params


@given(verdicts)
def test_verdicts_come_back_whole(verdict: Verdict) -> None:
    sent = wire_verify.verdict_to_pb(verdict).SerializeToString()
    assert wire_verify.verdict_from_pb(verifier_pb2.Verdict.FromString(sent)) == verdict


@given(models)
def test_models_come_back_whole(info: ModelInfo) -> None:
    sent = wire_verify.model_to_pb(info).SerializeToString()
    assert wire_verify.model_from_pb(verifier_pb2.GetModelResponse.FromString(sent)) == info


def test_token_0_is_not_no_token() -> None:
    for token in (0, None):
        message = wire_verify.verdict_to_pb(Verdict(1, 2, token, 5))
        assert wire_verify.verdict_from_pb(message).next_token == token


ENUMS = [
    (RULES, AcceptanceRule),
    (FINISH_REASONS, FinishReason),
    (BRIDGES, BridgeMode),
    (ORIGINS, Origin),
]


@pytest.mark.parametrize(("enum", "members"), ENUMS)
def test_every_enum_member_comes_back_and_unspecified_is_none(enum: Any, members: Any) -> None:
    for member in members:
        assert enum.from_pb(enum.to_pb(member)) is member
    assert enum.from_pb(0) is None and enum.to_pb(None) == 0


@pytest.mark.parametrize(("enum", "members"), ENUMS)
def test_an_enum_value_of_a_newer_version_does_not_raise(enum: Any, members: Any) -> None:
    ended = enum is FINISH_REASONS  # whatever the reason is, the session has ended
    assert enum.from_pb(99) is (FinishReason.OTHER if ended else None)


def test_every_stage_of_a_round_is_on_the_wire() -> None:
    times = {stage: 1.5 + index for index, stage in enumerate(DRAFTER_STAGE)}
    assert wire_generate.stage_times_from_pb(wire_generate.stage_times_to_pb(times)) == times


def open_message(**changes) -> verifier_pb2.Open:
    fields = {"prompt_token_ids": [1], "max_new_tokens": 1, **changes}
    return verifier_pb2.Open(**fields)


def test_max_new_tokens_0_is_refused() -> None:
    with pytest.raises(InvalidField, match=r"open\.max_new_tokens is 0; it must be at least 1"):
        wire_verify.open_from_pb(open_message(max_new_tokens=0))


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InvalidField, match=r"open\.prompt_token_ids is empty"):
        wire_verify.open_from_pb(open_message(prompt_token_ids=[]))


def test_a_rule_of_a_newer_version_counts_as_none_named() -> None:
    assert wire_verify.open_from_pb(open_message(acceptance_rule=7)).rule is AcceptanceRule.GREEDY


@pytest.mark.parametrize(
    ("sampling", "rule"),
    [
        ({}, AcceptanceRule.GREEDY),
        ({"temperature": 0.0, "seed": 3}, AcceptanceRule.GREEDY),
        ({"temperature": 0.7}, AcceptanceRule.TARGET_ONLY),
        ({"temperature": 0.7, "seed": 0}, AcceptanceRule.COUPLED),
    ],
)
def test_a_session_that_names_no_rule_gets_the_one_that_fits(sampling, rule) -> None:
    read = wire_verify.open_from_pb(open_message(sampling=Sampling(**sampling)))
    assert read.rule is rule


@pytest.mark.parametrize(
    ("rule", "sampling", "limit"),
    [
        ("greedy", {"temperature": 0.5}, "target_only, rejection or coupled at temperature 0.5"),
        ("target_only", {}, "greedy at temperature 0"),
        ("rejection", {"temperature": 0.0}, "greedy at temperature 0"),
        ("coupled", {"seed": 3}, "greedy at temperature 0"),
        ("coupled", {"temperature": 1.0}, "target_only or rejection without a seed"),
    ],
)
def test_a_rule_that_the_parameters_do_not_allow_is_refused(rule, sampling, limit) -> None:
    number = RULES.to_pb(AcceptanceRule[rule.upper()])
    message = open_message(acceptance_rule=number, sampling=Sampling(**sampling))
    with pytest.raises(UnfitRule) as caught:
        wire_verify.open_from_pb(message)
    assert str(caught.value) == f"open.acceptance_rule is {rule}; it must be {limit}"


@pytest.mark.parametrize("resumed", [2, 2**32 - 1])
def test_more_resumed_output_than_the_prompt_holds_is_refused(resumed: int) -> None:
    message = open_message(prompt_token_ids=[1, 2], resumed_output_tokens=resumed)
    with pytest.raises(InvalidField, match=r"resumed_output_tokens is \d+; it must be less than"):
        wire_verify.open_from_pb(message)


def test_a_row_of_q_has_a_probability_for_each_id() -> None:
    distribution = SparseDistributionMessage(token_ids=[1, 2], probabilities=[1.0])
    message = verifier_pb2.Proposal(token_ids=[1], q=[distribution])
    with pytest.raises(InvalidField, match=r"proposal\.q\[0\]\.probabilities is 1 values long"):
        wire_verify.proposal_from_pb(message)


def test_a_request_without_content_is_refused() -> None:
    with pytest.raises(MissingMessage, match="neither open nor proposal"):
        wire_verify.verify_request_from_pb(verifier_pb2.VerifyRequest())
    with pytest.raises(MissingMessage, match="no open"):
        wire_verify.verify_once_from_pb(verifier_pb2.VerifyOnceRequest())


UNKNOWN = bytes([(100 << 3) & 0x7F | 0x80, (100 << 3) >> 7, 5])  # field 100, varint 5


@given(opens | proposals)
def test_fields_of_a_newer_version_are_ignored(content: OpenSession | Proposal) -> None:
    request = wire_verify.verify_request_to_pb(content)
    part = request.open if isinstance(content, OpenSession) else request.proposal
    part.MergeFromString(UNKNOWN)
    request.MergeFromString(UNKNOWN)
    assert wire_verify.verify_request_from_pb(request) == content


@pytest.mark.parametrize("name", sorted(wire.FEATURES))
def test_a_feature_that_there_is_may_be_required(name: str) -> None:
    wire_verify.open_from_pb(open_message(required_features=[name]))
    wire_verify.proposal_from_pb(verifier_pb2.Proposal(required_features=[name]))


def test_a_required_feature_that_is_unknown_is_refused_by_name() -> None:
    words = r"open\.required_features\[1\] is 'trees'; it must be one of chat_time, identity"
    with pytest.raises(UnknownFeature, match=words):
        wire_verify.open_from_pb(open_message(required_features=["logprobs", "trees"]))
    with pytest.raises(UnknownFeature, match=r"proposal\.required_features\[0\] is 'trees'"):
        wire_verify.proposal_from_pb(verifier_pb2.Proposal(required_features=["trees"]))
    with pytest.raises(InvalidField, match="is 33 names long; it must be at most 32"):
        wire.check_features("required_features", ["logprobs"] * 33)


@pytest.mark.parametrize("bad", [151_936, 2**31 - 1, 2**32 - 1, -1])
def test_an_id_outside_the_vocabulary_is_named(bad: int) -> None:
    wire.check_ids("proposal.token_ids", [0, 151_935], 151_936)
    with pytest.raises(InvalidField) as caught:
        wire.check_ids("proposal.token_ids", [5, bad], 151_936)
    assert str(caught.value) == f"proposal.token_ids[1] is {bad}; it must be in [0, 151936)"


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 1.5, 1e30])
def test_any_time_fits_its_field(seconds: float) -> None:
    """A peer's own numbers are in it; what a message can't hold would end the stream."""
    message = wire_generate.stage_times_to_pb(dict.fromkeys(DRAFTER_STAGE, seconds))
    assert message.draft_model_us == min(max(0, seconds * 1e6), 2**64 - 1)
