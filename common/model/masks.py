"""The attention masks that model code asks for, and whether our attention computes them.

Our attention lets a row see itself and earlier rows, perhaps only the last `window` of them.
transformers describes a mask as a function of query and key positions; it is evaluated here at the
positions where masks differ. Knows positions. Does not know models and batches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # (batch, head, query, key)

_FIRST = 24  # positions from 0 on, all of which are looked at
_LARGEST = 18  # powers of two up to 2**18, where windows and chunks begin


class DescribedMask(Tensor):
    """Stands for a mask in model code: no values, but the function that describes it."""

    function: MaskFunction

    @classmethod
    def of(cls, function: MaskFunction) -> DescribedMask:
        mask = torch.zeros((1, 1, 1, 1)).as_subclass(cls)
        mask.function = function
        return mask


def differs(function: MaskFunction, window: int | None, sizes: tuple[int, ...]) -> str:
    """ "" if the mask is causal, within `window` if that isn't None; otherwise where it isn't.

    sizes: lengths that the configuration names (windows, chunks), around which to look.
    """
    at = sorted(
        {0, *range(_FIRST), *_around(window or 0, *sizes, *(1 << n for n in range(5, _LARGEST)))}
    )
    positions = torch.tensor(at)
    query, key = positions[:, None], positions[None, :]
    zero = torch.zeros((), dtype=torch.int64)
    seen = function(zero, zero, query, key).expand(len(at), len(at))
    expected = key <= query
    if window is not None:
        expected = expected & (key > query - window)
    wrong = (seen.bool() != expected).nonzero()
    if not len(wrong):
        return ""
    row, column = wrong[0].tolist()
    return f"position {at[row]} {'sees' if seen[row, column] else 'misses'} position {at[column]}"


def named_sizes(config: Any) -> tuple[int, ...]:
    """Lengths of windows and chunks that a model's configuration names."""
    values = (getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size"))
    return tuple(value for value in values if isinstance(value, int) and value > 0)


def _around(*sizes: int) -> set[int]:
    return {near for size in sizes for near in (size - 1, size, size + 1, 2 * size) if near >= 0}
