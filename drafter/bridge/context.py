"""What the draft model reads: the committed text, byte for byte, in draft ids.

Knows one session's committed target ids and their translation, kept up to date at a cost that
doesn't grow with the context. Does not know what was only drafted, and every model.

The translation is `frozen ids + encode(live bytes)`. Live bytes are the end of the text, where the
next token may still change the split; once they pass LIVE_LIMIT, ids before a place where text
splits anyway are frozen.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Literal

from common.types import BridgeMode
from common.vocabulary.vocabulary import Role
from drafter.bridge.bridge import Bridge, from_a_character, unfinished

LIVE_LIMIT = 128  # bytes that may stay live before some are frozen
LIVE_KEPT = 64  # bytes that stay live: longer than what the next token can change
LIVE_FORCED = 768  # without a good place to split, freeze at any character from here on

Encoding = Literal["canonical", "token"]


class DraftContext:
    """Committed target ids in; draft ids out, or None while some byte can't be encoded.

    canonical: text between special tokens is split as the draft tokenizer splits it. token: a
    target token that maps to a draft token becomes that one; only others go through their bytes.
    """

    def __init__(
        self,
        bridge: Bridge,
        prompt: Sequence[int],
        encoding: Encoding = "canonical",
        own_prompt: Sequence[int] | None = None,
    ) -> None:
        """own_prompt: draft ids to read instead of the prompt's."""
        self._bridge = bridge
        self._encoding = encoding
        self._target_ids = list(prompt)
        self._taken = 0  # so many of them are translated
        self._frozen: list[int] = []
        self._live = bytearray()
        self._live_ids: list[int] | None = []
        self._hopeless = False  # a byte that no later token can help to encode
        self._target_bos = frozenset(bridge.target.roles[Role.BOS])
        if own_prompt is None:
            bos = None if bridge.identity else bridge.draft.prompt_bos
            if bos is not None:  # also before a prompt whose own tokenizer adds none
                self._frozen.append(bos)
            self._catch_up()
        else:
            self._frozen = list(own_prompt)
            self._taken = len(prompt)

    def branch(self, encoding: Encoding) -> DraftContext:
        """Another context that reads the same so far, and what follows in its own encoding."""
        other = copy.copy(self)
        other._encoding = encoding
        other._target_ids, other._frozen = [*self._target_ids], [*self._frozen]
        other._live = self._live[:]
        return other

    def extend(self, target_ids: Sequence[int]) -> None:
        """Append committed target ids. They are translated when the context is asked for."""
        self._target_ids += target_ids

    def ids(self) -> list[int] | None:
        """The draft ids to be read; a fresh list."""
        self._catch_up()
        if self._hopeless or self._live_ids is None:
            return None
        return self._frozen + self._live_ids

    def healed(self) -> tuple[list[int], bytes] | None:
        """(ids, healing prefix): the text without its last space, and that space, to be drafted.

        A draft tokenizer writes a space at the head of the word that follows. Where a target token
        ends in a space (an indentation, for most), reading it as the end of the text is what the
        draft model has never seen; it then drafts another line. So the space is kept back, and the
        first draft token must begin with it ("token healing"). bytes(ids) + healing_prefix is the
        committed text. The prefix is empty where there is nothing to heal.
        """
        ids = self.ids()
        if ids is None:
            return None
        if self._encoding == "canonical" and self._live.endswith(b" ") and self._word_follows():
            before = self._bridge.draft.encode_bytes(bytes(self._live[:-1]))
            if before is not None and (self._frozen or before):
                return self._frozen + before, b" "
        return ids, b""

    def _word_follows(self) -> bool:
        """Whether the target, having written a last space, goes on with a word rather than a space.

        A target that writes spaces at the head of words splits four spaces and a word as three
        spaces, and a word with the fourth.
        """
        target, tail = self._bridge.target, from_a_character(bytes(self._live[-LIVE_KEPT:]))
        at = 0
        for token_id in target.encode_bytes(tail + b"x") or []:
            if at >= len(tail):
                break
            at += len(target.token_bytes(token_id))
        return at == len(tail)

    def tail_ids(self, count: int) -> list[int]:
        """The last `count` committed target ids, prompt included."""
        return self._target_ids[-count:] if count else []

    def _catch_up(self) -> None:
        taken, self._taken = self._taken, len(self._target_ids)
        if taken < self._taken and not self._hopeless:
            self._take(self._target_ids[taken:])

    def _take(self, target_ids: Sequence[int]) -> None:
        if self._bridge.identity:
            # A padded id has no bytes, and a narrower draft model has no row for it.
            self._frozen += [id_ for id_ in target_ids if self._bridge.to_draft(id_) is not None]
            return
        target, token_by_token = self._bridge.target, self._encoding == "token"
        for token_id in target_ids:
            if token_id in self._target_bos:
                continue  # the draft has its own at the start, if it wants one
            mapped_id = self._bridge.to_draft(token_id)
            special = target.is_special(token_id)
            if mapped_id is None or not (special or token_by_token):
                self._live += target.token_bytes(token_id)
            elif self._close(final=special):
                self._frozen.append(mapped_id)
            else:  # an unfinished character: its bytes need what follows
                self._live += target.token_bytes(token_id)
        self._settle()

    def _close(self, final: bool) -> bool:
        """Freeze all live bytes. False if they can't be encoded (yet)."""
        if not self._live:
            return True
        ids = self._bridge.draft.encode_bytes(bytes(self._live))
        if ids is None:
            self._hopeless = self._hopeless or final
            return final
        self._frozen += ids
        self._live.clear()
        return True

    def _settle(self) -> None:
        """Encode the live bytes; freeze what the future can't change."""
        live = bytes(self._live)
        self._live_ids = self._bridge.draft.encode_bytes(live)
        if self._live_ids is None:
            self._hopeless = self._hopeless or self._is_hopeless(live)
            return
        if len(live) <= LIVE_LIMIT:
            return
        lengths = [len(self._bridge.draft.token_bytes(token_id)) for token_id in self._live_ids]
        ids, at = _stable(live, lengths)
        self._frozen += self._live_ids[:ids]
        self._live_ids = self._live_ids[ids:]
        del self._live[:at]

    def _is_hopeless(self, live: bytes) -> bool:
        """Whether more than the last, unfinished character is at fault."""
        whole = live[: len(live) - unfinished(live)]
        return len(whole) > LIVE_LIMIT and self._bridge.draft.encode_bytes(whole) is None


