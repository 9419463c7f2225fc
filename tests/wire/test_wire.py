"""Values and messages: there and back, and what a message is refused for."""

from __future__ import annotations

import pytest
from hypothesis import given

from common.errors import InvalidField, MissingMessage, UnfitRule
from common.pb import drafter_pb2, verifier_pb2
from common.sampling.parameters import SamplingParams
from common.sampling.rules import AcceptanceRule
from common.types import (
    BridgeMode,
    FinishReason,
    ModelInfo,
    OpenSession,
    Origin,
    Proposal,
    RoundCost,
    SparseDistribution,
    Verdict,
)
from common.wire import checks as wire
from common.wire import generate as wire_generate
from common.wire import sampling as wire_sampling
from common.wire import verify as wire_verify
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
def test_parameters_come_back_whole_from_either_service(params: SamplingParams) -> None:
    for kind in (verifier_pb2.Open.Sampling, drafter_pb2.GenerateRequest.Sampling):
        sent = wire_sampling.sampling_to_pb(params, kind()).SerializeToString()
        assert wire_sampling.sampling_from_pb(kind.FromString(sent)) == params


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


def test_every_enum_member_comes_back() -> None:
    for rule in AcceptanceRule:
        assert wire_verify.rule_from_pb(wire_verify.rule_to_pb(rule)) is rule
    for reason in FinishReason:
        assert wire_verify.finish_from_pb(wire_verify.finish_to_pb(reason)) is reason
        assert wire_generate.stop_reason_from_pb(wire_generate.stop_reason_to_pb(reason)) is reason
    for mode in BridgeMode:
        assert wire_generate.bridge_from_pb(wire_generate.bridge_to_pb(mode)) is mode
    for origin in Origin:
        assert wire_generate.origin_from_pb(wire_generate.origin_to_pb(origin)) is origin


def test_unspecified_is_a_value_only_where_it_means_something() -> None:
    assert wire_verify.rule_from_pb(0) is None
    assert wire_verify.finish_from_pb(0) is None
    assert wire_generate.stop_reason_from_pb(0) is None
    assert wire_generate.bridge_from_pb(0) is None
    with pytest.raises(InvalidField, match=r"piece\.origin is 0"):
        wire_generate.origin_from_pb(0)


@pytest.mark.parametrize(
    "read",
    [
        wire_verify.rule_from_pb,
        wire_verify.finish_from_pb,
        wire_generate.stop_reason_from_pb,
        wire_generate.bridge_from_pb,
        wire_generate.origin_from_pb,
    ],
)
def test_an_enum_value_of_another_version_is_refused(read) -> None:
    with pytest.raises(InvalidField, match="is 99; it must be one of"):
        read(99)


def open_message(**changes) -> verifier_pb2.Open:
    fields = {"prompt_token_ids": [1], "max_new_tokens": 1, **changes}
    return verifier_pb2.Open(**fields)


def test_max_new_tokens_0_is_refused() -> None:
    with pytest.raises(InvalidField, match=r"open\.max_new_tokens is 0; it must be at least 1"):
        wire_verify.open_from_pb(open_message(max_new_tokens=0))


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InvalidField, match=r"open\.prompt_token_ids is empty"):
        wire_verify.open_from_pb(open_message(prompt_token_ids=[]))


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(InvalidField, match=r"open\.acceptance_rule is 7"):
        wire_verify.open_from_pb(open_message(acceptance_rule=7))


Sampling = verifier_pb2.Open.Sampling


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
    number = wire_verify.rule_to_pb(AcceptanceRule(rule))
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
    distribution = verifier_pb2.SparseDistribution(token_ids=[1, 2], probabilities=[1.0])
    message = verifier_pb2.Proposal(token_ids=[1], q=[distribution])
    with pytest.raises(InvalidField, match=r"proposal\.q\[0\]\.probabilities is 1 values long"):
        wire_verify.proposal_from_pb(message)


def test_a_request_without_content_is_refused() -> None:
    with pytest.raises(MissingMessage, match="neither open nor proposal"):
        wire_verify.verify_request_from_pb(verifier_pb2.VerifyRequest())
    with pytest.raises(MissingMessage, match="no open"):
        wire_verify.verify_once_from_pb(verifier_pb2.VerifyOnceRequest())


UNKNOWN = bytes([(100 << 3) & 0x7F | 0x80, (100 << 3) >> 7, 5])  # field 100, varint 5


def test_unknown_fields_are_refused_at_every_level() -> None:
    plain = open_message().SerializeToString()
    opened = verifier_pb2.VerifyRequest(open=verifier_pb2.Open.FromString(plain + UNKNOWN))
    with pytest.raises(MissingMessage, match="open carries field 100"):
        wire_verify.verify_request_from_pb(opened)
    proposal = verifier_pb2.Proposal.FromString(UNKNOWN)
    with pytest.raises(MissingMessage, match="proposal carries field 100"):
        wire_verify.verify_request_from_pb(verifier_pb2.VerifyRequest(proposal=proposal))
    sampled = verifier_pb2.Open(prompt_token_ids=[1], max_new_tokens=1)
    sampled.sampling.MergeFromString(UNKNOWN)
    with pytest.raises(MissingMessage, match="sampling carries field 100"):
        wire_verify.open_from_pb(sampled)
    distribution = verifier_pb2.SparseDistribution.FromString(UNKNOWN)
    with pytest.raises(MissingMessage, match=r"proposal\.q\[0\] carries field 100"):
        wire_verify.proposal_from_pb(verifier_pb2.Proposal(q=[distribution]))
    with pytest.raises(MissingMessage, match="request carries field 100"):
        wire_verify.verify_request_from_pb(verifier_pb2.VerifyRequest.FromString(UNKNOWN))


@pytest.mark.parametrize("bad", [151_936, 2**31 - 1, 2**32 - 1, -1])
def test_an_id_outside_the_vocabulary_is_named(bad: int) -> None:
    wire.check_ids("proposal.token_ids", [0, 151_935], 151_936)
    with pytest.raises(InvalidField) as caught:
        wire.check_ids("proposal.token_ids", [5, bad], 151_936)
    assert str(caught.value) == f"proposal.token_ids[1] is {bad}; it must be in [0, 151936)"


def test_times_saturate() -> None:
    cost = RoundCost(queue_us=2**40)
    assert wire_verify.cost_from_pb(wire_verify.cost_to_pb(cost)).queue_us == wire_verify.UINT32_MAX
