"""What sampling adds to the seams: parameters, sparse distributions and log-probabilities <-> messages.

Knows: the fields of `Sampling`, which are the same in Open and in GenerateRequest, and what such a
message by itself can be refused for. Refuses to know: which rule fits (common/types.py), whether a
distribution belongs to its draft token, and the limits of a configuration.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from common.errors import InvalidField
from common.pb import verifier_pb2
from common.sampling.parameters import MAX_BIASES, SamplingParams
from common.types import SparseDistribution, TokenLogprobs
from common.wire.checks import refuse_unknown_fields

S = TypeVar("S", bound=Any)  # Open.Sampling or GenerateRequest.Sampling

_OPTIONAL = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logprobs",
)


def sampling_to_pb(params: SamplingParams, empty: S) -> S:
    """Fill `empty`, a Sampling of either service; what isn't set stays absent."""
    for name in _OPTIONAL:
        value = getattr(params, name)
        if value is not None:
            setattr(empty, name, value)
    empty.logit_bias.update(dict(params.logit_bias))
    empty.min_new_tokens = params.min_new_tokens
    return empty


def sampling_from_pb(message: Any, name: str = "sampling") -> SamplingParams:
    """Of either service's Sampling. Raises InvalidField, naming the parameter."""
    refuse_unknown_fields(name, message)
    if len(message.logit_bias) > MAX_BIASES:
        count = f"{len(message.logit_bias)} entries long"
        raise InvalidField("sampling.logit_bias", count, f"at most {MAX_BIASES}")
    given = {name: getattr(message, name) for name in _OPTIONAL if message.HasField(name)}
    return SamplingParams(
        **given,
        logit_bias=tuple(sorted(message.logit_bias.items())),
        min_new_tokens=message.min_new_tokens,
    )


def distributions_to_pb(
    rows: Iterable[SparseDistribution],
) -> list[verifier_pb2.SparseDistribution]:
    return [
        verifier_pb2.SparseDistribution(token_ids=row.ids, probabilities=row.probabilities)
        for row in rows
    ]


def distributions_from_pb(
    distributions: Iterable[verifier_pb2.SparseDistribution], field: str
) -> tuple[SparseDistribution, ...]:
    rows = []
    for index, distribution in enumerate(distributions):
        refuse_unknown_fields(f"{field}[{index}]", distribution)
        ids, probabilities = tuple(distribution.token_ids), tuple(distribution.probabilities)
        if len(ids) != len(probabilities):
            raise InvalidField(
                f"{field}[{index}].probabilities",
                f"{len(probabilities)} values long",
                f"as long as its token_ids, which are {len(ids)}",
            )
        rows.append(SparseDistribution(ids, probabilities))
    return tuple(rows)


def logprobs_to_pb(logprobs: Iterable[TokenLogprobs]) -> list[verifier_pb2.TokenLogprobs]:
    return [
        verifier_pb2.TokenLogprobs(
            logprob=each.logprob, top_token_ids=each.top_ids, top_logprobs=each.top_logprobs
        )
        for each in logprobs
    ]


def logprobs_from_pb(
    messages: Iterable[verifier_pb2.TokenLogprobs],
) -> tuple[TokenLogprobs, ...]:
    return tuple(
        TokenLogprobs(each.logprob, tuple(each.top_token_ids), tuple(each.top_logprobs))
        for each in messages
    )
