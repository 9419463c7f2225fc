"""Strategies for every value that crosses the wire between drafter and verifier."""

from __future__ import annotations

from hypothesis import strategies as st

from common.sampling.acceptance_rule import AcceptanceRule
from common.sampling.parameters import MAX_ID, MAX_SEED, SamplingParams
from common.types import (
    IDENTITY_PARTS,
    FinishReason,
    ModelIdentity,
    ModelInfo,
    OpenSession,
    Proposal,
    RoundCost,
    SessionLimits,
    SparseDistribution,
    TokenLogprobs,
    Verdict,
)

UINT32_MAX = 2**32 - 1
uint32 = st.integers(0, UINT32_MAX)
uint64 = st.integers(0, 2**64 - 1)
ids = st.lists(uint32, max_size=20).map(tuple)
float32 = st.floats(width=32, allow_nan=False)
fractions = st.floats(0, 1)
penalties = st.floats(-2, 2)
biases = st.dictionaries(st.integers(0, MAX_ID), st.floats(-100, 100), max_size=5)
samplings = st.builds(
    SamplingParams,
    temperature=st.none() | st.just(0.0) | st.floats(1e-6, 100),
    top_k=st.none() | st.integers(1, MAX_ID),
    top_p=st.none() | fractions,
    min_p=st.none() | fractions,
    seed=st.none() | st.integers(0, MAX_SEED),
    repetition_penalty=st.none() | st.floats(0.01, 100),
    presence_penalty=st.none() | penalties,
    frequency_penalty=st.none() | penalties,
    logit_bias=biases.map(lambda each: tuple(sorted(each.items()))),
    min_new_tokens=st.integers(0, MAX_ID),
    logprobs=st.none() | st.integers(0, 20),
)


def distributions(size: int) -> st.SearchStrategy[SparseDistribution]:
    """Rows of so many entries, of any values: the wire doesn't check them."""
    row, values = (
        st.lists(uint32, min_size=size, max_size=size),
        st.lists(float32, min_size=size, max_size=size),
    )
    return st.builds(SparseDistribution, row.map(tuple), values.map(tuple))


q_rows = st.lists(st.integers(0, 3).flatmap(distributions), max_size=3).map(tuple)
logprobs = st.lists(
    st.builds(TokenLogprobs, float32, ids, st.lists(float32, max_size=5).map(tuple)), max_size=3
).map(tuple)
costs = st.builds(RoundCost, uint64, uint64, uint64, uint32, uint32)


def fitting_rules(sampling: SamplingParams) -> st.SearchStrategy[AcceptanceRule]:
    if sampling.greedy:
        return st.just(AcceptanceRule.GREEDY)
    rules = [AcceptanceRule.TARGET_ONLY, AcceptanceRule.REJECTION]
    return st.sampled_from(rules if sampling.seed is None else [*rules, AcceptanceRule.COUPLED])


identities = st.builds(ModelIdentity, *[st.text(max_size=9)] * 4)


@st.composite
def open_sessions(sample: st.DrawFn) -> OpenSession:
    prompt = tuple(sample(st.lists(uint32, min_size=1, max_size=20)))
    sampling = sample(samplings)
    return OpenSession(
        prompt=prompt,
        max_new_tokens=sample(st.integers(1, UINT32_MAX)),
        tokenizer_sha256=sample(st.text("0123456789abcdef", max_size=64)),
        stop_ids=sample(st.frozensets(uint32, max_size=5)),
        rule=sample(fitting_rules(sampling)),
        ignore_eos=sample(st.booleans()),
        sampling=sampling,
        resumed_output_tokens=sample(st.integers(0, len(prompt) - 1)),
        identity=sample(st.none() | identities),
        resume_on=sample(st.frozensets(st.sampled_from(IDENTITY_PARTS))),
    )


session_limits = st.builds(SessionLimits, uint32, uint32, uint32)
opens = open_sessions()
proposals = st.builds(Proposal, uint32, uint32, ids, q_rows)
verdicts = st.builds(
    Verdict,
    round=uint32,
    accepted_length=uint32,
    next_token=st.none() | uint32,
    committed_length=uint32,
    finish_reason=st.none() | st.sampled_from(FinishReason),
    cost=costs,
    logprobs=logprobs,
    identity=st.none() | identities,
    limits=st.none() | session_limits,
)
models = st.builds(
    ModelInfo,
    model=st.text(max_size=20),
    tokenizer_sha256=st.text("0123456789abcdef", max_size=64),
    vocab_size=uint32,
    eos_ids=st.frozensets(uint32, max_size=5),
    max_context_length=uint32,
    max_draft_tokens=uint32,
    max_q_entries=uint32,
    max_sessions=uint32,
    max_message_bytes=uint32,
    row_invariant=st.booleans(),
    version=st.text(max_size=20),
    features=st.frozensets(st.text(max_size=9), max_size=3),
    identity=st.none() | identities,
)
