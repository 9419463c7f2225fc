"""How the draft tokens of one batched step are chosen from draft logits.

Pure functions, each row on its own. Does not know sessions, and which rule sampling how
(drafter/engine/sampling.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from common.sampling.distribution import SparseDistributions, filters
from common.sampling.parameters import SamplingParams
from common.sampling.rng import Purpose, seed_word
from common.types import SparseDistribution
from drafter.engine.distribution import draft_distribution, propose


class Sampled(NamedTuple):
    """A draft token, and its distribution where the distribution goes along."""

    token: int
    distribution: SparseDistribution | None  # over draft ids, all with a probability


@dataclass(frozen=True)
class DraftSamplingParams:
    """How the tokens of one draft are sampled."""

    params: SamplingParams
    purpose: Purpose  # PROPOSE or COUPLED
    seed: int
    position: int  # of the first draft token, in the target's sequence
    slots: int  # ids of the distribution that is sampled from
    noise_ids: Tensor  # int64 [draft vocab]: the token id whose noise a draft id has
    first_noise_ids: Tensor  # instead, in the first step
    ahead: bool = True  # whether more may be sampled before the verdict on these


def choose(
    scores: Tensor,  # [rows, draft vocab], processed logits
    allowed: Sequence[Tensor],  # per row: bool [draft vocab], the ids it may choose
    sampling: Sequence[DraftSamplingParams | None],  # per row; None: the likeliest
    steps: Sequence[int],  # per row: how many tokens of its draft were chosen before
) -> list[Sampled | None]:
    """One draft token per row; None where nothing may come."""
    likeliest = [row for row, how in enumerate(sampling) if how is None]
    if len(likeliest) == len(sampling):
        return [Sampled(token, None) for token in likeliest_allowed(scores, allowed).tolist()]
    chosen: list[Sampled | None] = [None] * len(sampling)
    if likeliest:
        tokens = likeliest_allowed(scores[likeliest], [allowed[row] for row in likeliest]).tolist()
        for row, token in zip(likeliest, tokens, strict=True):
            chosen[row] = Sampled(token, None)
    sampling_rows = [(row, how) for row, how in enumerate(sampling) if how is not None]
    rows = [row for row, _ in sampling_rows]
    sampled = sample_rows(
        scores[rows],
        [allowed[row] for row in rows],
        [how for _, how in sampling_rows],
        [steps[row] for row in rows],
    )
    for row, found in zip(rows, sampled, strict=True):
        chosen[row] = found
    return chosen


def sample_rows(
    logits: Tensor,  # [rows, draft vocab], processed
    allowed: Sequence[Tensor],  # per row: bool [draft vocab], the ids it may choose
    sampling: Sequence[DraftSamplingParams],  # per row
    steps: Sequence[int],  # per row: how many tokens of its draft were sampled before
) -> list[Sampled | None]:
    """One draft token per row; None where nothing may come."""
    chosen: list[Sampled | None] = [None] * len(sampling)
    for kind in {(each.purpose, each.slots): None for each in sampling}:
        rows = [row for row, each in enumerate(sampling) if (each.purpose, each.slots) == kind]
        own = [sampling[row] for row in rows]
        params = [each.params for each in own]
        distribution = draft_distribution(
            logits if len(rows) == len(sampling) else logits[rows],
            torch.stack([allowed[row] for row in rows]),
            *filters(params, logits.shape[-1]),
            slots=own[0].slots,
        )
        sampled = _sample(distribution, own, [steps[row] for row in rows])
        for row, found in zip(rows, sampled, strict=True):
            chosen[row] = found
    return chosen


def _sample(
    distribution: SparseDistributions,
    sampling: Sequence[DraftSamplingParams],  # per row, of one purpose and number of slots
    steps: Sequence[int],  # per row
) -> list[Sampled | None]:
    sampled: list[Sampled | None] = [None] * len(sampling)
    used = (distribution.probs > 0).sum(dim=-1).tolist()  # 0: nothing may come
    rows = [row for row, count in enumerate(used) if count]
    if not rows:
        return sampled
    width = max(used)  # the likeliest come first
    ids, probs = (
        distribution.ids[rows, :width],
        distribution.probs[rows, :width],
    )  # [rows that sample, width]
    seed = torch.tensor([seed_word(sampling[row].seed) for row in rows])
    position = torch.tensor([sampling[row].position + steps[row] for row in rows])
    noise_of = [
        sampling[row].noise_ids if steps[row] else sampling[row].first_noise_ids for row in rows
    ]
    noise_ids = torch.stack([of[own] for of, own in zip(noise_of, ids, strict=True)])
    purpose = sampling[0].purpose
    tokens = propose(SparseDistributions(ids, probs), noise_ids, seed, position, purpose).tolist()
    for index, (row, token) in enumerate(zip(rows, tokens, strict=True)):
        q = None
        if purpose is Purpose.PROPOSE:
            q = SparseDistribution(
                tuple(ids[index, : used[row]].tolist()), tuple(probs[index, : used[row]].tolist())
            )
        sampled[row] = Sampled(token, q)
    return sampled


def likeliest_allowed(
    logits: Tensor,  # [rows, draft vocab]
    allowed: Sequence[Tensor],  # per row: bool [draft vocab], the ids it may choose
) -> Tensor:  # int64 [rows]
    """The likeliest id of each row, among those it may choose."""
    return logits.masked_fill(~torch.stack(list(allowed)), float("-inf")).argmax(dim=-1)
