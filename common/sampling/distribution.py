"""From logits to the distribution p, as transformers' processors and warpers do it, and samples.

    bias, repetition, presence and frequency, banned ids | temperature, top-k, top-p, min-p, softmax

Filters keep or drop by *value*, never by a sort's order, so that equal logits share their fate.
Every row is computed alone: its bits don't depend on the rows beside it. Plain torch, pure
functions; inputs are never written. Does not know sessions and rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from common.sampling.parameters import SamplingParams
from common.sampling.rng import Purpose, exponential

NEVER = float("-inf")
LIKELIEST = (
    1024  # as many logits are sorted first where top-p asks for a sort; few distributions need more
)


@dataclass(frozen=True)
class SparseDistributions:
    """q as tensors: one sparse distribution per row (common/types.py has the single one).

    A row's ids with a probability are distinct. Unused slots have probability 0 and any id that
    exists. The probabilities of a row sum to one as nearly as float32 can, or are all 0 where no id
    is allowed.
    """

    ids: Tensor  # integer [rows, slots]
    probs: Tensor  # float32 [rows, slots]


def processed(
    values: Tensor,  # float32 [n], logits of single (row, id) entries
    bias: Tensor,  # float32 [n], added first
    seen: Tensor,  # bool [n], the id is in the prompt or the output so far
    count: Tensor,  # int [n], how often it is in the output so far
    banned: Tensor,  # bool [n], it can't come now (an end before min_new_tokens)
    repetition: Tensor,  # float32 [n], 1: none
    presence: Tensor,  # float32 [n], 0: none
    frequency: Tensor,  # float32 [n], 0: none
) -> Tensor:  # float32 [n]
    """The entries' logits under logit bias, the repetition penalty of CTRL (Keskar et al., 2019,
    arXiv:1909.05858; on either side of 0, as transformers has it) and OpenAI's two penalties."""
    values = values + bias
    repeated = torch.where(values > 0, values / repetition, values * repetition)
    values = torch.where(seen, repeated, values)
    values = values - presence * (count > 0) - frequency * count
    return values.masked_fill(banned, NEVER)


