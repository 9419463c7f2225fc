"""Decoder layers with fewer launches, whose rows keep their bits, for models that look alike.

Knows the pre-norm, gated decoder layer of Llama, Qwen2 and Mistral. Does not know every other
kind, which runs as transformers made it.

A small model's step is mostly launches: transformers' own layer takes some fifty, this one nine.
Queries, keys and values are one product, as are gates and values, and what a product leaves apart
is added up by whatever reads it. Up to `TILED_ROWS` rows, products go through our own kernel, in
which a row's value doesn't depend on how many others there are; beyond, through torch's, unless all
rows shall keep their bits (prefills take several times as long then).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers.models.mistral.modeling_mistral import MistralDecoderLayer
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer

from common.kernels.norm_and_gate import add_norm, silu_gate
from common.kernels.row_product import product_tiles, row_product
from common.model.gpu_attention import PagedBatch

_KNOWN = (LlamaDecoderLayer, MistralDecoderLayer, Qwen2DecoderLayer)
TILED_ROWS = 64  # beyond, weights would be read so often that the library's kernels are faster


@dataclass(frozen=True)
class Hidden:
    """Between two layers: the residual, and the last product that isn't added to it yet."""

    residual: Tensor  # [rows, width]
    product: Tensor | None  # [splits, rows, width]


class Product(nn.Module):
    """Linear layers side by side as one matrix [outer, inner]; its bias is left to the reader."""

    def __init__(self, *parts: nn.Linear, exact: bool) -> None:
        super().__init__()
        self.exact = exact
        biases = [part.bias for part in parts]
        self.weight = nn.Parameter(_joined([part.weight for part in parts]), requires_grad=False)
        self.bias = None
        if biases[0] is not None:
            self.bias = nn.Parameter(_joined(biases), requires_grad=False)
        self.tiles = product_tiles(self.weight.shape[0], self.weight.shape[1], self.weight.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, inner] -> [splits, rows, outer]."""
        if self.exact or x.shape[0] <= TILED_ROWS:
            return row_product(x, self.weight, self.tiles)
        return linear(x, self.weight)[None]


class FusedLayer(nn.Module):
    """One layer with transformers' interface, but for what it hands to the next."""

    def __init__(self, layer: Any, exact: bool) -> None:
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self.index: int = attention.layer_idx
        self.scaling: float = attention.scaling
        window = attention.config.sliding_window if type(layer) is MistralDecoderLayer else None
        self.window: int | None = getattr(attention, "sliding_window", None) or window
        self.before, self.after = layer.input_layernorm, layer.post_attention_layernorm
        self.qkv = Product(attention.q_proj, attention.k_proj, attention.v_proj, exact=exact)
        self.out = Product(attention.o_proj, exact=exact)
        self.gates = Product(mlp.gate_proj, mlp.up_proj, exact=exact)
        self.down = Product(mlp.down_proj, exact=exact)

    def forward(
        self,
        hidden_states: Tensor | Hidden,  # the first layer gets [1, rows, width]
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        batch: PagedBatch | None = None,
        **ignored: Any,
    ) -> Hidden:
        assert batch is not None and position_embeddings is not None
        cos, sin = (angles[0] for angles in position_embeddings)  # [rows, head_size]
        x, normed = _norm(hidden_states, self.before)
        query = batch.rotate_write(self.index, self.qkv(normed), self.qkv.bias, cos, sin)
        attended = batch.attention(self.index, query, self.scaling, self.window, None)
        x, normed = _norm(Hidden(x, self.out(attended.flatten(1))), self.after)
        return Hidden(x, self.down(silu_gate(self.gates(normed), x.dtype)))


class LastNorm(nn.Module):
    """The norm behind the last layer: -> [1, rows, width]."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, hidden_states: Hidden) -> Tensor:
        return _norm(hidden_states, self.norm)[1][None]


class Head(nn.Module):
    """The output layer: [1, rows, width] -> logits [1, rows, vocab]."""

    def __init__(self, layer: nn.Linear, exact: bool) -> None:
        super().__init__()
        self.exact = exact
        self.weight = layer.weight  # often the embedding's own
        self.tiles = product_tiles(self.weight.shape[0], self.weight.shape[1], self.weight.dtype)

    def forward(self, x: Tensor) -> Tensor:
        if not self.exact and x.shape[1] > TILED_ROWS:
            return linear(x, self.weight)
        if self.tiles.splits == 1:
            return row_product(x[0], self.weight, self.tiles, x.dtype)[:1]
        return row_product(x[0], self.weight, self.tiles).sum(0, keepdim=True).to(x.dtype)


def fuse_layers(model: PreTrainedModel, exact: bool) -> bool:
    """Replace all decoder layers by fused ones, if every one of them is known: whether it was.

    exact: all rows go through our own products, however many.
    """
    inner: Any = model.base_model
    head = model.get_output_embeddings()
    layers = getattr(inner, "layers", None)
    if layers is None or type(head) is not nn.Linear or head.bias is not None:
        return False
    if not all(_fits(layer) for layer in layers):
        return False
    for place, layer in enumerate(layers):
        layers[place] = FusedLayer(layer, exact)
    inner.norm = LastNorm(inner.norm)
    model.set_output_embeddings(Head(head, exact))
    return True


def _fits(layer: Any) -> bool:
    if type(layer) not in _KNOWN:
        return False
    config, attention, mlp = layer.self_attn.config, layer.self_attn, layer.mlp
    bare = [attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj]
    linears = [attention.q_proj, attention.k_proj, attention.v_proj, *bare]
    rope = getattr(config, "rope_parameters", None) or {}
    return (
        all(type(one) is nn.Linear for one in linears)
        and all(one.bias is None for one in bare)
        and config.hidden_act in ("silu", "swish")
        and rope.get("partial_rotary_factor", 1.0) == 1.0
    )


def _norm(hidden: Tensor | Hidden, norm: Any) -> tuple[Tensor, Tensor]:
    """(The residual, its norm), each [rows, width]."""
    if isinstance(hidden, Tensor):
        hidden = Hidden(hidden[0], None)
    return add_norm(hidden.residual, hidden.product, norm.weight, norm.variance_epsilon)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Side by side in new memory; several parts give up theirs."""
    if len(parts) == 1:
        return parts[0].data
    joined = torch.cat([part.data for part in parts])
    for part in parts:
        part.data = torch.empty(0, dtype=joined.dtype, device=joined.device)
    return joined
