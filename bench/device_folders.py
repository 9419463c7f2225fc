"""Model folders without weights: a config of a real shape, and a tokenizer whose tokens are bytes.

Knows what services look for in a folder. Refuses to know which models those are
(bench/device_steps.py). The vocabulary is as wide as the model's and 256 ids exist: what is masked
costs as much as what isn't. No id ends a text, so that every stream is as long as it shall be.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from bench.device_steps import ModelShape

IDS = 256  # that exist: 0 to 255


def make_folder(shape: ModelShape, folder: Path) -> Path:
    """config.json, tokenizer.json, tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    config = shape.config()
    config.architectures = ["Qwen2ForCausalLM"]
    config.eos_token_id = config.bos_token_id = config.pad_token_id = None
    config.save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(
        models.BPE(vocab={letter: place for place, letter in enumerate(alphabet)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    told = {"model_max_length": config.max_position_embeddings}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    return folder
