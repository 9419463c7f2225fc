"""One vocabulary: ids, exact bytes, roles, and both ways from text to ids.

Knows what each id of one model stands for. Does not know any other model's vocabulary
(drafter/bridge/bridge.py), how bytes stream to a client (drafter/generate/detokenize.py), torch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from common.causes import refusing
from common.errors import UnsupportedTokenizer
from common.vocabulary.files import TokenizerFiles
from common.vocabulary.plain_text import PlainText
from common.vocabulary.prompts import PromptText
from common.vocabulary.roles import Role, find_roles
from common.vocabulary.token_bytes import read_tokens

__all__ = ["Role", "TokenizerFiles", "Vocabulary"]


class Vocabulary:
    """A tokenizer under a model whose logits are `width` wide."""

    def __init__(self, files: TokenizerFiles, width: int, eos_ids: Iterable[int]) -> None:
        """Raises UnsupportedTokenizer."""
        with refusing(UnsupportedTokenizer, "tokenizer.json isn't what a tokenizer is made of"):
            self._read(files, width, frozenset(eos_ids))

    def _read(self, files: TokenizerFiles, width: int, given: frozenset[int]) -> None:
        parsed = files.tokenizer()
        parsed["added_tokens"] = parsed.get("added_tokens") or []
        table = read_tokens(parsed)
        self.files = files
        self.width = width
        self.roles: Mapping[Role, tuple[int, ...]] = MappingProxyType(
            find_roles(table, files.config(), given)
        )
        self.eos_ids: frozenset[int] = given.union(
            self.roles[Role.END_OF_TEXT], self.roles[Role.END_OF_TURN]
        )
        # A token with a role is never plain text, whatever its flag says.
        self.special_ids: frozenset[int] = table.special.union(*self.roles.values())
        self.byte_fallback_ids: frozenset[int] = table.byte_fallback
        self._bytes = table.data
        self.real: NDArray[np.bool_] = np.zeros(width, dtype=np.bool_)  # [width]
        self.real[[token_id for token_id in table.data if token_id < width]] = True
        # Width means nothing to a tokenizer, but an id that the model can't produce or read is
        # none of ours (multimodal markers behind the text model's last row).
        plain = {
            token_id: data
            for token_id, data in table.data.items()
            if token_id < width and token_id not in self.special_ids
        }
        self._id_of: dict[bytes, int] = {}
        for token_id in sorted(plain, key=lambda id_: (id_ not in table.byte_fallback, -id_)):
            self._id_of[plain[token_id]] = token_id  # the last one to be written wins
        self._id_of.pop(b"", None)
        # Roles are flags to the stripped copy too, so that their text matches nothing.
        for token in parsed["added_tokens"]:
            token["special"] = token["special"] or token["id"] in self.special_ids
        self._plain_text = PlainText(parsed, plain, self._id_of)
        self._prompt_text = PromptText(files)

    # id -> bytes

    def token_bytes(self, token_id: int) -> bytes:
        """Exact bytes of an id; none for a padded one."""
        return self._bytes.get(token_id, b"")

    def bytes_of(self, ids: Iterable[int]) -> bytes:
        """The bytes of `ids`, joined."""
        return b"".join([self._bytes.get(token_id, b"") for token_id in ids])

    def is_special(self, token_id: int) -> bool:
        """Whether the id is markup rather than text."""
        return token_id in self.special_ids

    def same_ids(self, other: Vocabulary) -> bool:
        """Whether every id has the same bytes, padding aside."""
        return self.files.sha256 == other.files.sha256 or (
            self._bytes == other._bytes and self.special_ids == other.special_ids
        )

    # bytes -> ids

    def id_of(self, data: bytes) -> int | None:
        """The one plain token with these bytes: the lowest id, byte-fallback tokens last."""
        return self._id_of.get(data)

    def starting_with(self, prefix: bytes) -> NDArray[np.int64]:
        """The plain ids whose bytes begin with `prefix` (not empty), in order of their bytes."""
        data, ids = self._sorted
        # Bytes compare like unsigned numbers, so that all that begin with a prefix are neighbours.
        begin = bisect_left(data, prefix)
        end = bisect_left(data, prefix + b"\xff" * self._longest)
        return ids[begin:end]

    @cached_property
    def _sorted(self) -> tuple[list[bytes], NDArray[np.int64]]:
        data = sorted(self._id_of)
        return data, np.array([self._id_of[each] for each in data], dtype=np.int64)

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._id_of), default=0)

    def encode_bytes(self, data: bytes) -> list[int] | None:
        """Plain ids whose bytes are exactly `data`, or None if the vocabulary lacks a byte."""
        return self._plain_text.encode(data)

    @cached_property
    def missing_bytes(self) -> tuple[int, ...]:
        """The bytes that no token has alone."""
        return tuple(byte for byte in range(256) if bytes([byte]) not in self._id_of)

    # prompts

    def encode_prompt(self, text: str) -> list[int]:
        """A prompt's ids as transformers gives them, with what the tokenizer adds."""
        return self._prompt_text.encode(text)

    @cached_property
    def prompt_bos(self) -> int | None:
        """The token that this tokenizer puts before every prompt, if it does."""
        first = self.encode_prompt("")[:1]
        if not first or first[0] in self.eos_ids or first[0] not in self.special_ids:
            return None
        return first[0]

    @property
    def has_chat_template(self) -> bool:
        """Whether render_chat can work at all."""
        return self.files.has_chat_template

    def render_chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """(role, content) turns by the model's own template; InvalidField if it can't."""
        return self._prompt_text.render(messages)
