"""The page pool: which pages of the KV cache belong to which sequence, and nothing else.

Knows page numbers and lengths. Does not know tensors (common/kv/store.py) and models. Not
thread-safe: a pool belongs to the thread of its engine.

Invariants, tested by property: a page is free or owned by exactly one table; a table of length n
owns at least ceil(n / page_size) pages; position i of a table lies in pages[i // page_size].
"""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray


class OutOfPages(Exception):
    """The pool has fewer free pages than asked for; the caller preempts somebody or waits."""


class PagePool:
    """`num_pages` pages of `page_size` tokens each."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        assert num_pages >= 1 and page_size >= 1
        self.num_pages = num_pages
        self.page_size = page_size
        self._free = list(range(num_pages - 1, -1, -1))  # lowest number on top
        self._tables: set[PageTable] = set()
        self.preemptions = 0  # how often a table gave way

    @property
    def free_pages(self) -> int:
        return len(self._free)

    @property
    def used_pages(self) -> int:
        return self.num_pages - len(self._free)

    @property
    def capacity_tokens(self) -> int:
        return self.num_pages * self.page_size

    def table(self) -> PageTable:
        return PageTable(self)

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def check(self) -> None:
        """Assert the invariants; for tests and debugging."""
        owned = [page for table in self._tables for page in table.pages]
        assert sorted(owned + self._free) == list(range(self.num_pages))
        for table in self._tables:
            assert self.pages_for(table.length) <= len(table.pages)


class PageTable:
    """One sequence's pages. `length` tokens, [0, length), have valid keys and values."""

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self.pages: list[int] = []
        self._numbers = array("i")  # the same, for `numbers`
        self.length = 0

    @classmethod
    def at_length(cls, pages: array[int], length: int) -> PageTable:
        """Pages that another process's pool has given out, to be read by number; it can't grow."""
        table = cls(PagePool(1, 1))
        table.pages, table._numbers, table.length = list(pages), pages, length
        return table

    def missing_pages(self, tokens: int) -> int:
        """Pages that must come free before `reserve(tokens)` can work; none if 0 or less."""
        return self._pool.pages_for(tokens) - len(self.pages) - len(self._pool._free)

    def reserve(self, tokens: int) -> None:
        """Own pages for positions [0, tokens). Raises OutOfPages, with nothing taken."""
        if self.missing_pages(tokens) > 0:
            raise OutOfPages(f"{self.missing_pages(tokens)} pages too few are free")
        missing = self._pool.pages_for(tokens) - len(self.pages)
        if missing <= 0:
            return
        self._pool._tables.add(self)
        taken = [self._pool._free.pop() for _ in range(missing)]
        self.pages.extend(taken)
        self._numbers.extend(taken)

    def extend(self, tokens: int) -> None:
        """The next `tokens` positions have been written; their pages must be reserved."""
        assert tokens >= 0 and self._pool.pages_for(self.length + tokens) <= len(self.pages)
        self.length += tokens

    def numbers(self, count: int) -> NDArray[np.int32]:
        """A copy of the first `count` page numbers, int32 [count], faster than from the list."""
        return np.frombuffer(self._numbers, dtype=np.int32, count=count).copy()

    def truncate(self, length: int) -> None:
        """Roll back to `length` tokens and give back the pages behind it."""
        assert 0 <= length <= self.length
        self.length = length
        self._give_back(self._pool.pages_for(length))

    def release(self) -> None:
        """Give everything back."""
        self.length = 0
        self._give_back(0)

    def preempt(self) -> None:
        """Give everything back, to others."""
        self.release()
        self._pool.preemptions += 1

    def _give_back(self, keep: int) -> None:
        # Reversed, so that the pool hands the same pages out in the same order again.
        self._pool._free.extend(reversed(self.pages[keep:]))
        del self.pages[keep:]
        del self._numbers[keep:]
        if not self.pages:
            self._pool._tables.discard(self)
