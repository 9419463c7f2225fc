"""Sampler inputs of a draft step as tensors for kernels.

Knows how sampling and logits processors become rows. Does not know kernels' launches and memory
(drafter/engine/device_sampler.py). Built on the host; `process` runs where its tensors are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from common.kernels.logits_scan import ARGMAX, FILTERED
from common.sampling.distribution import filters, processed
from common.sampling.parameters import SamplingParams
from common.sampling.rng import Purpose, seed_word
from drafter.engine.sampler import SamplerInput
from drafter.engine.tokens import DraftSamplingParams
from drafter.kernels.draft_rows import Steps

LOG2_E = 1.4426950408889634
_LIKELIEST = SamplingParams()


@dataclass(frozen=True)
class Entries:
    """Logits to change first; see `processed` in common/sampling/distribution.py."""

    rows: Tensor  # int64 [n]
    ids: Tensor  # int64 [n]
    bias: Tensor  # float32 [n]
    seen: Tensor  # bool [n]
    count: Tensor  # int32 [n]
    banned: Tensor  # bool [n]
    repetition: Tensor  # float32 [n]
    presence: Tensor  # float32 [n]
    frequency: Tensor  # float32 [n]


def steps_of(
    sampling: Sequence[DraftSamplingParams | None], taken: Sequence[int], vocab: int
) -> Steps:
    """How each row's token is sampled; None: the likeliest. taken: tokens of its draft before."""
    params = [_LIKELIEST if each is None else each.params for each in sampling]
    temperature, top_k, top_p, min_p = filters(params, vocab)
    seeds = [0 if each is None else seed_word(each.seed) for each in sampling]
    positions = [
        0 if each is None else each.position + so_far
        for each, so_far in zip(sampling, taken, strict=True)
    ]
    coupled = [each is not None and each.purpose is Purpose.COUPLED for each in sampling]
    kinds = [ARGMAX if each is None else FILTERED for each in sampling]
    return Steps(
        kinds=torch.tensor(kinds, dtype=torch.int32),
        scales=LOG2_E / temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seeds=torch.tensor(seeds, dtype=torch.int64),
        positions=torch.tensor(positions, dtype=torch.int64),
        coupled=torch.tensor(coupled),
    )


def entries_of(inputs: Sequence[SamplerInput]) -> Entries:
    """Of one row each, in their order."""
    found = [
        each.processors.entries(each.drafted) for each in inputs if each.processors is not None
    ]
    counts = torch.tensor([len(columns[0]) for columns in found])
    rows = torch.arange(len(found)).repeat_interleave(counts)
    return Entries(rows, *(torch.cat(columns) for columns in zip(*found, strict=True)))


def process(
    logits: Tensor,  # [rows, draft vocab], any float dtype
    entries: Entries,
    out: Tensor,  # float32 [rows, draft vocab], written
) -> Tensor:
    """`out`, with the logits after the entries' changes."""
    out.copy_(logits)
    where, how = (entries.rows, entries.ids), list(vars(entries).values())[2:]
    out.index_put_(where, processed(out[where], *how))
    return out
