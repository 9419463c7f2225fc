"""Between drafter and verifier: our values and the messages of verifier.proto, both ways.

Knows every field, and what a message by itself can be refused for (content missing, features that
this version lacks, counts below their minimum). Does not know sessions, models, and limits that a
configuration sets.
"""

from __future__ import annotations

from collections.abc import Sequence

from common.errors import InvalidField, MissingMessage
from common.pb import verifier_pb2
from common.sampling.acceptance_rule import check_rule, default_rule
from common.types import (
    IDENTITY_PARTS,
    ModelInfo,
    OpenSession,
    Proposal,
    RoundCost,
    SparseDistribution,
    Verdict,
)
from common.wire.checks import check_features
from common.wire.enums import FINISH_REASONS, RULES
from common.wire.identity import (
    identity_from_pb,
    identity_to_pb,
    limits_from_pb,
    limits_to_pb,
)
from common.wire.sampling import (
    distributions_from_pb,
    distributions_to_pb,
    logprobs_from_pb,
    logprobs_to_pb,
    sampling_from_pb,
    sampling_to_pb,
)

_SHOWN = 40  # characters of a name that isn't one

# From drafter to verifier.


def open_to_pb(session: OpenSession) -> verifier_pb2.Open:
    return verifier_pb2.Open(
        prompt_token_ids=session.prompt,
        max_new_tokens=session.max_new_tokens,
        stop_token_ids=sorted(session.stop_ids),
        tokenizer_sha256=session.tokenizer_sha256,
        acceptance_rule=RULES.to_pb(session.rule),
        ignore_eos=session.ignore_eos,
        sampling=sampling_to_pb(session.sampling),
        resumed_output_tokens=session.resumed_output_tokens,
        identity=identity_to_pb(session.identity) if session.identity is not None else None,
        resume_on=sorted(session.resume_on),
        # One that ignored it would go on in another model's words.
        required_features=["identity"] if session.identity is not None else [],
    )


def open_from_pb(message: verifier_pb2.Open) -> OpenSession:
    check_features("open.required_features", message.required_features)
    if not message.prompt_token_ids:
        raise InvalidField("open.prompt_token_ids", "empty", "at least one id")
    if message.max_new_tokens < 1:
        raise InvalidField("open.max_new_tokens", message.max_new_tokens, "at least 1")
    resumed, length = message.resumed_output_tokens, len(message.prompt_token_ids)
    if resumed >= length:
        raise InvalidField(
            "open.resumed_output_tokens", resumed, f"less than the prompt's {length}"
        )
    sampling = sampling_from_pb(message.sampling)
    rule = RULES.from_pb(message.acceptance_rule) or default_rule(sampling)
    check_rule("open.acceptance_rule", rule, sampling)
    if len(message.resume_on) > len(IDENTITY_PARTS):
        limit = f"at most {len(IDENTITY_PARTS)}"
        raise InvalidField("open.resume_on", f"{len(message.resume_on)} names long", limit)
    for index, part in enumerate(message.resume_on):
        if part not in IDENTITY_PARTS:
            names = f"one of {', '.join(IDENTITY_PARTS)}"
            raise InvalidField(f"open.resume_on[{index}]", repr(part[:_SHOWN]), names)
    return OpenSession(
        prompt=tuple(message.prompt_token_ids),
        max_new_tokens=message.max_new_tokens,
        tokenizer_sha256=message.tokenizer_sha256,
        stop_ids=frozenset(message.stop_token_ids),
        rule=rule,
        ignore_eos=message.ignore_eos,
        sampling=sampling,
        resumed_output_tokens=resumed,
        identity=identity_from_pb(message.identity) if message.HasField("identity") else None,
        resume_on=frozenset(message.resume_on),
    )


def proposal_to_pb(proposal: Proposal) -> verifier_pb2.Proposal:
    return verifier_pb2.Proposal(
        round=proposal.round,
        base_length=proposal.base_length,
        token_ids=proposal.token_ids,
        q=distributions_to_pb(proposal.q),
    )


def proposal_from_pb(message: verifier_pb2.Proposal) -> Proposal:
    check_features("proposal.required_features", message.required_features)
    q = distributions_from_pb(message.q, "proposal.q")
    return Proposal(message.round, message.base_length, tuple(message.token_ids), q)


def verify_request_to_pb(content: OpenSession | Proposal) -> verifier_pb2.VerifyRequest:
    if isinstance(content, OpenSession):
        return verifier_pb2.VerifyRequest(open=open_to_pb(content))
    return verifier_pb2.VerifyRequest(proposal=proposal_to_pb(content))


