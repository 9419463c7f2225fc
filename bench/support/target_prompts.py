"""The prompts as one target is asked them: as a conversation where it has a chat template, else as
the beginning of a text.

Knows text and the target's ids. Does not know drafts, services, models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.support.prompts import PROMPTS, Prompt
from client.client import Request
from common.types import BridgeMode
from common.vocabulary.files import TokenizerFiles
from common.vocabulary.prompts import PromptText


@dataclass(frozen=True)
class TargetPrompt:
    """One prompt, in text and in target ids; exactly one of messages and beginning is there."""

    name: str
    ids: tuple[int, ...]
    messages: tuple[tuple[str, str], ...] | None = None
    beginning: str | None = None

    def request(
        self,
        max_new_tokens: int,
        draft_steps: int,
        bridge: BridgeMode | None,
        ignore_eos: bool = False,
    ) -> Request:
        return Request(
            max_new_tokens=max_new_tokens,
            messages=self.messages,
            prompt=self.beginning,
            draft_steps=draft_steps,
            bridge=bridge,
            ignore_eos=ignore_eos,
        )


def target_prompts(
    files: TokenizerFiles, count: int, prompts: Sequence[Prompt] = PROMPTS
) -> list[TargetPrompt]:
    """The first `count` prompts; code and English take turns."""
    text = PromptText(files)
    asked = []
    for prompt in prompts[:count]:
        if files.has_chat_template:
            messages = (("user", prompt.message),)
            ids = text.render(messages)
            asked.append(TargetPrompt(prompt.name, tuple(ids), messages=messages))
        else:
            ids = text.encode(prompt.beginning)
            asked.append(TargetPrompt(prompt.name, tuple(ids), beginning=prompt.beginning))
    return asked
