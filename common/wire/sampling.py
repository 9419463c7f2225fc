"""Messages of sampling.proto: parameters, sparse distributions and log-probabilities.

Knows their fields, and what such a message by itself can be refused for. Does not know which rule
fits (common/sampling/acceptance_rule.py), whether a distribution belongs to its
draft token, and the limits of a configuration.
"""

from __future__ import annotations

from collections.abc import Iterable

from common.errors import InvalidField
from common.pb import sampling_pb2
from common.sampling.parameters import MAX_BIASES, SamplingParams
from common.types import SparseDistribution, TokenLogprobs

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


def sampling_to_pb(params: SamplingParams) -> sampling_pb2.Sampling:
    """What isn't set stays absent."""
    return sampling_pb2.Sampling(
        **{name: getattr(params, name) for name in _OPTIONAL},  # None is absent
        logit_bias=dict(params.logit_bias),
        min_new_tokens=params.min_new_tokens,
    )


def sampling_from_pb(message: sampling_pb2.Sampling) -> SamplingParams:
    """Raises InvalidField, naming the parameter."""
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
) -> list[sampling_pb2.SparseDistribution]:
    return [
        sampling_pb2.SparseDistribution(token_ids=row.ids, probabilities=row.probabilities)
        for row in rows
    ]


def distributions_from_pb(
    distributions: Iterable[sampling_pb2.SparseDistribution], field: str
) -> tuple[SparseDistribution, ...]:
    rows = []
    for index, distribution in enumerate(distributions):
        ids, probabilities = tuple(distribution.token_ids), tuple(distribution.probabilities)
        if len(ids) != len(probabilities):
            raise InvalidField(
                f"{field}[{index}].probabilities",
                f"{len(probabilities)} values long",
                f"as long as its token_ids, which are {len(ids)}",
            )
        rows.append(SparseDistribution(ids, probabilities))
    return tuple(rows)


def logprobs_to_pb(logprobs: TokenLogprobs) -> sampling_pb2.TokenLogprobs:
    return sampling_pb2.TokenLogprobs(
        logprob=logprobs.logprob,
        top_token_ids=logprobs.top_ids,
        top_logprobs=logprobs.top_logprobs,
    )


def logprobs_from_pb(message: sampling_pb2.TokenLogprobs) -> TokenLogprobs:
    return TokenLogprobs(message.logprob, tuple(message.top_token_ids), tuple(message.top_logprobs))
