"""Prompts and chats -> ids, exactly as a user of transformers gets them.

Knows transformers' own tokenizer class, made from the files alone (no remote code, no network); it
may differ from tokenizer.json (Qwen2's class adds NFC where a converted file lacks it).
Does not know bytes and bridges.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from common.causes import refusing
from common.errors import InvalidField, UnsupportedTokenizer
from common.vocabulary.files import TokenizerFiles

_PROBE = "Hello, world: 1"  # any text


def _unencodable(what: str) -> InvalidField:
    return InvalidField("prompt", what, "a text that the tokenizer can encode")


class PromptText:
    """Loads transformers' tokenizer on first use (up to 3 s for 262,144 tokens)."""

    def __init__(self, files: TokenizerFiles) -> None:
        self._files = files
        self._loaded: Any = None
        # Requests come from several threads; the first one loads.
        self._lock = threading.Lock()

    def encode(self, text: str) -> list[int]:
        """The prompt's ids, with whatever the tokenizer adds (<bos>). Raises InvalidField."""
        with self._lock, refusing(_unencodable, "refused by the tokenizer"):
            return list(self._tokenizer()(text)["input_ids"])

    def render(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """The chat's ids, ending where the assistant's answer begins."""
        if not self._files.has_chat_template:
            raise InvalidField("chat", "given", "left out: the model has no chat template")
        turns = [{"role": role, "content": content} for role, content in messages]
        try:
            with self._lock:
                ids = self._tokenizer().apply_chat_template(
                    turns, tokenize=True, add_generation_prompt=True, return_dict=False
                )
        except Exception as cause:  # templates raise what they like: jinja2, TypeError, IndexError
            raise InvalidField(
                "chat",
                f"refused by the chat template ({cause or type(cause).__name__})",
                "a conversation that the template can render",
            ) from cause
        return list(ids)

    def _tokenizer(self) -> Any:
        if self._loaded is None:
            with refusing(UnsupportedTokenizer, "transformers can't load the tokenizer"):
                loaded = self._load()
                loaded(_PROBE)  # a class may load what it can't use
            self._loaded = loaded
        return self._loaded

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
