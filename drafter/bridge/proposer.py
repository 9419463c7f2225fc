"""Drafted draft ids -> proposed target ids, and the choice between the two ways.

Knows the 1:1 map (intersection), re-tokenising drafted text (text), and which of them pays.
Does not know how tokens are drafted, and what the target thinks of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from common.types import BridgeMode
from common.vocabulary.vocabulary import Vocabulary
from drafter.bridge.bridge import Bridge, from_a_character, unfinished

MODES = (BridgeMode.TEXT, BridgeMode.INTERSECTION)  # the first one wins a tie


def by_intersection(bridge: Bridge, draft_ids: Sequence[int]) -> list[int]:
    """What each id maps to, up to the first that maps to nothing."""
    proposed: list[int] = []
    for draft_id in draft_ids:
        mapped_id = bridge.mapped_id(draft_id)
        if mapped_id is None:
            break
        proposed.append(mapped_id)
    return proposed


def by_text(
    bridge: Bridge, tail: Sequence[int], draft_ids: Sequence[int], healing_prefix: bytes = b""
) -> list[int]:
    """The drafted text as the target would split it after `tail`, the last committed target ids.

    `healing_prefix`: what the drafted text begins with that is committed already
    (DraftContext.healed). A special token ends the text; what it maps to by role, if anything, is
    proposed after it.
    """
    if bridge.identity:
        return by_intersection(bridge, draft_ids)
    special = next((id_ for id_ in draft_ids if bridge.draft.is_special(id_)), None)
    text_ids = draft_ids if special is None else draft_ids[: list(draft_ids).index(special)]
    data = bridge.draft.bytes_of(text_ids)
    if not data.startswith(healing_prefix):
        return []
    data = data[len(healing_prefix) :]
    before = _text_before(bridge.target, tail)
    if special is None:
        return _split_open(bridge, before, data)
    mapped_id = bridge.mapped_id(special)
    proposed = _split(bridge.target, before, data)
    return proposed if mapped_id is None or (data and not proposed) else [*proposed, mapped_id]


def _text_before(target: Vocabulary, tail: Sequence[int]) -> bytes:
    """The tail's bytes, from behind its last special token, from where a character starts."""
    start = len(tail)
    while start and not target.is_special(tail[start - 1]):
        start -= 1
    return from_a_character(target.bytes_of(tail[start:]))


def _split(target: Vocabulary, before: bytes, data: bytes) -> list[int]:
    """The ids of `data` in the split of `before + data`; of `data` alone if that split has no
    boundary between them (the committed ids are what they are); none without such tokens."""
    if not data:
        return []
    at = 0
    for rank, token_id in enumerate(ids := target.encode_bytes(before + data) or []):
        if at == len(before):
            return ids[rank:]
        at += len(target.token_bytes(token_id))
    return target.encode_bytes(data) or []


def _split_open(bridge: Bridge, before: bytes, data: bytes) -> list[int]:
    """_split, where drafting stopped in mid-text, perhaps in mid-character."""
    target = bridge.target
    open_bytes = unfinished(before + data)
    if not open_bytes:
        return _split(target, before, data)
    if open_bytes >= len(data):  # the committed text has begun the character: bytes it is,
        if open_bytes > len(data) or data not in bridge.whole_character_starts:
            return target.encode_bytes(data) or []
        return []
    whole, start = data[:-open_bytes], data[-open_bytes:]
    if start in bridge.whole_character_starts:  # likely one token with the rest, which isn't known
        return _split(target, before, whole)
    spaced = target.id_of(b" " + start) if whole.endswith(b" ") else None
    if spaced is not None:  # byte-level vocabularies merge the space with the first bytes
        return [*_split(target, before, whole[:-1]), spaced]
    return _split(target, before, whole) + (target.encode_bytes(start) or [])


@dataclass
class ModeStats:
    """What one mode brought: rounds, committed tokens, cost (in target decode steps)."""

    rounds: float = 0.0
    committed: float = 0.0
    cost: float = 0.0

    def add(self, committed: int, cost: float, keep: float = 1.0) -> None:
        """One round more; what was there counts `keep` as much."""
        self.rounds = self.rounds * keep + 1
        self.committed = self.committed * keep + committed
        self.cost = self.cost * keep + cost


def _fresh() -> dict[BridgeMode, ModeStats]:
    return {mode: ModeStats() for mode in MODES}


@dataclass
class SessionStats:
    """One session's share in the measurement."""

    modes: dict[BridgeMode, ModeStats] = field(default_factory=_fresh)

    @property
    def rounds(self) -> int:
        """Rounds recorded for this session."""
        return round(sum(stats.rounds for stats in self.modes.values()))


class AutoChooser:
    """Which mode commits more per unit of cost: 1 + step_cost * draft steps + row_cost * rows.

    The pair learns for all sessions: until each mode has LEARNED rounds, modes take turns. After
    that a session starts with the pair's better mode, tries the other for one round if the two are
    close, and follows its own rounds as they outweigh the prior. Deterministic.
    """

    LEARNED = 8  # rounds per mode after which the pair is known
    PRIOR = 8  # rounds that the pair's rate weighs in a session's estimate
    CLOSE = 0.9  # a mode this near the better one is worth a session's round
    TRY_AT = 4  # the session's round in which it is tried
    KEEP = 0.995  # how the pair forgets, so that it follows a changing load

    def __init__(self, step_cost: float, row_cost: float) -> None:
        self._step_cost = step_cost
        self._row_cost = row_cost
        self.pair: dict[BridgeMode, ModeStats] = _fresh()

    @cached_property
    def sampled(self) -> AutoChooser:
        """The chooser of sessions at a temperature, where either mode has fewer accepted drafts."""
        return AutoChooser(self._step_cost, self._row_cost)

    def choose(self, session: SessionStats) -> BridgeMode:
        """The mode for this session's next round: TEXT or INTERSECTION."""
        seen = {mode: self.pair[mode].rounds for mode in MODES}
        rarest = min(MODES, key=lambda mode: seen[mode])
        if seen[rarest] < self.LEARNED:
            return rarest
        rates = {mode: self._rate(mode, session) for mode in MODES}
        best = max(MODES, key=lambda mode: rates[mode])
        other = next(mode for mode in MODES if mode is not best)
        untried = session.modes[other].rounds == 0 and session.rounds >= self.TRY_AT
        if untried and rates[other] >= self.CLOSE * rates[best]:
            return other
        return best

    def record(
        self,
        mode: BridgeMode,
        committed: int,
        draft_steps: int,
        rows: int,
        session: SessionStats | None = None,
        shared: bool = True,
    ) -> None:
        """One round: tokens it committed (next token included), draft steps, proposed rows.

        shared: whether other sessions may learn from it.
        """
        cost = 1 + self._step_cost * draft_steps + self._row_cost * rows
        if shared:
            self.pair[mode].add(committed, cost, self.KEEP)
        if session is not None:
            session.modes[mode].add(committed, cost)

    def _rate(self, mode: BridgeMode, session: SessionStats) -> float:
        pair, own = self.pair[mode], session.modes[mode]
        weight = self.PRIOR / pair.rounds
        return (own.committed + weight * pair.committed) / (own.cost + weight * pair.cost)
