"""A chat's text -> ids, with special tokens made of the template's own words alone.

Knows which tokens are markup, and how to encode text in which some of their strings mean nothing.
Does not know turns, nor who wrote which part of a text (common/vocabulary/chats.py finds that out).
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tokenizers import AddedToken, Tokenizer, models

from common.errors import UnsupportedTokenizer
from common.vocabulary.plain_text import without_special

# Added tokens of chat templates that aren't flagged special: DeepSeek's <｜User｜>, Qwen's
# <tool_call>. Words and line breaks may be added tokens as well; they are no markup.
_BRACKETED = re.compile(r"[<\[]\S*[>\]]")
_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
# Planes 15 and 16 are private: no tokenizer and no normalizer has a use for them.
_FIRST_PRIVATE = 0xF0000
_DIGITS = 1 << 15
_NONCE = range(0x100000, 0x10FFFE)


@dataclass(frozen=True)
class Mark:
    """One markup token in a text, by characters."""

    token_id: int
    begin: int
    end: int


class Markup:
    """The markup of transformers' `tokenizer`; `special_ids` are markup whatever their flag."""

    def __init__(self, tokenizer: Any, special_ids: Set[int] = frozenset()) -> None:
        self._tokenizer = tokenizer
        added: dict[int, Any] = tokenizer.added_tokens_decoder
        special = {i for i, token in added.items() if token.special or i in special_ids}
        # Always markup; and markup only where the template writes it.
        self.special_ids: frozenset[int] = frozenset(special)
        self._content: dict[int, str] = {
            token_id: token.content
            for token_id, token in added.items()
            if token_id in special
            or (_BRACKETED.fullmatch(token.content) and not _BYTE.fullmatch(token.content))
        }
        first = sorted({content[0] for content in self._content.values()})
        # Without these characters, no text is markup.
        self.beginnings = re.compile(f"[{re.escape(''.join(first))}]" if first else "(?!)")
        self._finder = Tokenizer(models.BPE())  # no pieces: it finds added tokens only, and fast
        self._finder.add_tokens(
            [
                AddedToken(token.content, normalized=False, single_word=token.single_word)
                for token_id, token in added.items()
                if token_id in self._content
            ]
        )
        self._found_id = {
            self._finder.token_to_id(content): token_id
            for token_id, content in self._content.items()
        }

    def find(self, text: str) -> list[Mark]:
        """All markup in `text`, whoever wrote it."""
        found = self._finder.encode(text, add_special_tokens=False)
        return [
            Mark(self._found_id[got], *offsets)
            for got, offsets in zip(found.ids, found.offsets, strict=True)
        ]

    def encode(self, text: str) -> list[int]:
        """As the tokenizer does: every special token's string is that token."""
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def encode_marked(self, text: str, marks: Sequence[Mark], markup: Set[int]) -> list[int]:
        """Of the ids in `markup` only those at `marks`; the rest as the tokenizer does."""
        ids = self.encode(text)
        # Characters that the vocabulary lacks become <unk>, which is nobody's markup.
        counted = markup - {self._tokenizer.unk_token_id}
        if [mark for mark in self.find(text) if mark.token_id in markup] == list(marks) and [
            token_id for token_id in ids if token_id in counted
        ] == [mark.token_id for mark in marks if mark.token_id in counted]:
            return ids
        return self._encode_apart(text, marks, markup)

    def _encode_apart(self, text: str, marks: Sequence[Mark], markup: Set[int]) -> list[int]:
        pieces, at = [], 0
        for mark in marks:
            pieces += [self._renamed(text[at : mark.begin], markup), self._names[mark.token_id]]
            at = mark.end
        pieces.append(self._renamed(text[at:], markup))
        found = self._marked_tokenizer.encode("".join(pieces), add_special_tokens=False).ids
        return [self._renumbered.get(token_id, token_id) for token_id in found]

    def _renamed(self, text: str, markup: Set[int]) -> str:
        """`text` for the marked tokenizer: what may be a token has that token's name."""
        pieces, at = [], 0
        for mark in self.find(text):
            if mark.token_id not in markup:
                pieces += [text[at : mark.begin], self._names[mark.token_id]]
                at = mark.end
        return "".join([*pieces, text[at:]])

    @cached_property
    def _names(self) -> dict[int, str]:
        """Strings that no text can hold: whoever writes it would have to guess 64 bits."""
        nonce = "".join(chr(secrets.choice(_NONCE)) for _ in range(4))
        return {
            token_id: nonce
            + chr(_FIRST_PRIVATE + rank // _DIGITS)
            + chr(_FIRST_PRIVATE + rank % _DIGITS)
            for rank, token_id in enumerate(self._content)
        }

    @cached_property
    def _marked_tokenizer(self) -> Tokenizer:
        """The same tokenizer with its markup under these names. Made for the first such text."""
        parsed = json.loads(self._tokenizer.backend_tokenizer.to_str())
        names = {text: self._names[token_id] for token_id, text in self._content.items()}
        try:
            return Tokenizer.from_str(json.dumps(_rename(parsed, names), ensure_ascii=False))
        except Exception as cause:  # the Rust side raises bare Exception
            raise UnsupportedTokenizer(
                f"the tokenizer's markup can't be renamed: {cause}"
            ) from cause

    @cached_property
    def _renumbered(self) -> dict[int, int]:
        """An added token outside the model's vocabulary may get a fresh id when loaded."""
        found = {i: self._marked_tokenizer.token_to_id(name) for i, name in self._names.items()}
        return {got: i for i, got in found.items() if got is not None and got != i}


def _rename(tokenizer: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """tokenizer.json with other strings for these tokens; edits it."""
    model = tokenizer["model"]
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(text, text): token_id for text, token_id in vocabulary.items()}
        if model.get("merges"):
            model["merges"] = without_special(model["merges"], names.keys())
    else:  # Unigram: [piece, score]
        model["vocab"] = [[names.get(text, text), score] for text, score in vocabulary]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    for token in tokenizer["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    return tokenizer | {"post_processor": None, "truncation": None, "padding": None}
