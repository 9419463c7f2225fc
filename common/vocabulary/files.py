"""The files a tokenizer is made of, as bytes, so that they can cross the wire unchanged.

Knows which files count, and the SHA-256 that both services compare. Does not know what is in
them (common/vocabulary/vocabulary.py reads them).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from common.causes import refusing
from common.errors import UnsupportedTokenizer


@dataclass(frozen=True)
class TokenizerFiles:
    """tokenizer.json, and the files beside it; names outside NAMES are refused."""

    NAMES: ClassVar[tuple[str, ...]] = (
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    )

    files: Mapping[str, bytes]

    def __post_init__(self) -> None:
        unknown = sorted(set(self.files) - set(self.NAMES))
        if unknown:  # these names become paths when transformers reads them: nothing else may pass
            raise UnsupportedTokenizer(f"unknown tokenizer files: {', '.join(unknown)}")
        if "tokenizer.json" not in self.files:
            raise UnsupportedTokenizer(
                "there is no tokenizer.json; convert the tokenizer to the fast format"
            )

    @classmethod
    def from_directory(cls, path: Path) -> TokenizerFiles:
        """The tokenizer files of a model directory."""
        found = {name: path / name for name in cls.NAMES if (path / name).is_file()}
        with refusing(UnsupportedTokenizer, f"the tokenizer in {path} can't be read"):
            return cls({name: file.read_bytes() for name, file in found.items()})

    @cached_property
    def sha256(self) -> str:
        """Of tokenizer.json alone: it holds the ids; templates may differ over one vocabulary."""
        return hashlib.sha256(self.files["tokenizer.json"]).hexdigest()

    @cached_property
    def chat_template_sha256(self) -> str:
        """Of the template, wherever it stands; "" if there is none."""
        own = self.files.get("chat_template.jinja")
        if own is None and self.has_chat_template:
            own = json.dumps(self.config()["chat_template"], sort_keys=True).encode()
        return "" if own is None else hashlib.sha256(own).hexdigest()

    @cached_property
    def whole_sha256(self) -> str:
        """Of tokenizer.json and its configuration, but for the template."""
        config = {key: value for key, value in self.config().items() if key != "chat_template"}
        whole = self.sha256 + json.dumps(config, sort_keys=True)
        return hashlib.sha256(whole.encode()).hexdigest()

    def tokenizer(self) -> dict[str, Any]:
        """tokenizer.json, parsed anew (the caller may edit it)."""
        parsed = self._parse("tokenizer.json")
        if not isinstance(parsed.get("model"), dict):
            raise UnsupportedTokenizer("tokenizer.json has no model")
        return parsed

    def config(self) -> dict[str, Any]:
        """tokenizer_config.json, parsed; empty when there is none."""
        return self._parse("tokenizer_config.json") if "tokenizer_config.json" in self.files else {}

    @property
    def has_chat_template(self) -> bool:
        """A template in a file of its own, or inside tokenizer_config.json."""
        return "chat_template.jinja" in self.files or bool(self.config().get("chat_template"))

    def _parse(self, name: str) -> dict[str, Any]:
        try:
            parsed = json.loads(self.files[name])
        except (ValueError, RecursionError) as cause:
            raise UnsupportedTokenizer(f"{name} isn't JSON: {cause}") from cause
        if not isinstance(parsed, dict):
            raise UnsupportedTokenizer(f"{name} isn't a JSON object")
        return parsed