def filters(params: Sequence[SamplingParams], vocab: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """temperature, top_k, top_p and min_p, [rows] each, as `probabilities` takes them.

    What isn't set becomes the value that switches its step off.
    """
    return (
        torch.tensor([each.temperature or 1.0 for each in params], dtype=torch.float32),
        torch.tensor([min(each.top_k or vocab, vocab) for each in params], dtype=torch.int32),
        torch.tensor(
            [1.0 if each.top_p is None else each.top_p for each in params], dtype=torch.float32
        ),
        torch.tensor([each.min_p or 0.0 for each in params], dtype=torch.float32),
    )


def probabilities(
    logits: Tensor,  # float32 [rows, vocab], processed; -inf where an id can't be
    temperature: Tensor,  # float32 [rows], > 0
    top_k: Tensor,  # int [rows], >= 1; vocab or more: off
    top_p: Tensor,  # float32 [rows], 1: off
    min_p: Tensor,  # float32 [rows], 0: off
) -> Tensor:  # float32 [rows, vocab]
    """The distribution of each row. Its sum is 1 up to rounding; at least one id of each row stays.

    top_k keeps x if fewer than k values are greater. top_p, over what is left, keeps x if the
    greater values' mass is less than p, and the maximum always. min_p, over what is left then,
    keeps x if its probability is at least min_p times the maximum's.
    """
    scores = logits / temperature[:, None]  # [rows, vocab], ours to write
    _drop_below(scores, *_minimum_of_top_k(scores, top_k))
    _drop_below(scores, *_minimum_of_top_p(scores, top_p))
    _drop_below(scores, *_minimum_of_min_p(scores, min_p))
    return scores.softmax(dim=-1)


def sample(
    weights: Tensor,  # float32 [rows, columns], >= 0, some of each row well above 0
    seed: Tensor,  # int64 [rows]
    position: Tensor,  # int64 [rows]
    purpose: Purpose,
    ids: Tensor | None = None,  # int64 [columns] or [rows, columns]: token ids; None: 0, 1, ...
) -> Tensor:  # int64 [rows]
    """One column per row by Gumbel-max, with probability proportional to its weight.

    argmin e / weight, with the exponentials of the columns' token ids; ties to the lowest column.
    """
    if not len(weights):
        return torch.empty(0, dtype=torch.int64, device=weights.device)
    width = weights.shape[-1]
    if ids is None:
        ids = torch.arange(width, device=weights.device)
    possible = weights.amax(dim=0) > 0  # the others are never sampled
    if 2 * int(possible.sum()) > width:  # picking columns out costs more than their numbers
        return _minimum(exponential(seed, position, ids, purpose).div_(weights))
    columns = possible.nonzero().squeeze(1)
    noise = exponential(seed, position, ids[..., columns], purpose)
    return columns[_minimum(noise.div_(weights.index_select(1, columns)))]


def _minimum(values: Tensor) -> Tensor:
    """int64 [rows]: where each row's first minimum is. A third of argmin's time on a CPU."""
    return values.min(dim=-1).indices


def _drop_below(scores: Tensor, rows: Tensor, minimum: Tensor) -> None:
    """In place: values of `rows` (int64 [n]) below `minimum` (float32 [n]) can't come."""
    if len(rows):
        some = _rows(scores, rows)
        some.masked_fill_(some < minimum[:, None], NEVER)
        if some is not scores:
            scores.index_copy_(0, rows, some)


def _rows(scores: Tensor, rows: Tensor) -> Tensor:
    """A copy of `rows` (int64, ascending), or `scores` itself if that is what they are."""
    return scores if len(rows) == len(scores) else scores.index_select(0, rows)


def _minimum_of_top_k(scores: Tensor, top_k: Tensor) -> tuple[Tensor, Tensor]:
    """Which rows top-k concerns, and the least value it keeps there."""
    rows = (top_k < scores.shape[-1]).nonzero().squeeze(1)
    if not len(rows):
        return rows, scores.new_empty(0)
    kept = top_k[rows].to(torch.int64)
    largest = _rows(scores, rows).topk(int(kept.max()), dim=-1).values  # [rows, k], descending
    return rows, largest.gather(1, kept[:, None] - 1).squeeze(1)


def _minimum_of_top_p(scores: Tensor, top_p: Tensor) -> tuple[Tensor, Tensor]:
    """Which rows top-p concerns (Holtzman et al., 2020, arXiv:1904.09751), and what it keeps."""
    rows = (top_p < 1).nonzero().squeeze(1)
    minimum = scores.new_empty(len(rows))
    vocab = scores.shape[-1]
    open_ = torch.arange(len(rows), device=rows.device)  # places in `rows` without an answer yet
    width = LIKELIEST
    while len(open_):
        width = min(width, vocab)
        some = _rows(scores, rows[open_])
        largest, ids = some.topk(width, dim=-1)  # [open, width], descending
        # Each value's mass comes from the whole row's softmax, so it is the same at any width.
        mass = some.softmax(dim=-1).gather(1, ids).cumsum(dim=-1)
        # A value goes if those before it have the mass already; equal ones before it have kept it.
        last = (mass < top_p[rows[open_], None]).sum(dim=-1)  # [open], place of the last one kept
        found = (last < width) | (width == vocab)
        last = last.clamp(max=width - 1)
        minimum[open_[found]] = largest.gather(1, last[:, None]).squeeze(1)[found]
        open_ = open_[~found]
        width *= 16
    return rows, minimum


def _minimum_of_min_p(scores: Tensor, min_p: Tensor) -> tuple[Tensor, Tensor]:
    """Which rows min-p concerns, and the least value it keeps there."""
    rows = (min_p > 0).nonzero().squeeze(1)
    if not len(rows):
        return rows, scores.new_empty(0)
    some = _rows(scores, rows)
    top = some.amax(dim=-1, keepdim=True)
    # Probabilities relative to the maximum's: the normaliser cancels.
    kept = (some - top).exp() >= min_p[rows, None]
    return rows, some.masked_fill(~kept, float("inf")).amin(dim=-1)
