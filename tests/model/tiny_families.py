"""A tiny random model of any causal family that transformers has, from its own configuration."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

FAMILIES = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
MOST_PARAMETERS = 100_000_000

# Sizes by the names that families give them. Windows and chunks are shorter than any prompt here.
_WIDTHS = {
    32: "hidden_size d_model n_embd n_embed dim word_embed_proj_dim embedding_size lru_width",
    48: "intermediate_size ffn_dim n_inner ffn_hidden_size d_ff decoder_ffn_dim encoder_ffn_dim "
    "ffn_intermediate_size d_inner",
    2: "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers "
    "num_key_value_heads num_kv_heads multi_query_group_num num_experts_per_tok moe_topk moe_k "
    "mamba_expand expand index_n_heads linear_num_key_heads linear_num_value_heads",
    4: "num_attention_heads n_head n_heads num_heads decoder_attention_heads "
    "encoder_attention_heads num_local_experts num_experts n_routed_experts moe_num_experts "
    "mamba_d_conv mamba_n_heads mamba_num_heads index_topk",
    8: "head_dim kv_channels sliding_window attention_chunk_size qk_rope_head_dim "
    "qk_nope_head_dim v_head_dim d_kv rotary_dim mamba_d_state state_size attention_window "
    "window_size query_pre_attn_scalar hidden_size_per_layer_input linear_key_head_dim "
    "linear_value_head_dim index_head_dim",
    16: "moe_intermediate_size shared_expert_intermediate_size q_lora_rank kv_lora_rank "
    "mamba_d_head mamba_head_dim expert_ffn_hidden_size",
    96: "vocab_size vocab_size_per_layer_input",
    256: "max_position_embeddings n_positions n_ctx max_seq_len",
    1: "n_group topk_group first_k_dense_replace n_shared_experts num_mem_blocks mamba_n_groups "
    "bos_token_id",
    0: "num_kv_shared_layers pad_token_id max_window_layers num_nextn_predict_layers",
}
_SIZES = {name: size for size, names in _WIDTHS.items() for name in names.split()}
_SIZES |= {"eos_token_id": 2, "use_sliding_window": True}
_KINDS = ("layer_types", "mlp_layer_types", "layers_block_type")
_INNER = ("text_config", "decoder", "llm_config")
# A property, or a size that this family can't have.
_IMPOSSIBLE = suppress(AttributeError, ValueError, NotImplementedError)
_NONE_MEANS_NONE = ("sliding_window", "attention_chunk_size", "q_lora_rank")


def tiny_model(family: str, feed_forward: int = 48) -> PreTrainedModel:
    """feed_forward: the width between the linears of its MLPs.

    Raises whatever its configuration or its class raises for such sizes.
    """
    torch.manual_seed(0)
    config = _shrunk(CONFIG_MAPPING[family](), feed_forward)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.2)
    return model


def _shrunk(config: Any, feed_forward: int) -> Any:
    known = config.to_dict()
    for name in _SIZES:
        size = feed_forward if _SIZES[name] == 48 else _SIZES[name]
        value = known.get(name, getattr(config, name, _SIZES))
        several = isinstance(value, list | dict) and name != "eos_token_id"  # ids may be a list
        if value is _SIZES or several:
            continue
        if value is None and name in _NONE_MEANS_NONE:
            continue
        with _IMPOSSIBLE:
            setattr(config, name, size)
    for name in _KINDS:  # the last kind and the first, so that few layers have both
        kinds = getattr(config, name, None)
        if isinstance(kinds, list) and kinds:
            count = int(getattr(config, "num_hidden_layers", 2))
            with _IMPOSSIBLE:
                setattr(config, name, (kinds[-1:] + kinds)[:count])
    for name in _INNER:
        inner = getattr(config, name, None)
        if hasattr(inner, "to_dict"):
            _shrunk(inner, feed_forward)
    return config
