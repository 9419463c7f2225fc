"""How pending tokens of many sequences are packed into one batch: continuous batching.

Both engines schedule through here: the verifier checks proposals with it, the drafter takes draft
steps with it. Knows pages, budgets and who gives way under pressure. Does not know why a sequence
wants its tokens run.

A sequence runs in one chunk if its pending tokens are few (a decode: the last `wanted` rows, and a
few that it has to catch up with) and in several if they are many (a prefill).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from common.engine.sequence import Sequence
from common.model.batch import Chunk

CATCH_UP = 16  # pending tokens beyond the wanted ones that a decode may have
PREFILL_SHARE = 8  # one row in so many is kept for prefills while any wait
# Who came earlier gives its pages to who came later only after so long without running, or with
# pages; after that it comes later itself. Two that don't fit together would otherwise take them
# from each other in each round, and read their texts again each time.
IDLE_S = 2.0
HOLD_S = 30.0


@dataclass(frozen=True)
class Packed:
    """One sequence's part of a batch. `complete`: its pending tokens end here, its logits come."""

    sequence: Sequence
    chunk: Chunk
    complete: bool


def pack(
    waiting: Seq[Sequence],
    everyone: Seq[Sequence],
    max_rows: int,
    step: int,
    now: float | None = None,
) -> list[Packed]:
    """Choose what runs next, in at most `max_rows` rows, and reserve its pages.

    Nothing if all that wait must wait for others' pages. now: time.monotonic, unless given.

    Decodes come before prefills, so that a long prompt never stalls running sequences, and leave
    them a share of the rows, so that running sequences never stall a prompt; otherwise the order of
    `waiting` holds. Whoever finds no pages preempts those of `everyone` that aren't in this batch
    and came later: first who doesn't wait, the longest idle first, then who waits, the last first.
    Who doesn't wait and has been idle or had pages for long gives way whenever it came. If that
    isn't enough, it waits with what it has, and no prefill that came later runs before it.
    """
    now = time.monotonic() if now is None else now
    batch: list[Packed] = []
    first_short = math.inf  # rank of the first who waits for pages
    line = sorted(waiting, key=_is_long)
    prefills = sum(map(_is_long, line))
    shared = max_rows - max_rows // PREFILL_SHARE if prefills else max_rows
    idle = _idle(everyone, line)
    used = 0
    for place, sequence in enumerate(line):
        decode = place < len(line) - prefills
        if (decode and _is_long(sequence)) or (not decode and sequence.rank > first_short):
            continue  # preempted for this batch, or later than who waits for pages
        rows = _rows(sequence, max_rows - used)
        if rows == 0 or (decode and batch and used + rows > shared):
            continue
        running = {part.sequence for part in batch}
        victims = [s for s in idle if s.rank > sequence.rank or _is_over(s, now)]
        victims += [s for s in reversed(line) if s.rank > sequence.rank and s not in running]
        paged = bool(sequence.table.pages)
        if not _make_room(sequence, rows, victims):
            first_short = min(first_short, sequence.rank)
            continue
        sequence.last_step = step
        sequence.paged_at = sequence.paged_at if paged else now
        begin = sequence.table.length
        complete = rows == sequence.pending
        tokens = sequence.tokens[begin : begin + rows]
        chunk = Chunk(tokens, sequence.table, sequence.wanted if complete else 0)
        batch.append(Packed(sequence, chunk, complete))
        used += rows
    return batch


def add_decode(batch: list[Packed], sequence: Sequence, step: int) -> bool:
    """Put a sequence's one pending token into the batch; False if no page is free for it.

    For what nobody waits for: nobody is preempted.
    """
    assert sequence.pending == 1
    if not _make_room(sequence, 1, ()):
        return False
    sequence.last_step = step
    chunk = Chunk(sequence.tokens[-1:], sequence.table, 1)
    batch.append(Packed(sequence, chunk, True))
    return True


def _is_long(sequence: Sequence) -> bool:
    """Whether it is a prefill to the order of things; a few tokens to catch up with are none."""
    return sequence.pending > sequence.wanted + CATCH_UP


def _rows(sequence: Sequence, free: int) -> int:
    """How many pending tokens fit. The wanted rows are never cut: they run together or later."""
    if sequence.pending <= free:
        return sequence.pending
    return max(0, min(free, sequence.pending - sequence.wanted))


def _idle(everyone: Seq[Sequence], line: Seq[Sequence]) -> list[Sequence]:
    """Who doesn't wait, longest idle first."""
    waiting = set(line)
    return sorted((s for s in everyone if s not in waiting), key=lambda s: s.last_step)


def _is_over(idle: Sequence, now: float) -> bool:
    """Whether its pages are anybody's who waits."""
    return now - idle.ran_at > IDLE_S or now - idle.paged_at > HOLD_S


def _make_room(sequence: Sequence, rows: int, victims: Seq[Sequence]) -> bool:
    """Reserve pages for `rows` more tokens, preempting as few as will do, or nobody."""
    missing = sequence.table.missing_pages(sequence.table.length + rows)
    chosen = []
    for victim in victims:
        if missing <= 0:
            break
        if victim.table.pages:
            missing -= len(victim.table.pages)
            chosen.append(victim)
    if missing > 0:
        return False
    for victim in chosen:
        victim.preempt(sequence)
    sequence.table.reserve(sequence.table.length + rows)
    return True
