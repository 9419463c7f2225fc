"""The map between the draft's ids and the target's, by exact bytes and by role.

Knows which draft ids map to a target token, and the other way round. Does not know text,
contexts and proposals (drafter/bridge/context.py, drafter/bridge/proposer.py use it), and any
model.
"""

from __future__ import annotations

import hashlib
from functools import cached_property

import torch

from common.vocabulary.vocabulary import Role, Vocabulary

NO_TARGET_ID = 1 << 31  # vocabularies are smaller
# Which of the other side's roles a role may become, best first. BOS and PAD are nobody's proposal.
_PARTNERS: dict[Role, tuple[Role, ...]] = {
    Role.END_OF_TEXT: (Role.END_OF_TEXT, Role.END_OF_TURN),
    Role.END_OF_TURN: (Role.END_OF_TURN, Role.END_OF_TEXT),
    Role.START_OF_TURN: (Role.START_OF_TURN,),
}


class Bridge:
    """Both directions of one pair's map. Ids that aren't mapped: not `shared`; to_draft is None.

    identity: the tokenizers are the same; nothing needs masking but padded ids.
    """

    def __init__(self, target: Vocabulary, draft: Vocabulary) -> None:
        self.target = target
        self.draft = draft
        self.identity = target.same_ids(draft)
        to_target = _mapped_ids(draft, target, self.identity)
        to_draft = _mapped_ids(target, draft, self.identity)
        self._to_draft = to_draft
        self.to_target: torch.Tensor = torch.zeros(draft.width, dtype=torch.long)  # [draft.width]
        self.shared: torch.Tensor = torch.zeros(draft.width, dtype=torch.bool)  # [draft.width]
        ids = torch.tensor(list(to_target), dtype=torch.long)
        self.to_target[ids] = torch.tensor(list(to_target.values()), dtype=torch.long)
        self.shared[ids] = True
        self.draft_real: torch.Tensor = torch.from_numpy(draft.real.copy())  # [draft.width]
        self._to_target = to_target
        self._mapped_in_order = self.to_target[self.shared].sort()
        self._shared_ids = self.shared.nonzero().squeeze(1)
        # The noise that a coupled draft token is sampled with: that of its mapped token. Ids
        # mapped to no token have noise that no target id has.
        self.draft_ids = torch.arange(draft.width)  # int64 [draft.width]: each id its own
        alone = self.draft_ids + NO_TARGET_ID
        self.noise_ids = torch.where(self.shared, self.to_target, alone)  # int64 [draft.width]
        # Draft tokens that begin with a space. Asking sorts the draft's tokens: once, at start.
        self.draft_spaced = torch.zeros(draft.width, dtype=torch.bool)  # [draft.width]
        self.draft_spaced[torch.from_numpy(draft.starting_with(b" "))] = True
        self.noise_ids_after_space = self._noise_ids_after_space(alone)  # int64 [draft.width]
        self._draft_extensions: dict[int, torch.Tensor] = {}
        if not self.identity:  # slow when first asked for: pay at start, not in a request
            _ = draft.prompt_bos, self.whole_character_starts

    def draft_extensions(self, draft_id: int) -> torch.Tensor:
        """int64 [n]: longer plain draft tokens that begin with this one's bytes."""
        found = self._draft_extensions.get(draft_id)
        if found is None:
            found = self._draft_extensions[draft_id] = self._extensions(draft_id)
        return found

    def _extensions(self, draft_id: int) -> torch.Tensor:
        prefix = self.draft.token_bytes(draft_id)
        if self.draft.is_special(draft_id) or not prefix:
            return torch.empty(0, dtype=torch.int64)
        longer = self.draft.starting_with(prefix)
        return torch.from_numpy(longer[longer != self.draft.id_of(prefix)].copy())

    def _noise_ids_after_space(self, alone: torch.Tensor) -> torch.Tensor:
        """noise_ids where a draft token's leading space is committed already: of what remains."""
        if self.identity:
            return self.noise_ids
        noise = alone.clone()
        for draft_id in self.draft_spaced.nonzero().squeeze(1).tolist():
            rest = self.target.id_of(self.draft.token_bytes(draft_id)[1:])
            if rest is not None:
                noise[draft_id] = rest
        return noise

    @property
    def shared_count(self) -> int:
        """Draft ids that map to a target token."""
        return len(self._to_target)

    @cached_property
    def sha256(self) -> str:
        """Of the map from draft to target ids, in id order."""
        pairs = sorted(self._to_target.items())
        return hashlib.sha256("\n".join(f"{a} {b}" for a, b in pairs).encode()).hexdigest()

    @cached_property
    def whole_character_starts(self) -> frozenset[bytes]:
        """Proper prefixes of characters that the target has whole tokens for.

        After such a prefix the target would most likely not have split the character.
        """
        starts = set()
        for token_id in self.target.real.nonzero()[0]:
            if int(token_id) in self.target.special_ids:
                continue
            data = self.target.token_bytes(int(token_id)).lstrip(b" ")
            width = character_width(data[0]) if data else 1
            if 1 < width <= len(data):
                starts |= {data[:length] for length in range(1, width)}
        return frozenset(starts)

    def to_draft(self, target_id: int) -> int | None:
        """The draft token that a target id maps to."""
        return self._to_draft.get(target_id)

    def draft_ids_of(self, target_ids: torch.Tensor) -> torch.Tensor:
        """int64: every draft id that maps to one of target_ids (int64 [n]), one by one.

        Vocabulary strings may differ where bytes don't (byte fallback), so that one id can have
        several.
        """
        order, indices = self._mapped_in_order
        first = torch.searchsorted(order, target_ids)
        counts = torch.searchsorted(order, target_ids, right=True) - first
        within = torch.arange(int(counts.sum())) - (counts.cumsum(0) - counts).repeat_interleave(
            counts
        )
        return self._shared_ids[indices[first.repeat_interleave(counts) + within]]

    def mapped_id(self, draft_id: int) -> int | None:
        """The target token that a draft id maps to."""
        return self._to_target.get(draft_id)


def character_width(lead: int) -> int:
    """Bytes of the character that starts with byte `lead`; 1 for what starts none."""
    if lead < 0xC0 or lead >= 0xF8:
        return 1
    return 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


def from_a_character(data: bytes) -> bytes:
    """`data` from where its first whole character starts: a tail of text may begin inside one."""
    skip = 0
    while skip < len(data) and data[skip] & 0xC0 == 0x80:
        skip += 1
    return data[skip:]


def unfinished(data: bytes) -> int:
    """How many bytes at the end are the start of a character that isn't whole."""
    for length in range(1, min(3, len(data)) + 1):
        lead = data[-length]
        if lead & 0xC0 != 0x80:
            return length if length < character_width(lead) else 0
    return 0


def _mapped_ids(source: Vocabulary, other: Vocabulary, identity: bool) -> dict[int, int]:
    """source id -> other id."""
    real = [int(token_id) for token_id in source.real.nonzero()[0]]
    if identity:
        return {id_: id_ for id_ in real if id_ < other.width and other.real[id_]}
    mapped_ids = {}
    for token_id in real:
        if token_id not in source.special_ids:
            mapped_id = other.id_of(source.token_bytes(token_id))
            if mapped_id is not None:
                mapped_ids[token_id] = mapped_id
    for role, partners in _PARTNERS.items():
        found = [id_ for partner in partners for id_ in other.roles[partner] if id_ < other.width]
        if found:
            mapped_ids |= {id_: found[0] for id_ in source.roles[role] if id_ < source.width}
    return mapped_ids
