"""Measures whether a token's logits depend on the rows beside it: what exact text rests on.

Knows batches and bits, and how many rows are cut into a chunk for each thread. Does not know why
bits differ where they do (docs/decisions/model.md).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from common.kv.pages import PagePool
from common.model.batch import Chunk
from common.model.checks.operations import watch
from common.model.cpu.elementwise import GRAIN

log = logging.getLogger(__name__)

_PAGE_SIZE = 4  # so that a few tokens lie on more than one page
_FEWEST_ROWS, _MOST_ROWS = 9, 64  # that a start can take the time for


class Model(Protocol):
    """A model as far as the probe goes; common/model/paged_model.py has the real one."""

    vocab_size: int

    def allocate(self, num_pages: int, page_size: int) -> None: ...

    def forward(self, chunks: Sequence[Chunk]) -> Tensor: ...

    def release(self) -> None: ...


class CPUModel(Model, Protocol):
    def run_without_attention(self, rows: int) -> Tensor: ...


def cpu_rows_are_invariant(model: CPUModel) -> bool:
    """Whether rows are computed as if alone, by as many threads as operations have here.

    Says in a log line what doesn't keep them apart. Allocates the model's KV cache and frees it.
    """
    watched = watch(model.run_without_attention)
    if watched.mixing:
        names = ", ".join(sorted(watched.mixing))
        log.warning("rows may change each other's bits: %s aren't known to keep them apart", names)
        return False
    count = _cut_rows(watched.widest, torch.get_num_threads())
    return rows_are_invariant(model) and _equal_rows_are_equal(model, count)


def _cut_rows(width: int, threads: int) -> int:
    """The fewest rows that are cut within a row, into a chunk for each thread if that can be."""
    for count in range(max(_FEWEST_ROWS, GRAIN * (threads - 1) // width + 1), _MOST_ROWS):
        if count * width % (64 * threads):
            return count
    return min(_MOST_ROWS, _FEWEST_ROWS + GRAIN * threads // width + 1)


def _equal_rows_are_equal(model: Model, count: int) -> bool:
    """Whether so many sequences of the same token have the bits of one that is alone."""
    pool = PagePool(count, _PAGE_SIZE)
    model.allocate(pool.num_pages, pool.page_size)
    chunks = []
    for _ in range(count):
        table = pool.table()
        table.reserve(1)
        chunks.append(Chunk([3 % model.vocab_size], table, 1))
    alone = model.forward(chunks[:1]).clone()
    same = bool((model.forward(chunks) == alone).all())
    model.release()
    return same


def rows_are_invariant(model: Model, sizes: Sequence[int] = (3,)) -> bool:
    """Whether tokens give the same bits in one batch, of each of these sizes, and one by one.

    Allocates the model's KV cache and frees it.
    """
    count = max(sizes)
    pool = PagePool(-(-count // _PAGE_SIZE), _PAGE_SIZE)
    model.allocate(pool.num_pages, pool.page_size)
    tokens = [(3 + 44 * place) % model.vocab_size for place in range(count)]

    def logits(size: int, until: int) -> Tensor:
        table = pool.table()
        table.reserve(until)
        rows = []
        for begin in range(0, until, size):
            # On a device they are valid until the next call.
            rows.append(model.forward([Chunk(tokens[begin : begin + size], table, size)]).clone())
            table.extend(size)
        table.release()
        return torch.cat(rows)

    alone = logits(1, count)
    same = all(torch.equal(logits(size, size), alone[:size]) for size in sizes)
    model.release()
    return same
