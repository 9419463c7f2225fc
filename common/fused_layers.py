"""Decoder layers with fewer and larger launches, for models whose layers all look alike.

Knows the pre-norm, gated decoder layer of Llama, Qwen2 and Mistral. Refuses to know every other
kind, which runs as transformers made it. A small model's step is mostly launches: transformers' own
layer takes some fifty, this one ten. Queries, keys and values are one product, as are gates and
values; sums over the hidden width are added onto the residual by the product itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers.models.mistral.modeling_mistral import MistralDecoderLayer
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer

from common.attention_paged import PagedBatch
from common.kernels.rows import rms_norm, silu_gate

_KNOWN = (LlamaDecoderLayer, MistralDecoderLayer, Qwen2DecoderLayer)


class FusedLayer(nn.Module):
    """One layer, called as transformers calls its own: hidden [1, rows, width] in and out."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self.index: int = attention.layer_idx
        self.scaling: float = attention.scaling
        window = attention.config.sliding_window if type(layer) is MistralDecoderLayer else None
        self.window: int | None = getattr(attention, "sliding_window", None) or window
        self.before, self.after = layer.input_layernorm, layer.post_attention_layernorm
        self.qkv = _joined(attention.q_proj, attention.k_proj, attention.v_proj)
        self.gates = _joined(mlp.gate_proj, mlp.up_proj)
        self.out, self.down = attention.o_proj, mlp.down_proj

    def forward(
        self,
        hidden_states: Tensor,  # [1, rows, width]
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        batch: PagedBatch | None = None,
        **ignored: Any,
    ) -> Tensor:
        assert batch is not None and position_embeddings is not None
        cos, sin = (angles[0] for angles in position_embeddings)  # [rows, head_size]
        x = hidden_states[0]
        normed = rms_norm(x, self.before.weight, self.before.variance_epsilon)
        query = batch.rotate_write(self.index, self.qkv(normed), cos, sin)
        attended = batch.attention(self.index, query, self.scaling, self.window, None)
        x = _onto(x, attended.flatten(1), self.out)
        normed = rms_norm(x, self.after.weight, self.after.variance_epsilon)
        return _onto(x, silu_gate(self.gates(normed)), self.down)[None]


def fuse_layers(model: PreTrainedModel) -> bool:
    """Replace all decoder layers by fused ones, if every one of them is known: whether it was."""
    layers: Any = getattr(model.base_model, "layers", None)
    if layers is None or not all(_fits(layer) for layer in layers):
        return False
    for place, layer in enumerate(layers):
        layers[place] = FusedLayer(layer)
    return True


def _fits(layer: Any) -> bool:
    if type(layer) not in _KNOWN:
        return False
    config, attention, mlp = layer.self_attn.config, layer.self_attn, layer.mlp
    linears = (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
    linears += (mlp.gate_proj, mlp.up_proj, mlp.down_proj)
    rope = getattr(config, "rope_parameters", None) or {}
    return (
        all(type(one) is nn.Linear for one in linears)
        and config.hidden_act in ("silu", "swish")
        and rope.get("partial_rotary_factor", 1.0) == 1.0
    )


def _joined(*parts: nn.Linear) -> nn.Linear:
    """One linear layer that gives the parts' outputs side by side; the parts lose their weights."""
    first = parts[0]
    weight = torch.cat([part.weight.data for part in parts])  # [sum of outs, in]
    joined = nn.Linear(first.in_features, weight.shape[0], first.bias is not None, device="meta")
    joined.weight = nn.Parameter(weight, requires_grad=False)
    if first.bias is not None:
        bias = torch.cat([part.bias.data for part in parts])
        joined.bias = nn.Parameter(bias, requires_grad=False)
    for part in parts:
        part.weight.data = torch.empty(0, dtype=weight.dtype, device=weight.device)
    return joined


def _onto(residual: Tensor, x: Tensor, layer: nn.Linear) -> Tensor:
    """residual + layer(x), [rows, width]."""
    if layer.bias is not None:
        return residual + linear(x, layer.weight, layer.bias)
    return torch.addmm(residual, x, layer.weight.t())
