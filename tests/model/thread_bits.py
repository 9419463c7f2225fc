"""Whether a model's logits keep their bits at every number of threads and rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from common.kv.pages import PagePool
from common.model.batch import Chunk
from common.model.language_model import LanguageModel

THREADS = (1, 2, 3, 4, 6, 8, 16)
# Rows of such a width are cut between threads from 16 rows on, and never between vectors.
ODD = 2051
ROWS = (2, 8, 17, 33)


def logits(model: LanguageModel, size: int) -> Tensor:
    """Of 40 tokens after each other, in chunks of so many."""
    pool = PagePool(10, 4)
    table = pool.table()
    table.reserve(40)
    tokens = [(3 + 44 * place) % model.vocab_size for place in range(40)]
    rows = []
    for begin in range(0, 40, size):
        chunk = Chunk(tokens[begin : begin + size], table, len(tokens[begin : begin + size]))
        rows.append(model.forward([chunk]))
        table.extend(len(chunk.tokens))
    return torch.cat(rows)


def assert_no_bit_changes(model: LanguageModel, sizes: Sequence[int] = ROWS) -> None:
    model.allocate(10, 4)
    torch.set_num_threads(1)
    alone = logits(model, 1)
    for count in THREADS:
        torch.set_num_threads(count)
        for size in sizes:
            assert torch.equal(logits(model, size), alone), (count, size)
