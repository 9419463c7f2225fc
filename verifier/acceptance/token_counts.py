"""Which logits change by token, row by row: bias, penalties, ends that may not come yet.

A session's history is one entry per id that a bias, a penalty or a ban concerns. It grows with what
is committed, so no round counts a context anew, and a row's own draft tokens are counted in on top:
penalties see every token before the row's, those accepted in this same run included. Knows counts.
Does not know logits (common/sampling/distribution.py has the formula) and acceptance.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.sampling.parameters import SamplingParams
from verifier.acceptance.batch import LogitsProcessors


@dataclass(frozen=True)
class Entries:
    """What is known of some ids: [ids], or [rows, ids] where rows know different things."""

    ids: NDArray[np.int32]
    bias: NDArray[np.float32]
    total: NDArray[np.int32]  # times in prompt and output
    count: NDArray[np.int32]  # times in the output
    end: NDArray[np.bool_]  # the id may not come before min_new_tokens

    @classmethod
    def zeros(cls, *shape: int) -> Entries:
        return cls(
            ids=np.zeros(shape, np.int32),
            bias=np.zeros(shape, np.float32),
            total=np.zeros(shape, np.int32),
            count=np.zeros(shape, np.int32),
            end=np.zeros(shape, np.bool_),
        )

    def extended(self, *shape: int) -> Entries:
        """A copy of that shape, zeros behind what there is; new first dimensions repeat it."""
        made = Entries.zeros(*shape)
        for field in fields(self):
            own: NDArray[Any] = getattr(self, field.name)
            getattr(made, field.name)[..., : own.shape[-1]] = own[..., : shape[-1]]
        return made


class TokenCounts:
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
        self._entries = Entries.zeros(16)  # as many as indices, and space for more
        places = self._at([token_id for token_id, _ in params.logit_bias])
        self._entries.bias[places] = [bias for _, bias in params.logit_bias]
        if resumed < params.min_new_tokens:
            places = self._at(sorted(end_ids))
            self._entries.end[places] = True
        begin = len(prompt) - resumed
        if repeats:
            self._count(prompt[:begin], output=False)
        if self._counting:
            self._count(prompt[begin:], output=True)

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
            self._count(tokens, output=True)

    def rows(self, draft: Sequence[int]) -> Entries:
        """[k + 1, ids]: row j counts draft[:j] as output too.

        All rows have the same ids; where one means nothing to a row, its entry changes nothing.
        """
        height = len(draft) + 1
        if not self.acts:
            return Entries.zeros(height, 0)
        counted = draft if self._counting else ()
        size = len(self._places)
        unknown = dict.fromkeys(token for token in counted if token not in self._places)
        new = {token: size + place for place, token in enumerate(unknown)}
        rows = self._entries.extended(height, size + len(new))
        rows.ids[:, size:] = list(new)
        for row, token in enumerate(counted, start=1):
            place = new[token] if token in new else self._places[token]
            rows.total[row:, place] += 1
            rows.count[row:, place] += 1
        banning = self._output + np.arange(height) < self.params.min_new_tokens
        np.logical_and(rows.end, banning[:, None], out=rows.end)
        return rows

    def _count(self, tokens: Sequence[int], output: bool) -> None:
        ids, times = np.unique(np.array(tokens, np.int64), return_counts=True)
        places = self._at(ids.tolist())
        self._entries.total[places] += times.astype(np.int32)
        if output:
            self._entries.count[places] += times.astype(np.int32)

    def _at(self, ids: Sequence[int]) -> list[int]:
        """Places of the ids' entries; new ones for those that have none. May move the entries."""
        places = [self._places.setdefault(token_id, len(self._places)) for token_id in ids]
        if len(self._places) > len(self._entries.ids):
            self._entries = self._entries.extended(2 * len(self._places))
        self._entries.ids[places] = ids
        return places


def processor_rows(
    batch: Sequence[tuple[TokenCounts, Sequence[int]]], always: bool = False
) -> LogitsProcessors | None:
    """Logits processors of a batch of (history, draft tokens), k + 1 rows each.

    None if none has any, unless `always` asks for an empty one.
    """
    if not always and not any(token_counts.acts for token_counts, _ in batch):
        return None
    sessions = [token_counts.rows(draft) for token_counts, draft in batch]
    widths = np.concatenate([np.full(*rows.ids.shape) for rows in sessions])  # [rows]

    def flat(arrays: Iterable[NDArray[Any]]) -> Tensor:
        return torch.from_numpy(np.concatenate([array.reshape(-1) for array in arrays]))

    def each(values: Iterable[float | None], off: float) -> Tensor:
        return torch.tensor([value or off for value in values], dtype=torch.float32)

    params = [token_counts.params for token_counts, _ in batch]
    return LogitsProcessors(
        offsets=torch.from_numpy(np.concatenate([[0], widths.cumsum()])),
        ids=flat(rows.ids for rows in sessions),
        bias=flat(rows.bias for rows in sessions),
        seen=flat(rows.total for rows in sessions) > 0,
        count=flat(rows.count for rows in sessions),
        banned=flat(rows.end for rows in sessions),
        repetition=each((p.repetition_penalty for p in params), 1.0),
        presence=each((p.presence_penalty for p in params), 0.0),
        frequency=each((p.frequency_penalty for p in params), 0.0),
    )
