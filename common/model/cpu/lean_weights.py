"""Decoder layers of known kinds, read out of transformers' modules for the kernels' own pass.

Knows the layers of Llama, Mistral, Qwen2, Qwen3 and Gemma 3 with Int8Linears in them. Does not
know how a pass runs (common/model/cpu/lean_model.py) and files. What differs from model to model
beyond this is refused by returning None: such a model runs as transformers made it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.gemma3.modeling_gemma3 import (
    Gemma3DecoderLayer,
    Gemma3RMSNorm,
    Gemma3TextScaledWordEmbedding,
)
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers.models.mistral.modeling_mistral import MistralDecoderLayer
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from common.model.cpu.architecture import Architecture, Weights
from common.model.cpu.int8 import Int8Linear, Int8Weights, interleaved, side_by_side
from common.model.discovery import AttentionCall, follows_positions
from common.native.structs import GELU, MOST_HEADS, SILU

_KNOWN = (
    LlamaDecoderLayer,
    MistralDecoderLayer,
    Qwen2DecoderLayer,
    Qwen3DecoderLayer,
    Gemma3DecoderLayer,
)
_ACTIVATIONS = {"silu": SILU, "swish": SILU, "gelu_pytorch_tanh": GELU}
_VECTOR = 16  # of the kernels: a width of anything is a multiple


def read(
    model: PreTrainedModel, calls: Sequence[AttentionCall]
) -> tuple[Architecture, Weights] | None:
    """Of a model whose linears are Int8Linears, which give their weights away; None: not known."""
    inner: Any = model.base_model
    layers = list(getattr(inner, "layers", ()))
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    rotary = getattr(inner, "rotary_emb", None)
    if not (layers and rotary and type(head) is Int8Linear and _is_plain(model.config)):
        return None
    if type(embedding) not in (nn.Embedding, Gemma3TextScaledWordEmbedding):
        return None
    if not all(_fits(layer, call) for layer, call in zip(layers, calls, strict=True)):
        return None
    kinds = sorted({_kind(layer, rotary) for layer in layers})
    config, first = model.config.get_text_config(), layers[0].self_attn
    norms = [each for each in inner.modules() if hasattr(each, "weight") and _is_norm(each)]
    found = Architecture(
        family=config.model_type,
        depth=len(layers),
        width=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_size=first.head_dim,
        mlp_width=layers[0].mlp.gate_proj.out_features,
        vocab=head.out_features,
        activation=_ACTIVATIONS[_activation(config)],
        epsilon=_epsilon(norms[0]),
        scaling=calls[0].scaling or first.head_dim**-0.5,
        windows=[call.window or 0 for call in calls],
        angles=[kinds.index(_kind(layer, rotary)) for layer in layers],
        angle_scales=[float(getattr(rotary, f"{kind}attention_scaling")) for kind in kinds],
        embedding_scale=float(getattr(embedding, "embed_scale", 1.0)),
    )
    alike = {(_epsilon(norm)) for norm in norms} == {found.epsilon}
    widths = (found.width, found.head_size, found.mlp_width)
    if not alike or any(width % _VECTOR for width in widths) or len(kinds) > 2:
        return None
    if len({call.scaling for call in calls}) != 1 or found.heads // found.kv_heads > MOST_HEADS:
        return None
    return found, _weights(inner, layers, head, embedding, rotary, kinds)


def _weights(
    inner: Any, layers: Sequence[Any], head: Any, embedding: Any, rotary: Any, kinds: list[str]
) -> Weights:
    found: Weights = {
        "embedding": _as_stored(embedding.weight),
        "last_norm": _norm(inner.norm),
        **{f"angles.{i}": getattr(rotary, f"{kind}inv_freq") for i, kind in enumerate(kinds)},
        **_named("head", _taken(head)),
    }
    for place, layer in enumerate(layers):
        attention, mlp = layer.self_attn, layer.mlp
        qkv = [_taken(each) for each in (attention.q_proj, attention.k_proj, attention.v_proj)]
        own = {
            **_named("qkv", side_by_side(qkv)),
            **_named("out", _taken(attention.o_proj)),
            **_named("gates", interleaved(_taken(mlp.gate_proj), _taken(mlp.up_proj))),
            **_named("down", _taken(mlp.down_proj)),
            **{name: _norm(norm) for name, norm in _norms(layer).items()},
        }
        found |= {f"layers.{place}.{name}": tensor for name, tensor in own.items()}
    return found


def _norms(layer: Any) -> dict[str, Any]:
    attention = layer.self_attn
    found = {"before_attention": layer.input_layernorm}
    if type(layer) is Gemma3DecoderLayer:
        found["after_attention"] = layer.post_attention_layernorm
        found["before_mlp"] = layer.pre_feedforward_layernorm
        found["after_mlp"] = layer.post_feedforward_layernorm
    else:
        found["before_mlp"] = layer.post_attention_layernorm
    if hasattr(attention, "q_norm"):
        found |= {"query_norm": attention.q_norm, "key_norm": attention.k_norm}
    return found


def _norm(norm: Any) -> Tensor:
    weight: Tensor = norm.weight.detach().float()
    return weight + 1 if type(norm) is Gemma3RMSNorm else weight  # arXiv:2408.00118 has x (1 + w)


def _is_norm(module: Any) -> bool:
    return type(module).__name__.endswith("RMSNorm")


def _epsilon(norm: Any) -> float:
    return float(getattr(norm, "variance_epsilon", getattr(norm, "eps", 0.0)))


def _activation(config: Any) -> str:
    return str(getattr(config, "hidden_activation", None) or config.hidden_act)


def _is_plain(config: Any) -> bool:
    """Nothing between layers and behind the output layer but what the kernels do."""
    text = config.get_text_config()
    rope = getattr(text, "rope_parameters", None) or {}
    kinds = [rope, *(each for each in rope.values() if isinstance(each, dict))]
    return (
        not follows_positions(text)
        and all(each.get("partial_rotary_factor", 1.0) == 1.0 for each in kinds)
        and getattr(text, "final_logit_softcapping", None) is None
        and _activation(text) in _ACTIVATIONS
    )


def _fits(layer: Any, call: AttentionCall) -> bool:
    if type(layer) not in _KNOWN or call.softcap is not None or call.sinks:
        return False
    attention, mlp = layer.self_attn, layer.mlp
    linears = [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
    linears += [mlp.gate_proj, mlp.up_proj, mlp.down_proj]
    whole = (attention.q_proj, attention.k_proj)  # whose panels others follow
    return all(type(one) is Int8Linear for one in linears) and all(
        one.out_features % one.packed.outer == 0 for one in whole
    )


def _kind(layer: Any, rotary: Any) -> str:
    """Prefix of the layer's rotary frequencies among the attributes of `rotary`."""
    kind = f"{getattr(layer.self_attn, 'layer_type', None)}_"
    return kind if hasattr(rotary, f"{kind}inv_freq") else ""


def _taken(linear: Int8Linear) -> Int8Weights:
    """Its weights; the module has none from then on."""
    weights = linear.packed
    del linear.packed
    return weights


def _named(name: str, weights: Int8Weights) -> Weights:
    parts = {"panels": weights.panels, "scales": weights.scales, "sums": weights.sums}
    if weights.bias is not None:
        parts["bias"] = weights.bias
    return {f"{name}.{part}": tensor for part, tensor in parts.items()}


def _as_stored(weight: Tensor) -> Tensor:
    """In 16 bits if that changes no value: it was float32 for model code's sake."""
    values = weight.detach()
    for dtype in (torch.float16, torch.bfloat16):
        narrow = values.to(dtype)
        if torch.equal(narrow.float(), values.float()):
            return narrow
    return values.float()
