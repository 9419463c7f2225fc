"""Token healing of one session, on the CPU; of many on a device: drafter/engine/device_healing.py.

Knows logits before and after a context's last token, and which longer tokens begin with its bytes.
Does not know sessions.
"""

from __future__ import annotations

from torch import Tensor


def choose_extension(
    before: Tensor,  # [draft vocab], logits before the last token of the context
    after: Tensor,  # [draft vocab], logits after it
    last: int,  # that token
    extensions: Tensor,  # int64 [n], longer tokens that begin with its bytes
    sampled: bool = False,  # its successor is sampled as the target's is, and isn't the likeliest
) -> int | None:
    """The token that the draft model would rather have read than `last`, if there is one.

    Committed text can end where the draft tokenizer would not have cut it ("oat" before "meal", a
    line's end before an indentation). The text goes on through an extension e with P(e), and
    through `last` and its likeliest successor x with P(last) P(x | last); the likelier way wins. A
    sampled successor is likely to be the target's whatever its probability, so that P(last) counts
    alone then.
    """
    if len(extensions) == 0:
        return None
    logits = before[extensions]
    best = int(logits.argmax())
    through_last = before[last]
    if not sampled:
        through_last = through_last + after.max() - after.logsumexp(dim=-1)  # log P(x | last)
    return int(extensions[best]) if bool(logits[best] > through_last) else None
