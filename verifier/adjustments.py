"""Which logits change by token, row by row: bias, penalties, ends that may not come yet.

A session's history is counted as tokens are committed, and a row's own draft tokens are counted in
on top: penalties see every token before the row's, those accepted in this same run included. Knows
counts. Refuses to know logits (common/law.py has the formula) and acceptance.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from common.sampling import SamplingParams
from verifier.kernels.decision import Adjustments


class History:
    """What the tokens of one session so far mean to its logits."""

    def __init__(
        self, params: SamplingParams, prompt: Iterable[int], end_ids: Iterable[int]
    ) -> None:
        """end_ids: eos and stop ids, which min_new_tokens keeps away."""
        self.params = params
        self._bias = dict(params.logit_bias)
        self._ends = sorted(end_ids)
        self._new = 0  # tokens in the output
        # Times in the output; an id of the prompt is there with 0 from the start.
        self._repeats = params.repetition_penalty not in (None, 1.0)
        self._counts = dict.fromkeys(prompt, 0) if self._repeats else {}
        self._counting = bool(self._repeats or params.presence_penalty or params.frequency_penalty)

    def commit(self, tokens: Sequence[int]) -> None:
        """The output has these tokens more."""
        self._new += len(tokens)
        if self._counting:
            for token in tokens:
                self._counts[token] = self._counts.get(token, 0) + 1

    def rows(self, draft: Sequence[int]) -> _Rows:
        """Adjustments of the k + 1 rows behind the history and 0 to k draft tokens.

        All rows have the same ids; where one means nothing to a row, its entry changes nothing.
        """
        banning = self._new < self.params.min_new_tokens
        ids = dict.fromkeys(self._bias)
        ids |= self._counts
        if self._counting:
            ids |= dict.fromkeys(draft)
        if banning:
            ids |= dict.fromkeys(self._ends)
        at = {token_id: place for place, token_id in enumerate(ids)}
        shape = (len(draft) + 1, len(at))
        made = _Rows(np.fromiter(at, np.int32, len(at)), shape)
        for token_id, bias in self._bias.items():
            made.bias[:, at[token_id]] = bias
        if self._counts:
            places = np.fromiter((at[i] for i in self._counts), np.int64, len(self._counts))
            made.seen[:, places] = True
            made.count[:, places] = np.fromiter(self._counts.values(), np.int32, len(places))
        if self._counting:
            for row, token in enumerate(draft, start=1):
                made.seen[row:, at[token]] = True
                made.count[row:, at[token]] += 1
        if banning:
            ends = [at[i] for i in self._ends]
            made.banned[: self.params.min_new_tokens - self._new, ends] = True
        return made


class _Rows:
    """One session's entries: [k + 1, ids] each, and nothing in them yet."""

    def __init__(self, ids: np.ndarray, shape: tuple[int, int]) -> None:
        self.ids = np.broadcast_to(ids, shape)
        self.bias = np.zeros(shape, np.float32)
        self.seen = np.zeros(shape, bool)
        self.count = np.zeros(shape, np.int32)
        self.banned = np.zeros(shape, bool)


def adjust_rows(batch: Sequence[tuple[History, Sequence[int]]]) -> Adjustments | None:
    """Adjustments of a batch of (history, draft tokens), k + 1 rows each; None if none has any."""
    if not any(history.params.adjusts for history, _ in batch):
        return None
    sessions = [history.rows(draft) for history, draft in batch]
    lengths = np.concatenate([np.full(*rows.ids.shape) for rows in sessions])
    offsets = torch.from_numpy(np.concatenate([[0], lengths.cumsum()]).astype(np.int64))

    def flat(arrays: Iterable[np.ndarray]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate([array.reshape(-1) for array in arrays]))

    def each(values: Iterable[float | None], off: float) -> torch.Tensor:
        return torch.tensor([off if value is None else value for value in values])

    params = [history.params for history, _ in batch]
    return Adjustments(
        offsets=offsets,
        ids=flat(rows.ids for rows in sessions),
        bias=flat(rows.bias for rows in sessions),
        seen=flat(rows.seen for rows in sessions),
        count=flat(rows.count for rows in sessions),
        banned=flat(rows.banned for rows in sessions),
        repetition=each((p.repetition_penalty for p in params), 1.0),
        presence=each((p.presence_penalty for p in params), 0.0),
        frequency=each((p.frequency_penalty for p in params), 0.0),
    )
