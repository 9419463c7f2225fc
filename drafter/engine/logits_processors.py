"""Bias, penalties and ends that can't come yet, as the target has them, on draft logits.

A draft token counts as the target token that it maps to; one that maps to none is left alone.
Knows one session's committed target ids. Does not know distributions and how tokens are chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from common.sampling.distribution import processed
from common.sampling.parameters import SamplingParams
from drafter.bridge.bridge import Bridge


class DraftLogitsProcessors:
    """Written between drafts (`commit`), read while one is made (`applied`)."""

    def __init__(
        self, bridge: Bridge, params: SamplingParams, prompt: Sequence[int], ends: Iterable[int]
    ) -> None:
        """ends: target ids that end the session, banned before min_new_tokens."""
        width = bridge.draft.width
        self._bridge = bridge
        self._params = params
        self._bias = torch.zeros(width)  # [draft vocab]
        self._seen = torch.zeros(width, dtype=torch.bool)  # in the prompt or the output so far
        self._count = torch.zeros(width, dtype=torch.int32)  # times in the output so far
        for target_id, bias in params.logit_bias:
            self._bias[bridge.draft_ids_of(torch.tensor([target_id]))] = bias
        self._seen[bridge.draft_ids_of(torch.tensor(prompt, dtype=torch.int64))] = True
        self._ends = bridge.draft_ids_of(torch.tensor(sorted(ends), dtype=torch.int64))
        self._output_length = 0

    def commit(self, target_ids: Sequence[int]) -> None:
        """Count committed output tokens."""
        mapped_ids = self._bridge.draft_ids_of(torch.tensor(target_ids, dtype=torch.int64))
        self._seen[mapped_ids] = True
        self._count.index_add_(0, mapped_ids, torch.ones_like(mapped_ids, dtype=torch.int32))
        self._output_length += len(target_ids)

    def applied(self, logits: Tensor, drafted: Sequence[int]) -> Tensor:
        """float32 [draft vocab], a copy of `logits` ([draft vocab]) after `drafted` draft ids."""
        ids, *how = self.entries(drafted)
        scores = logits.to(torch.float32, copy=True)
        scores[ids] = processed(scores[ids], *how)
        return scores

    def entries(self, drafted: Sequence[int]) -> tuple[Tensor, ...]:
        """Draft ids whose logits change after `drafted`, int64 [n], and then what `processed`
        (common/sampling/distribution.py) takes behind their values, [n] each."""
        params, seen, count = self._params, self._seen, self._count
        if drafted:
            ids = torch.tensor(drafted)
            targets = self._bridge.to_target[ids[self._bridge.shared[ids]]]
            mapped_ids = self._bridge.draft_ids_of(targets)
            seen = seen.index_fill(0, mapped_ids, True)
            count = count.index_add(0, mapped_ids, torch.ones_like(mapped_ids, dtype=torch.int32))
        banned = torch.zeros_like(seen)
        if self._output_length + len(drafted) < params.min_new_tokens:
            banned[self._ends] = True
        ids = ((self._bias != 0) | seen | (count > 0) | banned).nonzero().squeeze(1)
        one = torch.ones(len(ids))
        return (
            ids,
            self._bias[ids],
            seen[ids],
            count[ids],
            banned[ids],
            one * (params.repetition_penalty or 1.0),
            one * (params.presence_penalty or 0.0),
            one * (params.frequency_penalty or 0.0),
        )
