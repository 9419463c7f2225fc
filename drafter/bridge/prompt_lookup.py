"""Proposals out of the committed text itself: what followed the last tokens before.

Prompt lookup decoding (Saxena, 2023), in target ids: it needs no model and no bridge. It lengthens
what the draft model proposes, and replaces it where the target repeats itself. Knows one session's
committed target ids. Does not know how drafts are made.

Any proposal is safe, since the verifier checks it; what a wrong one costs is a row in a forward
pass. So short matches propose little, and long ones more.
"""

from __future__ import annotations

from collections.abc import Sequence

SHORTEST, LONGEST = 2, 4  # tokens that must match
SURE = 3  # tokens from which on a match may overrule the draft model
PER_MATCHED = 2  # tokens proposed for each that matched


class PromptLookup:
    """An index over committed target ids, and a record of who was right, it or the draft model."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._ids: list[int] = []
        # n-gram -> where its newest continuation begins; the newest text is the best guide
        self._following: dict[tuple[int, ...], int] = {}
        self._lead = 0  # times it was right where the draft model was wrong, less the reverse
        self._disagreed: tuple[int, int] | None = None  # (draft model's token, its own)
        self.extend(prompt)

    def extend(self, token_ids: Sequence[int]) -> None:
        """Committed ids: index what is behind them, and see who was right about the first."""
        if self._disagreed is not None and token_ids:
            drafted, looked_up = self._disagreed
            self._lead += (token_ids[0] == looked_up) - (token_ids[0] == drafted)
            self._disagreed = None
        for token_id in token_ids:
            # An n-gram is indexed once something follows it, so that it never finds itself.
            at = len(self._ids)
            for length in range(SHORTEST, min(LONGEST, at) + 1):
                self._following[tuple(self._ids[at - length :])] = at
            self._ids.append(token_id)

    def lengthen(self, proposal: Sequence[int]) -> list[int]:
        """The proposal, and behind it what the text repeats; what it holds itself stays."""
        return [*proposal, *self._continuation(proposal)[1]]

    def improve(self, proposal: Sequence[int]) -> list[int]:
        """The proposal with what the text repeats: in front instead, if surer, or behind it."""
        matched, repeated = self._continuation(())
        if matched >= SURE and repeated and repeated[:1] != list(proposal[:1]):
            if proposal:
                self._disagreed = (proposal[0], repeated[0])
            if self._lead > 0 or not proposal:
                return repeated
        return self.lengthen(proposal)

    def _continuation(self, proposal: Sequence[int]) -> tuple[int, list[int]]:
        """(tokens that match, what followed them): after the committed ids and the proposal."""
        tail = [*self._ids[-LONGEST:], *proposal][-LONGEST:]
        for length in range(min(LONGEST, len(tail)), SHORTEST - 1, -1):
            at = self._following.get(tuple(tail[-length:]))
            if at is not None:
                return length, self._ids[at : at + PER_MATCHED * length]
        return 0, []
