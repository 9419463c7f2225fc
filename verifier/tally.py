"""What a session has said, as far as it changes the logits of what comes next.

Holds one entry per id that a bias, a penalty or a ban concerns, kept up to date token by token: no
round counts a context anew. Knows what "so far" means: prompt and output for the repetition
penalty, output alone for the others, earlier lives of the session included. Refuses to know logits
(common/law.py applies the entries) and batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from common.types import OpenSession

Entries: TypeAlias = NDArray[Any]  # of ENTRY

ENTRY = np.dtype(
    [
        ("id", np.int32),
        ("bias", np.float32),
        ("total", np.int32),  # times in prompt and output
        ("count", np.int32),  # times in the output
        ("end", np.bool_),  # ends the session
        ("banned", np.bool_),  # can't come now; set in `rows` only
    ]
)


class Tally:
    """Written on the engine's thread, by the session that owns it."""

    def __init__(self, spec: OpenSession, ends: frozenset[int]) -> None:
        """ends: ids that end the session, banned before min_new_tokens."""
        params = spec.sampling
        repetition = params.repetition_penalty not in (None, 1.0)
        self._counts_output = repetition or bool(
            params.presence_penalty or params.frequency_penalty
        )
        self._min_output = params.min_new_tokens
        self._output = spec.resumed_output_tokens
        self._places: dict[int, int] = {}
        self._entries = np.zeros(64, ENTRY)
        for token, bias in params.logit_bias:
            place = self._place(token)
            self._entries["bias"][place] = bias
        if self._output < self._min_output:
            for token in sorted(ends):
                place = self._place(token)
                self._entries["end"][place] = True
        begin = len(spec.prompt) - spec.resumed_output_tokens
        if repetition:
            self._count(spec.prompt[:begin], ("total",))
        if self._counts_output:
            self._count(spec.prompt[begin:], ("total", "count"))

    @property
    def acts(self) -> bool:
        """Whether the next token's logits change at all."""
        entries = self._entries[: len(self._places)]
        return bool(
            self._output < self._min_output or entries["total"].any() or entries["bias"].any()
        )

    def commit(self, tokens: Sequence[int]) -> None:
        """The output has grown."""
        self._output += len(tokens)
        if self._counts_output:
            self._count(tokens, ("total", "count"))

    def rows(self, draft: Sequence[int]) -> Entries:
        """[k + 1, entries]: row j as it stands once draft[:j] is output too."""
        counted = draft if self._counts_output else ()
        size = len(self._places)
        places = dict.fromkeys(token for token in counted if token not in self._places)
        new = {token: size + place for place, token in enumerate(places)}
        rows = np.zeros((len(draft) + 1, size + len(new)), ENTRY)
        rows[:, :size] = self._entries[:size]
        rows["id"][:, size:] = list(new)
        for place, token in enumerate(counted):
            entry = new[token] if token in new else self._places[token]
            rows["total"][place + 1 :, entry] += 1
            rows["count"][place + 1 :, entry] += 1
        output = self._output + np.arange(len(rows))
        rows["banned"] = rows["end"] & (output < self._min_output)[:, None]
        return rows

    def _count(self, tokens: Iterable[int], fields: tuple[str, ...]) -> None:
        for token, times in Counter(tokens).items():
            place = self._place(token)
            for field in fields:
                self._entries[field][place] += times

    def _place(self, token: int) -> int:
        """Where the id's entry is; a new one if it has none."""
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._entries):
            self._entries = np.concatenate([self._entries, np.zeros_like(self._entries)])
        self._entries["id"][place] = token
        return place
