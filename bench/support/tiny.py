"""A pair of tiny random models on disk, so that what is measured is the services around them.

Knows how to make a small Llama and a small tokenizer on the spot. Does not know services. The
two have different tokenizers (byte-level, and ▁ for spaces), so that drafts cross the whole bridge.
Torch is imported only when models are made.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from bench.support.prompts import PROMPTS

CONTEXT = 2048
TARGET_IDS, DRAFT_IDS = 512, 640  # at most
TARGET_SEED, DRAFT_SEED = 1, 2


def make_pair(folder: Path) -> tuple[Path, Path]:
    """(target, draft): directories that either service takes as --model."""
    target, draft = folder / "tiny-target", folder / "tiny-draft"
    _save(target, _byte_level(), "<|endoftext|>", TARGET_SEED)
    _save(draft, _spaces_as_letters(), "<eos>", DRAFT_SEED)
    return target, draft


def _texts() -> Iterator[str]:
    for prompt in PROMPTS:
        yield prompt.message
        yield prompt.beginning


def _byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TARGET_IDS,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    return tokenizer


def _spaces_as_letters() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    special = ["<pad>", "<eos>", "<unk>"]
    trainer = trainers.BpeTrainer(
        vocab_size=DRAFT_IDS,
        special_tokens=special + [f"<0x{byte:02X}>" for byte in range(256)],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    parsed = json.loads(tokenizer.to_str())
    parsed["added_tokens"] = parsed["added_tokens"][: len(special)]  # bytes are no added tokens
    return Tokenizer.from_str(json.dumps(parsed))


def _save(folder: Path, tokenizer: Tokenizer, eos: str, seed: int) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=CONTEXT,
        initializer_range=0.25,  # wide, so that outputs vary
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id(eos),
        pad_token_id=None,
    )
    torch.manual_seed(seed)
    LlamaForCausalLM(config).float().save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
