"""Conversations -> ids: every message is there, and nobody's words become markup.

Knows how to find out what a template does with a message: it renders the same messages with their
words blotted out, and compares. Does not know Jinja (common/vocabulary/chat_template.py) and how
text with marks is encoded (common/vocabulary/markup.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set
from itertools import islice

import numpy as np

from common.errors import InvalidField
from common.vocabulary.chat_template import ChatTemplate, FrozenClock, Turn
from common.vocabulary.markup import Markup

# Roles that a template may print without a word about them. Any other one is somebody's words.
_USUAL_ROLES = frozenset({"system", "user", "assistant", "tool"})
# What blots are made of: rare ideographs, which print as they are wherever letters do.
_RARE = range(0x20000, 0x2A6D7)
_WORDS = re.compile(r"\S")
_NOTHING: frozenset[int] = frozenset()
_SHOWN = 60  # characters of a role in a message


class Chats:
    """One model's conversations."""

    def __init__(self, template: ChatTemplate, markup: Markup) -> None:
        self._template = template
        self._markup = markup

    def encode(self, turns: Sequence[Turn], clock: FrozenClock, trusted: bool) -> list[int]:
        """`trusted`: special tokens' strings in the messages are markup, too."""
        text = self._template.render(turns, clock)
        blots = _blots(turns, text)
        contents = self._try(
            [(role, _blotted(content, blot)) for (role, content), blot in _zip(turns, blots)], clock
        )
        self._check_shown(turns, blots, text, contents, clock)
        if trusted:
            return self._markup.encode(text)
        special = self._markup.special_ids
        written = special | {mark.token_id for mark in self._markup.find(contents or "")}
        whole = None
        for wordless in self._without_words(turns, blots):
            blotted = self._try(wordless, clock)
            whole = blotted if whole is None else whole
            if blotted is not None and _fits(text, blotted, blots):
                return self._encode(text, blotted, written)
        # The template reads such words (Qwen3 looks for </think>), and is given them. Nobody's
        # words are a special token as long as there are none but those of the blotted text.
        own = self._ids(contents if whole is None else whole, special)
        for markup in (written, special, _NOTHING):
            partly = [
                (self._unmarked(role, blot, markup), self._unmarked(content, blot, markup))
                for (role, content), blot in _zip(turns, blots)
            ]
            blotted = self._try(partly, clock)
            fits = blotted is not None and _fits(text, blotted, blots)
            if blotted is not None and fits and self._ids(blotted, special) == own:
                return self._encode(text, blotted, markup or special)
        raise InvalidField(
            self._field(turns),
            "text in which the chat template reads special tokens, or of which it makes them",
            "without such text",
        )

    def _encode(self, text: str, blotted: str, markup: Set[int]) -> list[int]:
        """The ids of `text`, whose markup is where `blotted` has it."""
        marks = [mark for mark in self._markup.find(blotted) if mark.token_id in markup]
        return self._markup.encode_marked(text, marks, markup)

    def _ids(self, text: str | None, markup: Set[int]) -> list[int] | None:
        if text is None:
            return None
        return [mark.token_id for mark in self._markup.find(text) if mark.token_id in markup]

    def _field(self, turns: Sequence[Turn]) -> str:
        """The first that holds a special token's string."""
        held = (
            f"chat.messages[{index}].{field}"
            for index, turn in enumerate(turns)
            for field, words in zip(("role", "content"), turn, strict=True)
            if self._ids(words, self._markup.special_ids)
        )
        return next(held, "chat.messages")

    def _without_words(self, turns: Sequence[Turn], blots: str) -> Iterator[list[Turn]]:
        """The messages with all words blotted out; then only what could begin a token.

        A template may delete words (Nemotron's deletes /think), so that what is left has another
        length, and what was apart is a token.
        """
        beginnings = self._markup.beginnings
        for of_role, of_content in ((None, None), (None, beginnings), (beginnings, beginnings)):
            yield [
                (
                    role if self._known(role) else _blotted(role, blot, of_role),
                    _blotted(content, blot, of_content),
                )
                for (role, content), blot in _zip(turns, blots)
            ]

    def _check_shown(
        self,
        turns: Sequence[Turn],
        blots: str,
        text: str,
        contents: str | None,
        clock: FrozenClock,
    ) -> None:
        """A message that changes nothing in the text is refused by its role."""
        there = None if contents is None else set(contents)
        doubtful = {
            index
            for index, ((role, content), blot) in enumerate(_zip(turns, blots))
            if (
                blot not in there
                if there is not None and content.strip()
                else not self._known(role)
            )
        }
        if not doubtful:
            return
        shown = self._try(_longer(turns, blots, doubtful), clock) or ""
        index = next((each for each in sorted(doubtful) if blots[each] not in shown), None)
        if index is not None and self._try(_longer(turns, blots, {index}), clock) == text:
            role = turns[index][0]
            raise InvalidField(
                f"chat.messages[{index}].role",
                repr(role[:_SHOWN]) + "…" * (len(role) > _SHOWN),
                "one whose messages the chat template renders there",
            )

    def _known(self, role: str) -> bool:
        """Whether the template, rather than a user, gives this role its meaning."""
        return role in _USUAL_ROLES or role in self._template.words

    def _unmarked(self, words: str, blot: str, markup: Set[int]) -> str:
        """`words` with blots for what would be markup in it."""
        pieces, at = [], 0
        for mark in self._markup.find(words):
            if mark.token_id in markup:
                pieces += [words[at : mark.begin], blot * (mark.end - mark.begin)]
                at = mark.end
        return "".join([*pieces, words[at:]])

    def _try(self, turns: Sequence[Turn], clock: FrozenClock) -> str | None:
        try:
            return self._template.render(turns, clock)
        except InvalidField:  # it reads words that aren't there
            return None


def _blots(turns: Sequence[Turn], text: str) -> str:
    """A character for each message that is nowhere in them."""
    used = set(text).union(*(set(role) | set(content) for role, content in turns))
    unused = (chr(code) for code in _RARE if chr(code) not in used)
    blots = "".join(islice(unused, len(turns)))
    if len(blots) < len(turns):
        limit = f"without {len(turns)} of the ideographs from U+20000 to U+2A6D6"
        raise InvalidField("chat", "full of rare ideographs", limit)
    return blots


def _blotted(words: str, blot: str, which: re.Pattern[str] | None = None) -> str:
    """As many characters; the white space stays, so that trimming does what it did."""
    return (which or _WORDS).sub(blot, words)


def _longer(turns: Sequence[Turn], blots: str, which: Set[int]) -> list[Turn]:
    """The messages, with a blot behind some."""
    return [
        (role, content + blots[index] if index in which else content)
        for index, (role, content) in enumerate(turns)
    ]


def _zip(turns: Sequence[Turn], blots: str) -> Iterator[tuple[Turn, str]]:
    return zip(turns, blots, strict=True)


def _fits(text: str, blotted: str, blots: str) -> bool:
    """Whether the two are equal but for the blots."""
    if len(text) != len(blotted):
        return False
    ours, theirs = (
        np.frombuffer(each.encode("utf-32-le"), dtype=np.uint32) for each in (text, blotted)
    )
    return bool(np.isin(theirs[ours != theirs], [ord(blot) for blot in blots]).all())
