"""What a decision is made of, for the plain-torch twin and the kernels alike. No arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

GREEDY, NO_Q, REJECTION, COUPLED = 0, 1, 2, 3  # SamplingBatch.rule


@dataclass(frozen=True)
class SamplingBatch:
    """How each session's tokens are accepted and drawn."""

    rule: Tensor  # int8 [sessions]
    temperature: Tensor  # float32 [sessions]; 0 decides as the greedy rule does
    top_k: Tensor  # int32 [sessions]; vocab = off
    top_p: Tensor  # float32 [sessions]; 1 = off
    min_p: Tensor  # float32 [sessions]; 0 = off
    seed: Tensor  # int64 [sessions], all 64 bits
    first_position: Tensor  # int64 [sessions], the position that a session's row 0 decides


@dataclass(frozen=True)
class SparseQ:
    """The law that each draft token was sampled from; rows of other rules hold zeros."""

    ids: Tensor  # int32 [rows, n]
    probs: Tensor  # float32 [rows, n]; 0 in unused slots


@dataclass(frozen=True)
class Adjustments:
    """Ids whose logits change before anything else, by row; an id stands once in a row at most."""

    offsets: Tensor  # int64 [rows + 1]
    ids: Tensor  # int32 [n]
    bias: Tensor  # float32 [n], added first
    seen: Tensor  # bool [n], in the prompt or the output: the repetition penalty applies
    count: Tensor  # int32 [n], how often in the output
    banned: Tensor  # bool [n], not to be chosen yet
    repetition: Tensor  # float32 [sessions]
    presence: Tensor  # float32 [sessions]
    frequency: Tensor  # float32 [sessions]
