"""Model folders without weights: a config of a real shape, and a tokenizer whose tokens are bytes.

Knows what services look for in a folder. Does not know which models those are
(bench/device/parts/steps.py). As many ids exist as in the published tokenizer, since kernels read
no further than the last one. No id ends a text, so that every stream is as long as it shall be.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from bench.device.parts.steps import ModelShape

IDS = 256  # of single bytes: 0 to 255
REAL = 151_936  # that exist at most; models of one tokenizer pad it to different widths


def make_folder(shape: ModelShape, folder: Path) -> Path:
    """config.json, tokenizer.json, tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    config = shape.config()
    config.architectures = ["Qwen2ForCausalLM"]
    config.eos_token_id = config.bos_token_id = config.pad_token_id = None
    config.save_pretrained(folder)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    # Nothing is split into the others, which are numbers in digits: there are no merges.
    strings = [*letters, *(str(place) for place in range(IDS, min(shape.vocab, REAL)))]
    tokenizer = Tokenizer(
        models.BPE(vocab={text: place for place, text in enumerate(strings)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    reported = {"model_max_length": config.max_position_embeddings}
    (folder / "tokenizer_config.json").write_text(json.dumps(reported))
    return folder
