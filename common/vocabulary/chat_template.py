"""A model's own chat template: turns -> text, the same text for the same turns and time.

Knows transformers' sandboxed environment, and what in it differs from one rendering to the next:
the clock, which is the caller's, and chance, which is refused. Does not know tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from common.errors import InvalidField

MAX_TIME_US = 253_402_300_799_999_999  # the last microsecond of the year 9999

Turn = tuple[str, str]  # role, content


@dataclass
class FrozenClock:
    """The time that templates read; it stands still, and remembers whether it was read."""

    time_us: int  # since 1970, UTC
    read: bool = field(default=False, init=False)

    def strftime_now(self, form: str) -> str:
        """In UTC, so that a stream may go on at a drafter in another time zone."""
        self.read = True
        seconds, microseconds = divmod(self.time_us, 1_000_000)
        moment = datetime.fromtimestamp(seconds, UTC).replace(microsecond=microseconds)
        return moment.replace(tzinfo=None).strftime(form)  # "%Z" is empty, as in transformers


class ChatTemplate:
    """The template of transformers' `tokenizer`."""

    def __init__(self, tokenizer: Any) -> None:
        from transformers.utils import chat_template_utils

        with _as_refusal():
            source = tokenizer.get_chat_template()
            # apply_chat_template would give the template plain data only, and so no clock. This
            # compiles it the same way; tests/vocabulary/test_chats.py compares the two.
            self._compiled = chat_template_utils._compile_jinja_template(source)
        self._compiled.environment.filters["random"] = _no_chance
        self._special = dict(tokenizer.special_tokens_map)
        # Words that it compares with, the roles among them.
        self.words: frozenset[str] = frozenset(re.findall(r"""["'](\w+)["']""", source))

    def render(self, turns: Sequence[Turn], clock: FrozenClock) -> str:
        """The text up to where the assistant's answer begins; InvalidField if it can't be."""
        with _as_refusal():
            return str(
                self._compiled.render(
                    messages=[{"role": role, "content": content} for role, content in turns],
                    tools=None,
                    documents=None,
                    add_generation_prompt=True,
                    strftime_now=clock.strftime_now,
                    lipsum=_no_chance,
                    **self._special,
                )
            )


@contextmanager
def _as_refusal() -> Iterator[None]:
    try:
        yield
    except Exception as cause:  # templates raise what they like: jinja2, TypeError, IndexError
        raise InvalidField(
            "chat",
            f"refused by the chat template ({cause or type(cause).__name__})",
            "a conversation that the template can render",
        ) from cause


def _no_chance(*_: Any, **__: Any) -> str:
    raise ValueError("it reads random numbers, so that no stream could be resumed")
