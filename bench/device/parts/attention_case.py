"""One shape of attention and its inputs: random contexts in pages of random order.

Knows shapes and how a launch is made of them. Does not know what is timed and compared.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.device.clock import device
from common.kernels.attention_tiles import SPLIT_KEYS, Tiles, choose_tiles, rows_per_tile
from common.kernels.paged_attention import paged_attention
from common.kv.pages import PagePool
from common.model.batch import Chunk, flatten

PAGE_SIZE = 16


@dataclass(frozen=True)
class Shape:
    sessions: int
    context: int
    rows: int  # per session
    heads: int = 28
    kv_heads: int = 4
    size: int = 128
    dtype: torch.dtype = torch.bfloat16

    @property
    def label(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.sessions}x{self.context}x{self.rows} rows, head {self.size}, {dtype}"

    @property
    def kv_bytes(self) -> int:
        each = 2 * self.kv_heads * self.size * self.dtype.itemsize
        return self.sessions * self.context * each


class Case:
    """Inputs of one shape. The rows are the last ones of their contexts."""

    def __init__(self, shape: Shape, tiles: Tiles | None = None, split: int = SPLIT_KEYS) -> None:
        self.shape, self.split = shape, split
        self.tiles = tiles or choose_tiles(shape.size, shape.heads // shape.kv_heads, shape.dtype)
        pages_each = -(-shape.context // PAGE_SIZE)
        pool = PagePool(shape.sessions * pages_each, PAGE_SIZE)
        random.Random(0).shuffle(pool._free)
        self.tables = [pool.table() for _ in range(shape.sessions)]
        for table in self.tables:
            table.reserve(shape.context)
        store = (pool.num_pages, PAGE_SIZE, shape.kv_heads, shape.size)
        self.keys = torch.randn(store, dtype=shape.dtype, device=device())
        self.values = torch.randn(store, dtype=shape.dtype, device=device())
        self.query = torch.randn(
            (shape.sessions, shape.rows, shape.heads, shape.size),
            dtype=shape.dtype,
            device=device(),
        )
        self.scale = shape.size**-0.5

    def call(
        self, sessions: range | None = None, rows: range | None = None
    ) -> Callable[[], Tensor]:
        """A launch over some sessions and some of their rows: -> [rows, heads, size]."""
        shape = self.shape
        sessions, rows = sessions or range(shape.sessions), rows or range(shape.rows)
        for table in self.tables:
            table.length = shape.context - shape.rows + rows.start
        chunks = [Chunk([0] * len(rows), self.tables[session], 0) for session in sessions]
        group = shape.heads // shape.kv_heads
        flat = flatten(chunks, PAGE_SIZE, rows_per_tile(self.tiles, group), self.split)
        arrays = (flat.pages, flat.work_tiles, flat.positions, flat.row_tiles, flat.rows_in_tile)
        pages, work_tiles, positions, row_tiles, rows_in_tile = (
            torch.from_numpy(array).to(device()) for array in arrays
        )
        counts = torch.tensor([flat.rows, len(flat.work_tiles)], dtype=torch.int32, device=device())
        query = self.query[sessions.start : sessions.stop, rows.start : rows.stop]
        query = query.flatten(0, 1).contiguous()
        return lambda: paged_attention(
            query,
            self.keys,
            self.values,
            pages,
            work_tiles,
            positions,
            row_tiles,
            rows_in_tile,
            counts,
            self.tiles,
            scale=self.scale,
            split_keys=self.split,
        )

    def dense(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [sessions, heads, rows, size], keys and values without pages."""
        pages = torch.tensor([table.pages for table in self.tables], device=device())
        keys = self.keys[pages].flatten(1, 2)[:, : self.shape.context]
        values = self.values[pages].flatten(1, 2)[:, : self.shape.context]
        dense = (self.query, keys, values)
        query, keys, values = (tensor.transpose(1, 2).contiguous() for tensor in dense)
        return query, keys, values
