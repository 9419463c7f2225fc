"""Measures whether a token's logits depend on the rows beside it: what exact text rests on.

Knows batches and bits. Does not know why they differ where they do (docs/decisions/model.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from common.kv.pages import PagePool
from common.model.batch import Chunk

_PAGE_SIZE = 4  # so that a few tokens lie on more than one page


class Model(Protocol):
    """A model as far as the probe goes; common/model/paged_model.py has the real one."""

    vocab_size: int

    def allocate(self, num_pages: int, page_size: int) -> None: ...

    def forward(self, chunks: Sequence[Chunk]) -> Tensor: ...

    def release(self) -> None: ...


def rows_are_invariant(model: Model, sizes: Sequence[int]) -> bool:
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