def _stable(live: bytes, lengths: Sequence[int]) -> tuple[int, int]:
    """(ids, bytes) that may be frozen: up to the last token boundary where text splits anyway.

    Before a space that follows a word, or after a line's end: there every splitter cuts, so that
    the rest is split as it would be in one piece.
    """
    best = forced = (0, 0)
    at = 0
    for count, length in enumerate(lengths):
        if at > len(live) - LIVE_KEPT:
            break
        if at:
            before, after = live[at - 1], live[at]
            word_end = after == 0x20 and before not in b" \t\r\n"
            line_end = before == 0x0A and after not in b" \t\r\n"
            if word_end or line_end:
                best = (count, at)
            if after & 0xC0 != 0x80:  # a character starts here
                forced = (count, at)
        at += length
    return forced if best == (0, 0) and len(live) > LIVE_FORCED else best


def contexts_by_mode(
    bridge: Bridge,
    prompt: Sequence[int],
    encoding: Encoding | Literal["auto"],
    own_prompt: Sequence[int] | None,
    mode: BridgeMode = BridgeMode.AUTO,
) -> Mapping[BridgeMode, DraftContext]:
    """What each bridge mode reads. encoding "auto": text reads canonical text, intersection token

    by token, since it must also draft in the target's own tokens. Where both are there, so that a
    session may change its mode, they read the same prompt: it isn't read again then
    (docs/decisions/bridge.md has the measurements).
    """
    if bridge.identity:
        encoding = "canonical"
    elif encoding == "auto" and mode is not BridgeMode.AUTO:
        encoding = "token" if mode is BridgeMode.INTERSECTION else "canonical"
    if encoding != "auto":
        one = DraftContext(bridge, prompt, encoding, own_prompt)
        return {BridgeMode.TEXT: one, BridgeMode.INTERSECTION: one}
    text = DraftContext(bridge, prompt, "canonical", own_prompt)
    return {BridgeMode.TEXT: text, BridgeMode.INTERSECTION: text.branch("token")}
