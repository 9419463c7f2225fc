"""How draft tokens are chosen from draft logits: plain torch, the twin of later bridge kernels.

Pure functions. Refuses to know sessions and target ids.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def choose_greedy(
    logits: Tensor,  # [rows, draft vocab]
    allowed: Sequence[Tensor],  # per row: bool [draft vocab], the ids it may choose
) -> Tensor:  # int64 [rows]
    """The likeliest id of each row, among those it may choose."""
    return logits.masked_fill(~torch.stack(list(allowed)), float("-inf")).argmax(dim=-1)


def choose_extension(
    before: Tensor,  # [draft vocab], logits before the last token of the context
    after: Tensor,  # [draft vocab], logits after it
    last: int,  # that token
    extensions: Tensor,  # int64 [n], longer tokens that begin with its bytes
    drawn: bool = False,  # its successor is drawn as the target's is, and isn't the likeliest
) -> int | None:
    """The token that the draft model would rather have read than `last`, if there is one.

    Committed text can end where the draft tokenizer would not have cut it ("oat" before "meal", a
    line's end before an indentation). The text goes on through an extension e with P(e), and
    through `last` and its likeliest successor x with P(last) P(x | last); the likelier way wins. A
    drawn successor is likely to be the target's whatever its probability, so that P(last) counts
    alone then.
    """
    if len(extensions) == 0:
        return None
    logits = before[extensions]
    best = int(logits.argmax())
    through_last = before[last]
    if not drawn:
        through_last = through_last + after.max() - after.logsumexp(dim=-1)  # log P(x | last)
    return int(extensions[best]) if bool(logits[best] > through_last) else None
