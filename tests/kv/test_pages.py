"""The page pool under any order of calls: no page is lost, shared, or owned by nobody."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from common.kv.pages import OutOfPages, PagePool

TABLES = st.integers(0, 3)
TOKENS = st.integers(0, 40)


class Pool(RuleBasedStateMachine):
    """Four tables over twelve pages; what is written is kept beside, position by position."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(num_pages=12, page_size=3)
        self.tables = [self.pool.table() for _ in range(4)]
        self.slots: list[list[tuple[int, int]]] = [[] for _ in self.tables]

    @rule(index=TABLES, tokens=TOKENS)
    def reserve(self, index: int, tokens: int) -> None:
        table = self.tables[index]
        before, free = list(table.pages), self.pool.free_pages
        enough = self.pool.pages_for(tokens) - len(before) <= free
        assert (table.missing_pages(tokens) <= 0) is enough
        try:
            table.reserve(tokens)
            assert enough
            assert table.pages[: len(before)] == before
            assert len(table.pages) == max(len(before), self.pool.pages_for(tokens))
        except OutOfPages:
            assert not enough
            assert (table.pages, self.pool.free_pages) == (before, free)

    @rule(index=TABLES, tokens=TOKENS)
    def extend(self, index: int, tokens: int) -> None:
        table = self.tables[index]
        tokens = min(tokens, len(table.pages) * self.pool.page_size - table.length)
        for position in range(table.length, table.length + tokens):
            slot = (table.pages[position // self.pool.page_size], position % self.pool.page_size)
            self.slots[index].append(slot)
        table.extend(tokens)

    @rule(index=TABLES, share=st.floats(0, 1))
    def truncate(self, index: int, share: float) -> None:
        length = round(self.tables[index].length * share)
        self.tables[index].truncate(length)
        del self.slots[index][length:]
        assert len(self.tables[index].pages) == self.pool.pages_for(length)

    @rule(index=TABLES)
    def release(self, index: int) -> None:
        self.tables[index].release()
        self.slots[index].clear()
        assert self.tables[index].pages == []

    @invariant()
    def every_page_has_one_place(self) -> None:
        self.pool.check()
        assert self.pool.used_pages == sum(len(table.pages) for table in self.tables)
        assert self.pool.free_pages + self.pool.used_pages == 12

    @invariant()
    def what_was_written_is_still_where_it_was(self) -> None:
        written = [slot for slots in self.slots for slot in slots]
        assert len(set(written)) == len(written)
        for table, slots in zip(self.tables, self.slots, strict=True):
            assert table.length == len(slots)
            assert [page for page, _ in slots[::3]] == table.pages[: len(slots[::3])]


Pool.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPool = Pool.TestCase


def test_nothing_is_taken_when_the_pool_is_short() -> None:
    pool = PagePool(2, 4)
    first, second = pool.table(), pool.table()
    first.reserve(5)
    with pytest.raises(OutOfPages):
        second.reserve(1)
    assert second.pages == []
    first.truncate(0)
    second.reserve(8)
    assert pool.free_pages == 0


def test_extending_beyond_the_reserved_pages_is_our_mistake() -> None:
    table = PagePool(2, 4).table()
    table.reserve(4)
    with pytest.raises(AssertionError):
        table.extend(5)


def test_the_same_pages_are_handed_out_again_in_order() -> None:
    pool = PagePool(6, 1)
    table = pool.table()
    table.reserve(4)
    pages = list(table.pages)
    table.release()
    table.reserve(4)
    assert table.pages == pages == sorted(pages)
