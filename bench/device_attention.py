"""The attention kernel on a device: its share of the copy bandwidth, its errors, torch beside it.

Knows shapes and baselines. Refuses to know models. Contexts are random numbers in pages of random
order; what one launch must read is the keys and values of all sessions, once.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from bench import device_flashinfer as flashinfer
from bench.device_budget import Budget
from bench.device_clock import device, seconds_of
from bench.device_table import Row
from common.kernels import reference
from common.kernels.paged_attention import paged_attention
from common.kernels.tiles import SPLIT_KEYS, Tiles, choose_tiles, rows_per_tile
from common.kv_cache import PagePool
from common.ragged import Chunk, flatten

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
        arrays = (flat.pages, flat.items, flat.positions, flat.row_items, flat.lanes)
        pages, items, positions, row_items, lanes = (
            torch.from_numpy(array).to(device()) for array in arrays
        )
        counts = torch.tensor([flat.rows, len(flat.items)], dtype=torch.int32, device=device())
        query = self.query[sessions.start : sessions.stop, rows.start : rows.stop]
        query = query.flatten(0, 1).contiguous()
        return lambda: paged_attention(
            query,
            self.keys,
            self.values,
            pages,
            items,
            positions,
            row_items,
            lanes,
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


def kernel_table(shapes: list[Shape], bytes_per_second: float, budget: Budget) -> list[Row]:
    """Time and share of the copy bandwidth, and others' attention beside it, where it is there."""
    found = []
    others = {"sdpa_us": sdpa}
    if flashinfer.is_installed():
        others |= {"flashinfer_us": flashinfer.fastest, "flashinfer_fixed_us": flashinfer.fixed}
    for shape in shapes:
        if not budget.allows(f"attention of {shape.label}"):
            continue
        case = Case(shape)
        floor = shape.kv_bytes / bytes_per_second
        seconds = seconds_of(case.call())
        line: Row = {
            "sessions": shape.sessions,
            "context": shape.context,
            "rows": shape.rows,
            "us": seconds * 1e6,
            "share": floor / seconds,
        }
        for name, baseline in others.items():
            try:
                line[name] = seconds_of(baseline(case)) * 1e6
            except Exception as cause:  # a baseline that doesn't run is told, not hidden
                line[name] = type(cause).__name__
                line[f"{name}_why"] = str(cause).strip()[:300]
        found.append(line)
    return found


def sdpa(case: Case) -> Callable[[], Tensor]:
    """torch's scaled_dot_product_attention over dense keys, with a mask where it needs one."""
    query, keys, values = case.dense()
    rows, context = case.shape.rows, case.shape.context
    mask = None
    if rows > 1:
        ends = torch.arange(context - rows + 1, context + 1, device=device())
        mask = torch.arange(context, device=device())[None] < ends[:, None]  # [rows, context]
    return lambda: scaled_dot_product_attention(
        query, keys, values, attn_mask=mask, scale=case.scale, enable_gqa=True
    )


def error_table(shapes: list[Shape], budget: Budget) -> list[Row]:
    """‖out - float64‖ / ‖float64‖ on fresh inputs, and whether a row's bits are its own."""
    found: list[Row] = []
    for shape in shapes:
        if not budget.allows(f"attention errors of {shape.label}"):
            continue
        case = Case(shape)
        whole = case.call()()  # [sessions * rows, heads, size]
        last = shape.sessions - 1
        expected = reference.paged_attention(
            case.query[last],
            case.keys,
            case.values,
            torch.tensor(case.tables[last].pages, device=device()),
            shape.context - shape.rows,
            scale=case.scale,
        )
        mine = whole.view(shape.sessions, shape.rows, shape.heads, shape.size)[last]
        one = range(last, last + 1)
        alone = torch.cat([case.call(one, range(r, r + 1))() for r in range(shape.rows)])
        error = float((mine.double() - expected).norm() / expected.norm())
        limit = 1e-4 if shape.dtype == torch.float32 else 1e-2
        found.append(
            {
                "check": "attention",
                "shape": shape.label,
                "error": error,
                "right": bool(whole.isfinite().all()) and error < limit,
                "bits_of_rows_alone": bool(torch.equal(alone, mine)),
                "bits_of_session_alone": bool(torch.equal(case.call(one)(), mine)),
            }
        )
    return found


def tile_table(shapes: list[Shape], bytes_per_second: float, budget: Budget) -> list[Row]:
    """Other tiles and splits, for choosing: times of every shape by configuration."""
    candidates = [
        (Tiles(64, block_n, warps, stages), split)
        for block_n, warps, stages, split in product((32, 64), (4, 8), (2, 3), (SPLIT_KEYS, 1024))
    ]
    candidates += [(Tiles(m, 32, 4, 3), SPLIT_KEYS) for m in (16, 32)]
    found = []
    for tiles, split in candidates:
        if not budget.allows(f"{tiles} over {split} keys"):
            continue
        line: Row = {"tiles": str(tiles).removeprefix("Tiles"), "split": split}
        for shape in shapes:
            name = f"{shape.sessions}x{shape.context}x{shape.rows}"
            try:
                seconds = seconds_of(Case(shape, tiles, split).call())
                line[f"{name}_us"] = seconds * 1e6
                line[f"{name}_share"] = shape.kv_bytes / bytes_per_second / seconds
            except Exception as cause:  # a candidate too large for this device is no candidate
                line[f"{name}_us"] = type(cause).__name__
        found.append(line)
    return found
