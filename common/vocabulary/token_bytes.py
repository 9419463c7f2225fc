"""Token id -> exact bytes, by the tokenizer's own decoder.

Knows the decoder families whose tokens are exact bytes (ByteLevel; Replace + ByteFallback + Fuse;
Metaspace) and what an added token means. Does not know how text becomes tokens, and every
decoder that guesses at spaces (WordPiece, BPEDecoder, CTC): those raise UnsupportedTokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from common.errors import UnsupportedTokenizer

_BYTE_FALLBACK = re.compile(r"<0x[0-9A-Fa-f]{2}>")
# Converters fill the embedding's unused rows with "[PAD151931]": its own id as its text.
_PADDING = re.compile(r"\[PAD(\d+)\]")


@dataclass(frozen=True)
class TokenTable:
    """All ids that exist in a tokenizer."""

    data: dict[int, bytes]  # id -> exact bytes; a special token's are its literal text
    special: frozenset[int]  # flagged special: never plain text
    byte_fallback: frozenset[int]  # written <0xNN>
    added_text: dict[int, str]  # of added tokens only


def read_tokens(tokenizer: dict[str, Any]) -> TokenTable:
    """The table of a parsed tokenizer.json."""
    model = tokenizer["model"]
    decode, falls_back = _decoder(tokenizer.get("decoder"))
    texts = _model_vocabulary(model)
    added = {token["id"]: token for token in tokenizer.get("added_tokens") or []}
    data: dict[int, bytes] = {}
    byte_fallback = set()
    for token_id, text in texts.items():
        if token_id in added:
            continue
        padding = _PADDING.fullmatch(text)
        if padding and int(padding[1]) == token_id:
            continue
        if falls_back and _is_byte(text):
            data[token_id] = _fallback_byte(text)
            byte_fallback.add(token_id)
        else:
            data[token_id] = decode(text)
    for token_id, token in added.items():
        text = token["content"]
        if token["special"]:
            data[token_id] = text.encode()
        elif model.get("byte_fallback") and texts.get(token_id) == text and _is_byte(text):
            data[token_id] = _fallback_byte(text)  # a converter listed the model's own byte again
            byte_fallback.add(token_id)
        else:
            data[token_id] = _added_bytes(text, decode)
    return TokenTable(
        data=data,
        special=frozenset(token_id for token_id, token in added.items() if token["special"]),
        byte_fallback=frozenset(byte_fallback),
        added_text={token_id: token["content"] for token_id, token in added.items()},
    )


def _is_byte(text: str) -> bool:
    return len(text) == 6 and _BYTE_FALLBACK.fullmatch(text) is not None


def _fallback_byte(text: str) -> bytes:
    return bytes([int(text[3:5], 16)])


def _added_bytes(text: str, decode: Callable[[str], bytes]) -> bytes:
    """Of an added token that isn't special: what it matches in a text.

    Such a token is found before any byte becomes a character of the byte alphabet, so that its
    text is literal. Where "▁" stands for a space it does so in an added token, too.
    """
    return text.encode() if decode is _byte_level_bytes else decode(text)


def _model_vocabulary(model: dict[str, Any]) -> dict[int, str]:
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        return {token_id: text for text, token_id in vocabulary.items()}
    if isinstance(vocabulary, list):  # Unigram: [piece, score], the index is the id
        return {token_id: text for token_id, (text, _) in enumerate(vocabulary)}
    raise UnsupportedTokenizer(f"the tokenizer's model {model.get('type')} has no vocabulary")


def _decoder(decoder: dict[str, Any] | None) -> tuple[Callable[[str], bytes], bool]:
    """How one token's vocabulary string becomes bytes, and whether <0xNN> is a byte."""
    if decoder is None:
        raise UnsupportedTokenizer(
            "the tokenizer has no decoder, so that its tokens have no exact bytes"
        )
    parts = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    replacements: list[tuple[str, str]] = []
    byte_level = falls_back = False
    for part in parts:
        kind = part["type"]
        if kind == "ByteLevel":
            byte_level = True
        elif kind == "ByteFallback":
            falls_back = True
        elif kind == "Metaspace":
            replacements.append((part["replacement"], " "))
        elif kind == "Replace" and "String" in part["pattern"]:
            replacements.append((part["pattern"]["String"], part["content"]))
        elif kind not in ("Fuse", "Strip"):  # Strip trims a whole text's start, not a token
            raise UnsupportedTokenizer(
                f"tokenizers with the decoder {kind} aren't supported: their tokens have no exact "
                "bytes (supported: ByteLevel, Replace + ByteFallback + Fuse, Metaspace)",
                decoder=kind,
            )
    if byte_level:
        return _byte_level_bytes, falls_back
    if not replacements:
        kinds = " + ".join(part["type"] for part in parts)
        raise UnsupportedTokenizer(
            f"tokenizers with the decoder {kinds} alone aren't supported: spaces have no string",
            decoder=kinds,
        )

    def replace(text: str) -> bytes:
        for old, new in replacements:
            text = text.replace(old, new)
        return text.encode()

    return replace, falls_back


def _alphabet() -> dict[int, int]:
    """GPT-2's printable characters for bytes -> bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = {byte: byte for byte in printable}
    table.update({256 + rank: byte for rank, byte in enumerate(others)})
    return table


_BYTE_OF_CHARACTER = _alphabet()
# translate() to Latin-1 is some ten times faster than a loop over characters.
_TO_LATIN1 = {character: chr(byte) for character, byte in _BYTE_OF_CHARACTER.items()}
_IN_ALPHABET = re.compile("[" + "".join(map(re.escape, map(chr, _BYTE_OF_CHARACTER))) + "]*")


def _byte_level_bytes(text: str) -> bytes:
    if _IN_ALPHABET.fullmatch(text):
        return text.translate(_TO_LATIN1).encode("latin-1")
    return text.encode()  # as the decoder does: a foreign character makes the token literal
