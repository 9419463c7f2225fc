"""The attention function that transformers calls, whatever the device.

Knows the name under which it is registered, and what a batch must be able to do. Does not know
how it is done: row by row (common/model/cpu/attention.py) or by kernels
(common/model/gpu_attention.py); the batch that travels with the call selects.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from common.model.masks import DescribedMask, MaskFunction

NAME = "crossdraft"

# Keywords of attention calls that mean nothing here: no row is dropped in evaluation, positions are
# in the rotary embedding already, and what is kept or returned beside the output is ours to say.
_WITHOUT_MEANING = frozenset(
    {
        "cache_position",
        "deterministic",
        "dropout",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "position_ids",
        "return_dict",
        "use_cache",
    }
)


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
        sinks: Tensor | None,  # [heads], a logit that takes part in each softmax and has no value
    ) -> Tensor:
        """Write the rows' keys and values, then attend: -> [1, rows, heads, head_size]."""


def dispatch_attention(
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
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """-> ([1, rows, heads, head_size], None).

    Raises NotImplementedError for a call that means more than this computes.
    """
    window = sliding_window or None
    refuse_unknown(module, others)
    check_mask = getattr(batch, "check_mask", None)
    if check_mask is not None:  # while a model is looked at, before it runs
        check_mask(attention_mask, window)
    layer: Any = module.layer_idx
    return batch.attend(layer, query, key, value, scaling, window, softcap, s_aux), None


def refuse_unknown(module: nn.Module, others: dict[str, Any]) -> None:
    """Raise NotImplementedError for keywords that would change the result."""
    causal = others.get("is_causal")
    if causal is False or (causal is None and getattr(module, "is_causal", True) is False):
        raise NotImplementedError("its attention isn't causal")
    for name, value in others.items():
        if value is not None and name != "is_causal" and name not in _WITHOUT_MEANING:
            raise NotImplementedError(
                f"its attention has the keyword {name}, which is unknown here"
            )


def _describe_mask(*_: Any, mask_function: MaskFunction, **__: Any) -> DescribedMask:
    """Rows see exactly their own keys, so there is nothing to mask; what should be is checked."""
    return DescribedMask.of(mask_function)


def register() -> None:
    """Make transformers know the attention implementation named `crossdraft`."""
    AttentionInterface.register(NAME, dispatch_attention)
    AttentionMaskInterface.register(NAME, _describe_mask)
