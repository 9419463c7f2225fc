"""Prompts and chats -> ids, exactly as a user of transformers gets them.

Knows transformers' own tokenizer class, made from the files alone (no remote code, no network); it
may differ from tokenizer.json (Qwen2's class adds NFC where a converted file lacks it).
Does not know bytes and bridges, nor what is in a conversation (common/vocabulary/chats.py).
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Sequence, Set
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from common.causes import refusing
from common.errors import InvalidField, UnsupportedTokenizer
from common.vocabulary.chat_template import ChatTemplate, FrozenClock, Turn
from common.vocabulary.chats import Chats
from common.vocabulary.files import TokenizerFiles
from common.vocabulary.markup import Markup

_PROBE = "Hello, world: 1"  # any text


def _unencodable(what: str) -> InvalidField:
    return InvalidField("prompt", what, "a text that the tokenizer can encode")


class PromptText:
    """Loads transformers' tokenizer on first use (up to 3 s for 262,144 tokens)."""

    def __init__(self, files: TokenizerFiles, special_ids: Set[int] = frozenset()) -> None:
        """special_ids: added tokens that are special whatever their flag."""
        self._files = files
        self._special_ids = special_ids
        # Requests come from several threads; the first one loads.
        self._lock = threading.Lock()

    def encode(self, text: str) -> list[int]:
        """The prompt's ids, with whatever the tokenizer adds (<bos>). Raises InvalidField."""
        with self._lock, refusing(_unencodable, "refused by the tokenizer"):
            return list(self._tokenizer(text)["input_ids"])

    def render(
        self, messages: Sequence[Turn], clock: FrozenClock | None = None, trusted: bool = False
    ) -> list[int]:
        """The chat's ids, ending where the assistant's answer begins.

        clock: what templates read; None is now. trusted: messages may hold special tokens.
        """
        if not self._files.has_chat_template:
            raise InvalidField("chat", "given", "left out: the model has no chat template")
        clock = clock or FrozenClock(time.time_ns() // 1000)
        with self._lock:
            return self._chats.encode(messages, clock, trusted)

    @cached_property
    def _chats(self) -> Chats:
        markup = Markup(self._tokenizer, self._special_ids)
        return Chats(ChatTemplate(self._tokenizer), markup)

    @cached_property
    def _tokenizer(self) -> Any:
        with refusing(UnsupportedTokenizer, "transformers can't load the tokenizer"):
            loaded = self._load()
            loaded(_PROBE)  # a class may load what it can't use
        return loaded

    def _load(self) -> Any:
        from transformers import AutoTokenizer, PreTrainedTokenizerFast

        with tempfile.TemporaryDirectory(prefix="tokenizer-") as folder:
            for name, data in self._files.files.items():
                (Path(folder) / name).write_bytes(data)
            if self._files.config().get("tokenizer_class"):
                with suppress(ValueError, ImportError):  # a class that isn't installed, or remote
                    return AutoTokenizer.from_pretrained(
                        folder, local_files_only=True, trust_remote_code=False
                    )
            return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
