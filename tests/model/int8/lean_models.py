"""Tiny random models whose layers the kernels' own pass knows, of sizes that it takes."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from common.kv.pages import PagePool
from common.model.batch import Chunk
from common.model.cpu import lean_weights
from common.model.cpu.lean_model import About, LeanModel
from common.model.paged_model import PagedModel
from common.native.library import Kernels

SIZES: dict[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 48,
    "vocab_size": 203,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
# What each family has that others don't.
OWN: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "mistral": {"sliding_window": 9},
    "qwen2": {
        "head_dim": None,
        "use_sliding_window": True,
        "sliding_window": 9,
        "max_window_layers": 1,
    },
    "qwen3": {},
    "gemma3_text": {
        "sliding_window": 9,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "query_pre_attn_scalar": 24,
    },
}


def tiny(family: str, **changed: Any) -> PreTrainedModel:
    torch.manual_seed(7)
    sizes = {name: value for name, value in (SIZES | OWN[family] | changed).items() if value}
    config = CONFIG_MAPPING[family](**sizes)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 or name.endswith("bias"):
                parameter.normal_(0, 0.2)
            else:  # norms' weights differ, so that one in another's place is found
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def lean(family: str, threads: int = 2, build: Kernels | None = None, **changed: Any) -> LeanModel:
    paged = PagedModel(tiny(family, **changed), "int8")
    found = lean_weights.read(paged.code, paged.calls)
    assert found is not None
    return LeanModel(*found, About(paged.eos_ids, paged.max_context_length), threads, build)


def whole_logits(model: LeanModel, tokens: list[int]) -> torch.Tensor:
    """[tokens, vocab] of a text that is read in one pass."""
    model.allocate(-(-len(tokens) // 4), 4)
    table = PagePool(-(-len(tokens) // 4), 4).table()
    table.reserve(len(tokens))
    return model.forward([Chunk(tokens, table, len(tokens))])
