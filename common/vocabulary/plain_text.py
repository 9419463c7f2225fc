"""Bytes -> ids of exactly these bytes, with nothing added and no special token matched.

Knows how to strip a tokenizer.json to a copy that only splits text; greedy matching for what isn't
text. Does not know prompts, templates and special tokens (common/vocabulary/prompts.py).
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Set
from typing import Any

from tokenizers import Tokenizer

from common.errors import UnsupportedTokenizer

# Normalizers and pre-tokenizers that drop or change characters: without them, bytes survive.
_DROPPING_SPLITTERS = ("WhitespaceSplit", "Whitespace", "BertPreTokenizer", "CharDelimiterSplit")


class PlainText:
    """The canonical split of text, checked byte for byte; greedy longest match where it fails."""

    def __init__(
        self, tokenizer: dict[str, Any], plain: Mapping[int, bytes], id_of: Mapping[bytes, int]
    ) -> None:
        """`plain`: the bytes of every id that may be produced. Edits `tokenizer`."""
        self._plain = plain
        self._id_of = id_of
        special = {token["content"] for token in tokenizer["added_tokens"] if token["special"]}
        stripped = _strip(tokenizer, special)
        added = {token["content"]: token["id"] for token in stripped["added_tokens"]}
        try:
            self._tokenizer = Tokenizer.from_str(json.dumps(stripped, ensure_ascii=False))
        except Exception as cause:  # the Rust side raises bare Exception
            raise UnsupportedTokenizer(f"tokenizer.json can't be loaded: {cause}") from cause
        # An added token outside the model's vocabulary gets a fresh id when loaded: undo that.
        self._renumbered = {
            got: token_id
            for text, token_id in added.items()
            if (got := self._tokenizer.token_to_id(text)) is not None and got != token_id
        }
        # Not text, or text that the tokenizer takes for a space: by bytes. Lone bytes show up as
        # surrogates under surrogateescape.
        spaces = _space_stand_ins(tokenizer)
        self._not_text = re.compile(f"([\udc80-\udcff{re.escape(spaces)}]+)")
        lengths: dict[int, set[int]] = defaultdict(set)
        for data in id_of:
            lengths[data[0]].add(len(data))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}

    def encode(self, data: bytes) -> list[int] | None:
        """Ids whose bytes are `data`, or None if the vocabulary lacks a needed byte."""
        ids: list[int] = []
        for rank, text in enumerate(
            self._not_text.split(data.decode("utf-8", "surrogateescape")) if data else ()
        ):
            if text:
                encoded = text.encode("utf-8", "surrogateescape")
                found = self._canonical(text, encoded) if rank % 2 == 0 else None
                if found is None:
                    found = self._greedy(encoded)
                if found is None:  # a token may span text and the rest, such as " \xe4\xb8"
                    return self._greedy(data)
                ids += found
        return ids

    def _canonical(self, text: str, data: bytes) -> list[int] | None:
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        if self._renumbered:
            ids = [self._renumbered.get(token_id, token_id) for token_id in ids]
        plain = self._plain
        return ids if b"".join([plain.get(token_id, b"") for token_id in ids]) == data else None

    def _greedy(self, data: bytes) -> list[int] | None:
        """Longest match from the left that doesn't run into a dead end."""
        size = len(data)
        ends: list[int] = [0] * size + [size]  # where the token that starts here ends; 0: nowhere
        for start in range(size - 1, -1, -1):
            for length in self._lengths.get(data[start], ()):
                end = start + length
                if end <= size and ends[end] and data[start:end] in self._id_of:
                    ends[start] = end
                    break
        if size and not ends[0]:
            return None
        ids = []
        start = 0
        while start < size:
            ids.append(self._id_of[data[start : ends[start]]])
            start = ends[start]
        return ids


def _space_stand_ins(tokenizer: dict[str, Any]) -> str:
    """Characters that the decoder turns into something else ("▁" into a space)."""
    decoder = tokenizer["decoder"]
    parts = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    found = [part["replacement"] for part in parts if part["type"] == "Metaspace"]
    found += [part["pattern"]["String"] for part in parts if part["type"] == "Replace"]
    return "".join(text for text in found if len(text) == 1)


def _strip(tokenizer: dict[str, Any], special: set[str]) -> dict[str, Any]:
    model = tokenizer["model"]
    if "dropout" in model:
        model["dropout"] = None
    vocabulary = model["vocab"]
    kept = [token for token in tokenizer["added_tokens"] if not token["special"]]
    if isinstance(vocabulary, dict):
        # Renamed rather than removed: the count of entries sets the ids of added tokens.
        for text in special & vocabulary.keys():
            token_id = vocabulary.pop(text)
            vocabulary[f"\ue000special{token_id}"] = token_id
        for token in kept:
            vocabulary.setdefault(token["content"], token["id"])
        merges = model.get("merges")
        if merges:
            model["merges"] = without_special(merges, special)
    else:
        for token_id, (text, score) in enumerate(vocabulary):
            if text in special:
                vocabulary[token_id] = [f"\ue000special{token_id}", score]
    for token in kept:
        token.update(lstrip=False, rstrip=False)
    return {
        "version": tokenizer.get("version", "1.0"),
        "truncation": None,
        "padding": None,
        "added_tokens": kept,
        "normalizer": _strip_normalizer(tokenizer.get("normalizer")),
        "pre_tokenizer": _strip_splitter(tokenizer.get("pre_tokenizer")),
        "post_processor": None,
        "decoder": tokenizer["decoder"],
        "model": model,
    }


def without_special(merges: list[Any], special: Set[str]) -> list[Any]:
    """Merges that neither make nor use a special token's text."""
    if isinstance(merges[0], str):
        merges = [merge.split(" ", 1) for merge in merges]
    touching = {
        rank
        for rank, (left, right) in enumerate(merges)
        if left + right in special or left in special or right in special
    }
    if not touching:  # as good as always: don't copy half a million pairs
        return merges
    return [merge for rank, merge in enumerate(merges) if rank not in touching]


def _strip_normalizer(normalizer: dict[str, Any] | None) -> dict[str, Any] | None:
    """Only the replacement of spaces stays."""
    if normalizer is None:
        return None
    if normalizer["type"] == "Sequence":
        kept = [_strip_normalizer(part) for part in normalizer["normalizers"]]
        return {"type": "Sequence", "normalizers": [part for part in kept if part is not None]}
    if normalizer["type"] == "Replace" and normalizer["pattern"].get("String") == " ":
        return normalizer
    return None


def _strip_splitter(splitter: dict[str, Any] | None) -> dict[str, Any] | None:
    """Splits stay; nothing is added at the start, nothing dropped."""
    if splitter is None or splitter["type"] in _DROPPING_SPLITTERS:
        return None
    if splitter["type"] == "Sequence":
        kept = [_strip_splitter(part) for part in splitter["pretokenizers"]]
        return {"type": "Sequence", "pretokenizers": [part for part in kept if part is not None]}
    if splitter["type"] == "Metaspace":
        changed = {"type": "Metaspace", "replacement": splitter["replacement"]}
        return changed | {"prepend_scheme": "never", "split": splitter.get("split", True)}
    if splitter["type"] == "ByteLevel":
        return splitter | {"add_prefix_space": False}
    if splitter.get("behavior") == "Removed":
        return splitter | {"behavior": "Isolated"}
    return splitter
