"""Which logits change by token, row by row: bias, penalties, ends that may not come yet.

A session's history is one entry per id that a bias, a penalty or a ban concerns. It grows with what
is committed, so no round counts a context anew, and a row's own draft tokens are counted in on top:
penalties see every token before the row's, those accepted in this same run included. Knows counts.
Refuses to know logits (common/law.py has the formula) and acceptance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.sampling import SamplingParams
from verifier.kernels.decision import Adjustments

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
ROOM = 64  # entries to begin with; doubled when they are taken


class History:
    """What the tokens of one session so far mean to its logits."""

    def __init__(
        self,
        params: SamplingParams,
        prompt: Sequence[int],
        end_ids: Iterable[int],
        resumed: int = 0,
    ) -> None:
        """end_ids: eos and stop ids, which min_new_tokens keeps away.

        resumed: how many tokens at the prompt's end are output of the session's earlier life.
        """
        self.params = params
        repeats = params.repetition_penalty not in (None, 1.0)
        self._counting = repeats or bool(params.presence_penalty or params.frequency_penalty)
        self._output = resumed  # its length
        self._places: dict[int, int] = {}  # of ids among the entries
        self._entries = np.zeros(ROOM, ENTRY)
        for token_id, bias in params.logit_bias:
            place = self._place(token_id)
            self._entries["bias"][place] = bias
        if resumed < params.min_new_tokens:
            for token_id in sorted(end_ids):
                place = self._place(token_id)
                self._entries["end"][place] = True
        begin = len(prompt) - resumed
        if repeats:
            self._count(prompt[:begin], ("total",))
        if self._counting:
            self._count(prompt[begin:], ("total", "count"))

    @property
    def acts(self) -> bool:
        """Whether any logit of the next round can change."""
        return bool(
            self.params.logit_bias or self._counting or self._output < self.params.min_new_tokens
        )

    def commit(self, tokens: Sequence[int]) -> None:
        """The output has these tokens more."""
        self._output += len(tokens)
        if self._counting:
            self._count(tokens, ("total", "count"))

    def rows(self, draft: Sequence[int]) -> Entries:
        """[k + 1, ids]: row j as it stands once draft[:j] is output too.

        All rows have the same ids; where one means nothing to a row, its entry changes nothing.
        """
        if not self.acts:
            return np.zeros((len(draft) + 1, 0), ENTRY)
        counted = draft if self._counting else ()
        size = len(self._places)
        unknown = dict.fromkeys(token for token in counted if token not in self._places)
        new = {token: size + place for place, token in enumerate(unknown)}
        rows = np.zeros((len(draft) + 1, size + len(new)), ENTRY)
        rows[:, :size] = self._entries[:size]
        rows["id"][:, size:] = list(new)
        for row, token in enumerate(counted, start=1):
            place = new[token] if token in new else self._places[token]
            rows["total"][row:, place] += 1
            rows["count"][row:, place] += 1
        output = self._output + np.arange(len(rows))
        rows["banned"] = rows["end"] & (output < self.params.min_new_tokens)[:, None]
        return rows

    def _count(self, tokens: Iterable[int], fields: tuple[str, ...]) -> None:
        for token, times in Counter(tokens).items():
            place = self._place(token)
            for field in fields:
                self._entries[field][place] += times

    def _place(self, token: int) -> int:
        """Of the id's entry; a new one if it has none. May move the entries."""
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._entries):
            self._entries = np.concatenate([self._entries, np.zeros_like(self._entries)])
        self._entries["id"][place] = token
        return place


def adjust_rows(batch: Sequence[tuple[History, Sequence[int]]]) -> Adjustments | None:
    """Adjustments of a batch of (history, draft tokens), k + 1 rows each; None if none has any."""
    if not any(history.acts for history, _ in batch):
        return None
    sessions = [history.rows(draft) for history, draft in batch]
    widths = np.repeat([rows.shape[1] for rows in sessions], [len(rows) for rows in sessions])
    entries = np.concatenate([rows.reshape(-1) for rows in sessions])  # [entries]

    def field(name: str) -> Tensor:
        return torch.from_numpy(entries[name].copy())  # from a column to an array of its own

    def each(values: Iterable[float | None], off: float) -> Tensor:
        return torch.tensor([value or off for value in values], dtype=torch.float32)

    params = [history.params for history, _ in batch]
    return Adjustments(
        offsets=torch.from_numpy(np.concatenate([[0], widths.cumsum()])),
        ids=field("id"),
        bias=field("bias"),
        seen=field("total") > 0,
        count=field("count"),
        banned=field("banned"),
        repetition=each((p.repetition_penalty for p in params), 1.0),
        presence=each((p.presence_penalty for p in params), 0.0),
        frequency=each((p.frequency_penalty for p in params), 0.0),
    )
