"""The attention function that transformers calls, whatever the device.

Knows the name under which it is registered, and what a batch must be able to do. Does not know
how it is done: row by row (common/model/row_batch.py) or by kernels (common/model/device_batch.py);
the batch that travels with the call selects.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

NAME = "crossdraft"


class Batch(Protocol):
    """Rows of many sequences, and where their keys and values are kept."""

    def attend(
        self,
        layer: int,
        query: Tensor,  # [1, heads, rows, head_size]
        key: Tensor,  # [1, kv_heads, rows, head_size]
        value: Tensor,
        scaling: float | None,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        """Write the rows' keys and values, then attend: -> [1, rows, heads, head_size]."""


def paged_attention(
    module: nn.Module,
    query: Tensor,  # [1, heads, rows, head_size]
    key: Tensor,  # [1, kv_heads, rows, head_size]
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    batch: Batch,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **ignored: Any,
) -> tuple[Tensor, None]:
    """-> ([1, rows, heads, head_size], None)."""
    layer: Any = module.layer_idx
    return batch.attend(layer, query, key, value, scaling, sliding_window or None, softcap), None


def _no_mask(*_: Any, **__: Any) -> None:
    """Rows see exactly their own keys, so there is nothing to mask."""


def register() -> None:
    """Make transformers know the attention implementation named `crossdraft`."""
    AttentionInterface.register(NAME, paged_attention)
    AttentionMaskInterface.register(NAME, _no_mask)
