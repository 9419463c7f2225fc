"""Tokens whose keys and values are kept in pages.

Knows what is pending, and how to roll back. Does not know when it runs (scheduler.py).
A sequence's pending tokens are [table.length, len(tokens)).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence as Seq
from itertools import count

from common.kv.pages import PagePool

_ranks = count()


class Sequence:
    """Tokens whose keys and values are wanted, of which [0, table.length) have them.

    `wanted`: logits are needed for the last so many tokens; at least 1.
    """

    def __init__(self, pool: PagePool, tokens: Seq[int]) -> None:
        self.tokens = list(tokens)
        self.wanted = 1
        self.table = pool.table()
        self.last_step = 0  # of the engine, for preempting whoever has been idle longest
        self.rank = next(_ranks)  # who came later gives way to who came earlier
        self.paged_at = -math.inf  # time.monotonic, since when it has pages
        self.ran_at = -math.inf  # when it last ran

    @property
    def pending(self) -> int:
        return len(self.tokens) - self.table.length

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

    def ran(self, tokens: int) -> None:
        """The next `tokens` pending tokens have run."""
        self.table.extend(tokens)
        self.ran_at = time.monotonic()

    def preempt(self, favoured: Sequence) -> None:
        """Drop the pages and keep the tokens: they run again later, to the same values.

        favoured: who is to have the pages. It comes before this one from now on.
        """
        if self.rank < favoured.rank:
            self.rank = next(_ranks)
        self.table.preempt()
