"""Inputs and outputs of the acceptance rules, shared by plain torch and Triton.

Rows are variable-length: session s owns logit rows [offsets[s], offsets[s + 1]), k + 1 of them. Row
j holds the logits after the base and j draft tokens, and determines the token at position
first_position + j. Knows shapes. Does not know how the rules are computed.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class AcceptanceOutput:
    """One result per session of a variable-length batch."""

    accepted_lengths: Tensor  # int64 [sessions], 0 <= a <= k
    next_tokens: (
        Tensor  # int64 [sessions]; kernels: NO_TOKEN where a row that counts has invalid logits
    )


@dataclass(frozen=True)
class SamplingBatch:
    """How each session's tokens are sampled. The filters of greedy sessions aren't read."""

    rule: Tensor  # int8 [sessions], of common.sampling.acceptance_rule.AcceptanceRule
    temperature: Tensor  # float32 [sessions], > 0
    top_k: Tensor  # int32 [sessions], >= 1; vocab or more: off
    top_p: Tensor  # float32 [sessions], 1: off
    min_p: Tensor  # float32 [sessions], 0: off
    seed: Tensor  # int64 [sessions], all 64 bits count
    first_position: (
        Tensor  # int64 [sessions], the position of the token that the session's row 0 gives
    )


@dataclass(frozen=True)
class LogitsProcessors:
    """Logits to change before temperature: row r owns entries [offsets[r], offsets[r + 1]).

    An id occurs at most once in a row. "So far" is before the row's token: the draft tokens that
    its logits have read count.
    """

    offsets: Tensor  # int64 [rows + 1]
    ids: Tensor  # int32 [entries]
    bias: Tensor  # float32 [entries], added first
    seen: Tensor  # bool [entries], in the prompt or the output so far
    count: Tensor  # int32 [entries], times in the output so far
    banned: Tensor  # bool [entries], can't come now
    repetition: Tensor  # float32 [sessions], 1: none
    presence: Tensor  # float32 [sessions], 0: none
    frequency: Tensor  # float32 [sessions], 0: none
