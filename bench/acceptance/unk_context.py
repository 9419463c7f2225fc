"""The ablation: a draft context as public systems make it, with UNK where a token isn't mapped.

Knows which id that is. Takes the place of drafter/bridge/context.py's DraftContext; intersection
only.
"""

from __future__ import annotations

from collections.abc import Sequence

from common.vocabulary.vocabulary import Role, Vocabulary
from drafter.bridge.bridge import Bridge
from drafter.bridge.context import DraftContext


class UnkContext(DraftContext):
    """One draft id for each committed target id, whatever the bytes."""

    def __init__(self, bridge: Bridge, prompt: Sequence[int]) -> None:
        super().__init__(bridge, ())
        self._unknown = unknown_id(bridge.draft)
        self._target_ids = list(prompt)

    def extend(self, target_ids: Sequence[int]) -> None:
        self._target_ids += target_ids

    def ids(self) -> list[int]:
        mapped_ids = map(self._bridge.to_draft, self._target_ids)
        return [self._unknown if mapped_id is None else mapped_id for mapped_id in mapped_ids]


def unknown_id(draft: Vocabulary) -> int:
    """The tokenizer's unk id, or its end-of-text id where it has none."""
    model = draft.files.tokenizer()["model"]
    if isinstance(model.get("unk_id"), int):
        return int(model["unk_id"])
    for named in (model.get("unk_token"), draft.files.config().get("unk_token")):
        text = named.get("content") if isinstance(named, dict) else named
        if isinstance(text, str):
            for token_id in sorted(draft.special_ids):
                if draft.token_bytes(token_id) == text.encode():
                    return token_id
    ends = draft.roles[Role.END_OF_TEXT] or draft.roles[Role.END_OF_TURN] or (0,)
    return ends[0]
