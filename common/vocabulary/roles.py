"""What special tokens are for, so that two vocabularies can match them by role.

Knows roles, and the texts that models give them. Does not know what a role does to a
session (the verifier ends it, the bridge maps it).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from common.vocabulary.token_bytes import TokenTable


class Role(Enum):
    """A special token's part in a conversation."""

    BOS = "begin of sequence"
    END_OF_TEXT = "end of text"
    END_OF_TURN = "end of turn"
    START_OF_TURN = "start of turn"
    PAD = "padding"


_TEXTS: dict[Role, tuple[str, ...]] = {
    Role.BOS: ("<bos>", "<s>", "<|begin_of_text|>", "<|startoftext|>", "<｜begin▁of▁sentence｜>"),
    Role.END_OF_TEXT: (
        "<|endoftext|>",
        "<|end_of_text|>",
        "<eos>",
        "</s>",
        "<｜end▁of▁sentence｜>",
    ),
    Role.END_OF_TURN: (
        "<|im_end|>",
        "<end_of_turn>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|end_of_turn|>",
        "<turn|>",
    ),
    Role.START_OF_TURN: ("<|im_start|>", "<start_of_turn>", "<|start_header_id|>", "<|turn>"),
    Role.PAD: ("<pad>", "[PAD]", "<|pad|>", "<|finetune_right_pad_id|>"),
}
_ROLE_OF_TEXT = {text: role for role, texts in _TEXTS.items() for text in texts}


def find_roles(
    table: TokenTable, config: Mapping[str, Any], eos_ids: Iterable[int]
) -> dict[Role, tuple[int, ...]]:
    """Every role's ids. An id has one role; ids that really end a generation come first.

    A text alone counts only for a token flagged special: Gemma's "</s>" is an HTML tag. What a
    configuration calls bos or pad yields to a known text: SmolLM2's bos_token is <|im_start|>.
    """
    role_of: dict[int, Role] = {}
    for token_id in sorted(table.special):
        role = _ROLE_OF_TEXT.get(table.added_text[token_id])
        if role is not None:
            role_of[token_id] = role
    ids = {text: token_id for token_id, text in table.added_text.items()}
    ends = sorted(set(eos_ids) & set(table.data))
    configured_eos = ids.get(_content(config.get("eos_token")))
    if configured_eos is not None:
        ends.append(configured_eos)
    for token_id in ends:
        if token_id not in role_of:
            known = _ROLE_OF_TEXT.get(table.added_text.get(token_id, ""))
            known_end = known in (Role.END_OF_TEXT, Role.END_OF_TURN)
            role_of[token_id] = known if known and known_end else Role.END_OF_TEXT
    for name, role in (("bos_token", Role.BOS), ("pad_token", Role.PAD)):
        configured = ids.get(_content(config.get(name)))
        if configured is not None:
            role_of.setdefault(configured, role)
    order = [*ends, *sorted(role_of)]
    return {
        role: tuple(dict.fromkeys(token_id for token_id in order if role_of[token_id] is role))
        for role in Role
    }


def _content(token: object) -> str:
    """A token in tokenizer_config.json is a string, or an object with `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""
