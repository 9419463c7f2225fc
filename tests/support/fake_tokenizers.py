"""Small real tokenizers, one for each decoder family, trained in the test on a few lines."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from common.vocabulary.vocabulary import TokenizerFiles, Vocabulary

LINES = [
    "def add(left, right):\n    return left + right\n",
    "class Room:\n\tdef __init__(self, name):\n\t\tself.name = name\n",
    "The quick brown fox jumps over the lazy dog, and the dog jumps over the fox.\n",
    "for i in range(10):\n        print(i, i * i)\n\n",
    "É é e\u0301 中文 naïve café\n",
] * 3
DELTAS = [
    *["\n", "\t", "  ", "    ", "        ", "é", "e\u0301", "中", "🙂👍🏽", "똻", " ", "▁", "▁▁"],
    *["<|im_end|>", "<eos>", "</s>", "<unk>", "<0x41>", "Ġ", "def add", " the fox", "return", "x1"],
]
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def texts() -> st.SearchStrategy[str]:
    """Text out of the pieces that break tokenizers, and any other."""
    return st.lists(st.one_of(st.sampled_from(DELTAS), st.text(max_size=4)), max_size=12).map(
        "".join
    )


def blobs() -> st.SearchStrategy[bytes]:
    """Text, bytes that aren't text, and texts cut in mid-character."""
    cut = st.tuples(texts(), st.integers(0, 3)).map(lambda cut: cut[0].encode()[cut[1] :])
    return st.lists(st.one_of(cut, st.binary(max_size=6)), max_size=4).map(b"".join)


def files_of(tokenizer: Tokenizer | dict[str, Any], **config: Any) -> TokenizerFiles:
    """The files of a tokenizer made here."""
    parsed = json.loads(tokenizer.to_str()) if isinstance(tokenizer, Tokenizer) else tokenizer
    return TokenizerFiles(
        {
            "tokenizer.json": json.dumps(parsed).encode(),
            "tokenizer_config.json": json.dumps(config).encode(),
        }
    )


def vocabulary(files: TokenizerFiles, pad: int = 0) -> Vocabulary:
    """A vocabulary whose model is `pad` rows wider than the tokenizer."""
    ids = Tokenizer.from_str(files.files["tokenizer.json"].decode()).get_vocab().values()
    return Vocabulary(files, max(ids) + 1 + pad, ())


def byte_level_tokenizer(full: bool = True, size: int = 400) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if full else [],
        show_progress=False,
    )
    tokenizer.train_from_iterator(LINES, trainer)
    return tokenizer


def sentencepiece_tokenizer(size: int = 600) -> Tokenizer:
    """As Gemma's: ▁ for spaces, <0xNN> for what has no piece, <bos> before prompts."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=special + [f"<0x{byte:02X}>" for byte in range(256)],
        show_progress=False,
    )
    tokenizer.train_from_iterator(LINES, trainer)
    parsed = json.loads(tokenizer.to_str())
    parsed["added_tokens"] = parsed["added_tokens"][: len(special)]  # bytes are no added tokens
    bos = {"SpecialToken": {"id": "<bos>", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    parsed["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [bos, text],
        "pair": [bos, text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<bos>": {"id": "<bos>", "ids": [2], "tokens": ["<bos>"]}},
    }
    return Tokenizer.from_str(json.dumps(parsed))


def unigram_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=150,
        special_tokens=["<pad>", "</s>", "<unk>"],
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(LINES, trainer)
    return tokenizer


def wordpiece_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(special_tokens=["[UNK]"], show_progress=False)
    tokenizer.train_from_iterator(LINES, trainer)
    return tokenizer


@cache
def family(name: str) -> Vocabulary:
    """One vocabulary for each family, made once."""
    makers = {
        "byte-level": lambda: byte_level_tokenizer(),
        "byte-level, bytes missing": lambda: byte_level_tokenizer(full=False, size=220),
        "sentencepiece": sentencepiece_tokenizer,
        "unigram": unigram_tokenizer,
    }
    config = {"eos_token": "</s>"} if name == "unigram" else {}
    return vocabulary(files_of(makers[name](), chat_template=CHATML, **config))


FAMILIES = ("byte-level", "byte-level, bytes missing", "sentencepiece", "unigram")
WHOLE_FAMILIES = ("byte-level", "sentencepiece")  # they have every byte
