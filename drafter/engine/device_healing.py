"""Token healing of many sessions at once, on a device: drafter/engine/healing.py on a device.

Knows logits before and after a context's last token, and which longer tokens begin with its bytes.
Does not know sessions. Some launches for all of them, and nothing waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from drafter.bridge.bridge import Bridge
from drafter.engine.sampler import SamplerInput


@dataclass(frozen=True)
class Healing:
    """Sessions that may heal; each has at least one extension."""

    after: (
        Tensor  # int64 [sessions]: the logit row behind the last token; the one before it is next
    )
    last: Tensor  # int64 [sessions], that token
    sampled: Tensor  # bool [sessions]: its successor is sampled as the target's is
    owners: Tensor  # int64 [extensions], whose they are
    extensions: Tensor  # int64 [extensions]


def healing_inputs(
    bridge: Bridge, inputs: Sequence[SamplerInput], rows: Sequence[int]
) -> tuple[list[int], Healing | None]:
    """(which of `inputs` may heal, what is to be compared); rows: each one's last logit row."""
    members: list[int] = []
    extensions: list[Tensor] = []
    for index, each in enumerate(inputs):
        if each.rows == 2 and len(longer := bridge.draft_extensions(each.last)):
            members.append(index)
            extensions.append(longer)
    if not members:
        return members, None
    counts = torch.tensor([len(longer) for longer in extensions])
    return members, Healing(
        after=torch.tensor([rows[index] for index in members]),
        last=torch.tensor([inputs[index].last for index in members]),
        sampled=torch.tensor([inputs[index].sampling is not None for index in members]),
        owners=torch.arange(len(members)).repeat_interleave(counts),
        extensions=torch.cat(extensions),
    )


def heal(logits: Tensor, inputs: Healing) -> tuple[Tensor, Tensor]:
    """(each session's likeliest extension, whether it is likelier than its last token and the best
    successor), int64 and bool [sessions]. Of equals the first in the given order.

    logits: [rows, draft vocab], any float dtype.
    """
    before = logits.index_select(0, inputs.after - 1).float()  # [sessions, draft vocab]
    after = logits.index_select(0, inputs.after).float()
    successor = after.amax(dim=-1) - after.logsumexp(dim=-1)  # log P(the best | last)
    through_last = before.gather(1, inputs.last[:, None]).squeeze(1)
    through_last = through_last + successor.masked_fill(inputs.sampled, 0.0)
    values = before[inputs.owners, inputs.extensions]  # [extensions]
    best = torch.full_like(through_last, float("-inf"))
    best.scatter_reduce_(0, inputs.owners, values, "amax")
    order = torch.arange(len(values), device=values.device)
    order = order.masked_fill(values < best[inputs.owners], len(values))
    first = torch.full_like(inputs.last, len(values) - 1)
    first.scatter_reduce_(0, inputs.owners, order, "amin")
    return inputs.extensions[first], best > through_last