def verify_request_from_pb(request: verifier_pb2.VerifyRequest) -> OpenSession | Proposal:
    kind = request.WhichOneof("message")
    if kind == "open":
        return open_from_pb(request.open)
    if kind == "proposal":
        return proposal_from_pb(request.proposal)
    raise MissingMessage("the request holds neither open nor proposal")


def verify_once_to_pb(
    session: OpenSession, draft_ids: Sequence[int], q: Sequence[SparseDistribution] = ()
) -> verifier_pb2.VerifyOnceRequest:
    return verifier_pb2.VerifyOnceRequest(
        open=open_to_pb(session), draft_token_ids=draft_ids, q=distributions_to_pb(q)
    )


def verify_once_from_pb(
    request: verifier_pb2.VerifyOnceRequest,
) -> tuple[OpenSession, tuple[int, ...], tuple[SparseDistribution, ...]]:
    if not request.HasField("open"):
        raise MissingMessage("the request holds no open")
    session = open_from_pb(request.open)
    return session, tuple(request.draft_token_ids), distributions_from_pb(request.q, "q")


# From verifier to drafter.


def cost_to_pb(cost: RoundCost) -> verifier_pb2.RoundCost:
    return verifier_pb2.RoundCost(
        queue_us=cost.queue_us,
        forward_us=cost.forward_us,
        accept_us=cost.accept_us,
        batch_sessions=cost.batch_sessions,
        batch_rows=cost.batch_rows,
    )


def cost_from_pb(message: verifier_pb2.RoundCost) -> RoundCost:
    return RoundCost(
        queue_us=message.queue_us,
        forward_us=message.forward_us,
        accept_us=message.accept_us,
        batch_sessions=message.batch_sessions,
        batch_rows=message.batch_rows,
    )


def verdict_to_pb(verdict: Verdict) -> verifier_pb2.Verdict:
    return verifier_pb2.Verdict(
        round=verdict.round,
        accepted_length=verdict.accepted_length,
        next_token_id=verdict.next_token,
        committed_length=verdict.committed_length,
        finish_reason=FINISH_REASONS.to_pb(verdict.finish_reason),
        cost=cost_to_pb(verdict.cost),
        logprobs=[logprobs_to_pb(each) for each in verdict.logprobs],
        identity=identity_to_pb(verdict.identity) if verdict.identity is not None else None,
        limits=limits_to_pb(verdict.limits) if verdict.limits is not None else None,
    )


def verdict_from_pb(message: verifier_pb2.Verdict) -> Verdict:
    return Verdict(
        round=message.round,
        accepted_length=message.accepted_length,
        next_token=message.next_token_id if message.HasField("next_token_id") else None,
        committed_length=message.committed_length,
        finish_reason=FINISH_REASONS.from_pb(message.finish_reason),
        cost=cost_from_pb(message.cost),
        logprobs=tuple(logprobs_from_pb(each) for each in message.logprobs),
        identity=identity_from_pb(message.identity) if message.HasField("identity") else None,
        limits=limits_from_pb(message.limits) if message.HasField("limits") else None,
    )


def model_to_pb(info: ModelInfo) -> verifier_pb2.GetModelResponse:
    return verifier_pb2.GetModelResponse(
        model=info.model,
        tokenizer_sha256=info.tokenizer_sha256,
        vocab_size=info.vocab_size,
        eos_token_ids=sorted(info.eos_ids),
        max_context_length=info.max_context_length,
        max_draft_tokens=info.max_draft_tokens,
        max_q_entries=info.max_q_entries,
        max_sessions=info.max_sessions,
        max_message_bytes=info.max_message_bytes,
        row_invariant=info.row_invariant,
        version=info.version,
        device=info.device,
        dtype=info.dtype,
        features=sorted(info.features),
        identity=identity_to_pb(info.identity) if info.identity is not None else None,
    )


def model_from_pb(message: verifier_pb2.GetModelResponse) -> ModelInfo:
    return ModelInfo(
        model=message.model,
        tokenizer_sha256=message.tokenizer_sha256,
        vocab_size=message.vocab_size,
        eos_ids=frozenset(message.eos_token_ids),
        max_context_length=message.max_context_length,
        max_draft_tokens=message.max_draft_tokens,
        max_q_entries=message.max_q_entries,
        max_sessions=message.max_sessions,
        max_message_bytes=message.max_message_bytes,
        row_invariant=message.row_invariant,
        version=message.version,
        device=message.device,
        dtype=message.dtype,
        features=frozenset(message.features),
        identity=identity_from_pb(message.identity) if message.HasField("identity") else None,
    )
