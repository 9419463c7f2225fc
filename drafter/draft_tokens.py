"""How draft tokens are chosen from draft logits: plain torch, the twin of later bridge kernels.

Pure functions. Refuses to know sessions and target ids.
"""

from __future__ import annotations

import torch
from torch import Tensor


def choose_greedy(
    logits: Tensor,  # [rows, draft vocab]
    restricted: Tensor,  # bool [rows]: choose among shared ids only
    shared: Tensor,  # bool [draft vocab]: ids with a target twin
    real: Tensor,  # bool [draft vocab]: ids that the draft tokenizer has
) -> Tensor:  # int64 [rows]
    """The likeliest id of each row, among those it may choose."""
    allowed = torch.where(restricted[:, None], shared & real, real)  # [rows, draft vocab]
    return logits.masked_fill(~allowed, float("-inf")).argmax(dim=-1)
