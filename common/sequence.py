"""Sequences of tokens over KV pages, and how their pending tokens are packed into one ragged batch.

Both engines schedule through here: the verifier checks proposals with it, the drafter takes draft
steps with it. Knows pages, budgets and who gives way under pressure. Refuses to know why a sequence
wants its tokens run.

A sequence's pending tokens are [table.length, len(tokens)). They run in one chunk if they are few
(a decode: the last `wanted` rows and nothing else) and in several if they are many (a prefill).
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from common.kv_cache import OutOfPages, PagePool
from common.model import Chunk


class Sequence:
    """Tokens whose keys and values are wanted, of which [0, table.length) have them.

    `wanted`: logits are needed for the last so many tokens; at least 1.
    """

    def __init__(self, pool: PagePool, tokens: Seq[int]) -> None:
        self.tokens = list(tokens)
        self.wanted = 1
        self.table = pool.table()
        self.last_step = 0  # of the engine, for preempting whoever has been idle longest
        self.preemptions = 0

    @property
    def pending(self) -> int:
        return len(self.tokens) - self.table.length

    @property
    def is_decode(self) -> bool:
        return self.pending <= self.wanted

    def rewrite(self, tokens: Seq[int], wanted: int = 1) -> None:
        """Want `tokens` now: keep the KV of the common prefix, roll back the rest.

        At least `wanted` tokens stay pending, since their logits are asked for.
        """
        limit = min(self.table.length, len(tokens) - wanted)
        same = 0
        while same < limit and tokens[same] == self.tokens[same]:
            same += 1
        self.tokens = list(tokens)
        self.wanted = wanted
        self.table.truncate(min(same, self.table.length))

    def preempt(self) -> None:
        """Drop the pages and keep the tokens: they run again later, to the same values."""
        if self.table.pages:
            self.preemptions += 1
        self.table.release()


@dataclass(frozen=True)
class Packed:
    """One sequence's part of a batch. `complete`: its pending tokens end here, its logits come."""

    sequence: Sequence
    chunk: Chunk
    complete: bool


def pack(waiting: Seq[Sequence], everyone: Seq[Sequence], max_rows: int, step: int) -> list[Packed]:
    """Choose what runs next, in at most `max_rows` rows, and reserve its pages.

    Decodes come before prefills, so that a long prompt never stalls running sequences; otherwise the
    order of `waiting` holds. A sequence that finds no pages preempts those of `everyone` that have
    been idle longest and aren't in this batch; if that isn't enough, it waits.
    """
    batch: list[Packed] = []
    taken: set[Sequence] = set()
    room = max_rows
    for sequence in sorted(waiting, key=lambda sequence: not sequence.is_decode):
        rows = _rows(sequence, room)
        if rows == 0:
            continue
        taken.add(sequence)
        if not _make_room(sequence, rows, everyone, taken):
            taken.discard(sequence)
            continue
        sequence.last_step = step
        begin = sequence.table.length
        complete = rows == sequence.pending
        tokens = sequence.tokens[begin : begin + rows]
        chunk = Chunk(tokens, sequence.table, sequence.wanted if complete else 0)
        batch.append(Packed(sequence, chunk, complete))
        room -= rows
    return batch


def _rows(sequence: Sequence, room: int) -> int:
    """How many pending tokens fit. The wanted rows are never cut: they run together or later."""
    if sequence.pending <= room:
        return sequence.pending
    if sequence.is_decode:
        return 0
    return min(room, sequence.pending - sequence.wanted)


def _make_room(
    sequence: Sequence, rows: int, everyone: Seq[Sequence], taken: set[Sequence]
) -> bool:
    idle = sorted((s for s in everyone if s not in taken and s.table.pages), key=_age)
    while True:
        try:
            sequence.table.reserve(sequence.table.length + rows)
            return True
        except OutOfPages:
            if not idle:
                return False
            idle.pop(0).preempt()


def _age(sequence: Sequence) -> int:
    return sequence.last_step
