"""Tiny models made in the test: random ones of several families, and ones that know some text."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    Qwen2Config,
)

from common.model.language_model import Packing
from common.model.paged_model import PagedModel
from common.vocabulary.vocabulary import Vocabulary
from tests.support.fake_tokenizers import LINES

WINDOW = 5  # of sliding attention, smaller than the texts
WIDTH = 192  # of models that know text: enough to separate some hundred tokens

_SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.25,  # wide, so that contexts matter
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_GEMMA: dict[str, Any] = {
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"],
    "query_pre_attn_scalar": 16,
}
_CONFIGS: dict[str, tuple[type, dict[str, Any]]] = {
    "llama": (LlamaConfig, {}),
    "qwen2": (Qwen2Config, {}),
    "mistral": (MistralConfig, {"sliding_window": WINDOW}),
    "gemma2": (Gemma2Config, {**_GEMMA, "attn_logit_softcapping": 2.0}),
    "gemma3": (Gemma3TextConfig, _GEMMA),
}
FAMILIES = tuple(_CONFIGS)


def random_model(family: str, vocab_size: int = 97, seed: int = 0, **changes: Any) -> Any:
    """A transformers model with plain attention; the same seed gives the same weights."""
    kind, own = _CONFIGS[family]
    torch.manual_seed(seed)
    config = kind(**{**_SIZES, **own, "vocab_size": vocab_size, **changes})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    return model.eval().float()


def knowing_model(
    vocabulary: Vocabulary, seed: int = 0, by_heart: bytes = b"", **changes: Any
) -> PreTrainedModel:
    """A Llama that mostly goes on as LINES do, by pairs of tokens; its context has a say too.

    by_heart: bytes that all differ, which it says in tokens of one byte, over and over. Two of
    them over different tokenizers agree often enough for drafts to be accepted.
    """
    model: PreTrainedModel = random_model(
        "llama",
        vocabulary.width,
        seed,
        hidden_size=WIDTH,
        num_hidden_layers=1,
        initializer_range=0.02,
        **changes,
    )
    with torch.no_grad():
        torch.manual_seed(1)
        embedding = torch.nn.functional.normalize(torch.randn(vocabulary.width, WIDTH), dim=-1)
        head = torch.zeros_like(embedding)
        for token, following in _pairs(vocabulary):
            head[following] += embedding[token]
        for token, following in _pairs_by_heart(vocabulary, by_heart):
            head[following] += 3 * embedding[token]
        noise = torch.randn(head.shape, generator=torch.Generator().manual_seed(seed + 2))
        _set(model.get_input_embeddings(), embedding)
        _set(model.get_output_embeddings(), head + 0.005 * noise)
    return model


def _pairs(vocabulary: Vocabulary) -> set[tuple[int, int]]:
    """Tokens that follow each other in LINES, over and over."""
    found: set[tuple[int, int]] = set()
    for line in LINES:
        ids = vocabulary.encode_bytes((line * 2).encode()) or []
        found |= set(pairwise(ids))
    return found


def _pairs_by_heart(vocabulary: Vocabulary, text: bytes) -> Iterator[tuple[int, int]]:
    for byte, following in zip(text, text[1:] + text[:1], strict=True):
        ids = vocabulary.id_of(bytes([byte])), vocabulary.id_of(bytes([following]))
        assert ids[0] is not None and ids[1] is not None
        yield ids[0], ids[1]


def _set(module: torch.nn.Module | None, weight: torch.Tensor) -> None:
    assert module is not None
    module.load_state_dict({"weight": weight})


def paged(
    model: Any, pages: int = 64, page_size: int = 4, packing: Packing = "exact"
) -> PagedModel:
    """The model as a PagedModel, with a KV store."""
    made = PagedModel(model, packing)
    made.allocate(pages, page_size)
    return made


@cache
def shared_paged(family: str, pages: int = 64, page_size: int = 4) -> PagedModel:
    """One for all tests that only run forward passes."""
    return paged(random_model(family), pages, page_size)
