"""Log-probabilities of committed tokens: of the target's softmax, before all parameters.

Each row is computed alone, from its logits alone, so that a token's value has the same bits at any
k and in any batch. Does not know sessions and rules.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from common.types import TokenLogprobs


def run_logprobs(
    logits: Tensor,  # [rows, vocab], any float dtype; row i gave run[i]
    run: Sequence[int],  # as many
    top: int,  # how many of the likeliest ids to return; fewer if fewer exist
    real_ids: Tensor | None = None,  # bool [vocab]: ids that exist; None: all
) -> tuple[TokenLogprobs, ...]:
    """Natural logarithms of softmax(logits). Of equal values, the lower id comes first."""
    if real_ids is not None and bool(real_ids.all()):
        real_ids = None
    return tuple(
        _token_logprobs(row, token, top, real_ids) for row, token in zip(logits, run, strict=True)
    )


def fetch_logprobs(
    logits: Tensor,  # [rows, vocab], on a device
    run: Sequence[int],  # as many
    top: int,  # at most as many ids exist
    real_ids: Tensor | None,  # bool [vocab], on the device; None: all ids exist
) -> tuple[TokenLogprobs, ...]:
    """As run_logprobs, with one wait for all rows and without a sort of any."""
    vocab = logits.shape[-1]
    behind = torch.arange(vocab - 1, -1, -1, device=logits.device)  # so that lower ids come first
    rows = []
    for row, token in zip(logits, run, strict=True):  # each alone, see above
        values = row.to(torch.float32)  # [vocab]
        if real_ids is not None:
            values = values.masked_fill(~real_ids, float("-inf"))
        values = values.log_softmax(dim=-1) + 0.0  # no -0.0
        # Equal values come in any order from topk, so it gets keys of which no two are equal: a
        # float's bits, with the sign folded in, are in its order.
        bits = values.view(torch.int32)
        order = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(torch.int64)
        keys = ((order << 32) | behind).topk(top).values
        ids = vocab - 1 - (keys & 0xFFFFFFFF)
        chosen = torch.cat([values[token : token + 1], values[ids]])
        rows.append(torch.cat([chosen.view(torch.int32), ids.to(torch.int32)]))
    fetched = torch.stack(rows).cpu()  # int32 [rows, 1 + 2 top], values as their bits, then ids
    values_of = fetched[:, : 1 + top].contiguous().view(torch.float32).tolist()
    ids_of = fetched[:, 1 + top :].tolist()
    return tuple(
        TokenLogprobs(values[0], tuple(ids), tuple(values[1:]))
        for values, ids in zip(values_of, ids_of, strict=True)
    )


def _token_logprobs(row: Tensor, token: int, top: int, real_ids: Tensor | None) -> TokenLogprobs:
    values = row.to(torch.float32)  # [vocab]
    if real_ids is not None:
        values = values.masked_fill(~real_ids, float("-inf"))
    values = values.log_softmax(dim=-1)
    count = min(top, len(values) if real_ids is None else int(real_ids.sum()))
    if not count:
        return TokenLogprobs(float(values[token]))
    # All ids at the last place's value compete for it, in the order of their numbers.
    ids = (values >= values.topk(count).values[-1]).nonzero().squeeze(1)
    ids = ids[values[ids].argsort(descending=True, stable=True)][:count]
    return TokenLogprobs(float(values[token]), tuple(ids.tolist()), tuple(values[ids].tolist()))
