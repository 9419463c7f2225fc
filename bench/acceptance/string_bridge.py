"""The ablation: tokens matched as public servers match them, by their vocabulary strings.

A leading space mark ("Ġ" or "▁") counts as a space; everything else must be the same string, so
that "Ċ" isn't "\\n", and markup is text like any other (the intersection of Timor et al., 2025,
arXiv:2502.05202, as vLLM 0.32 builds it). Takes the place of drafter/bridge/bridge.py's Bridge;
intersection only, with bench/acceptance/unk_context.py.
"""

from __future__ import annotations

import torch

from common.vocabulary.vocabulary import TokenizerFiles, Vocabulary
from drafter.bridge.bridge import Bridge

SPACES = ("Ġ", "▁")


class StringBridge(Bridge):
    """Both directions by vocabulary string; of several equal ones the lowest id."""

    def __init__(self, target: Vocabulary, draft: Vocabulary) -> None:
        super().__init__(target, draft)
        theirs, ours = vocabulary_strings(target.files), vocabulary_strings(draft.files)
        both = [
            (ours[text], theirs[text])
            for text in ours.keys() & theirs.keys()
            if ours[text] < draft.width and theirs[text] < target.width
        ]
        self._to_target = dict(both)
        self._to_draft = {their: our for our, their in both}
        self.shared = torch.zeros(draft.width, dtype=torch.bool)
        self.shared[list(self._to_target)] = True


def vocabulary_strings(files: TokenizerFiles) -> dict[str, int]:
    """Vocabulary string -> id, added tokens included."""
    parsed = files.tokenizer()
    vocabulary = parsed["model"]["vocab"]
    if isinstance(vocabulary, dict):
        ids = dict(vocabulary)
    else:  # Unigram: [string, score], by id
        ids = {text: token_id for token_id, (text, _) in enumerate(vocabulary)}
    ids |= {token["content"]: token["id"] for token in parsed.get("added_tokens") or []}
    found: dict[str, int] = {}
    for text, token_id in sorted(ids.items(), key=lambda item: item[1]):
        if text.startswith(SPACES):
            text = " " + text[1:]
        found.setdefault(text, token_id)
    return found
