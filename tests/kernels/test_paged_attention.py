"""Attention kernels, interpreted: their reference's values, and bits that are a row's own."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from common.kernels import kv_write, paged_attention
from common.kernels import reference as reference
from common.kernels.attention_tiles import Tiles, choose_tiles, rows_per_tile
from common.kv.pages import PagePool, PageTable
from common.model.batch import Chunk, FlatBatch, flatten

pytestmark = pytest.mark.kernels

PAGE_SIZE, SPLIT = 8, 64
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


@dataclass
class Store:
    """Random keys and values for sessions of given lengths, over pages in a random order."""

    keys: torch.Tensor
    values: torch.Tensor
    tables: list[PageTable]
    query: torch.Tensor  # of every position of every session, [sessions, longest, heads, size]

    @classmethod
    def of(
        cls,
        lengths: tuple[int, ...],
        heads: int,
        kv_heads: int,
        size: int,
        dtype: torch.dtype = torch.float32,
    ) -> Store:
        generator = torch.Generator().manual_seed(sum(lengths) + size)
        pool = PagePool(sum(-(-n // PAGE_SIZE) for n in lengths) + 2, PAGE_SIZE)
        tables = [pool.table() for _ in lengths]
        for step in range(1, -(-max(lengths) // PAGE_SIZE) + 1):  # pages alternate
            for table, length in zip(tables, lengths, strict=True):
                table.reserve(min(length, step * PAGE_SIZE))

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator).to(dtype)

        store = (pool.num_pages, PAGE_SIZE, kv_heads, size)
        stage = cls(
            random(*store), random(*store), tables, random(len(lengths), max(lengths), heads, size)
        )
        # What nobody wrote may be anything.
        for table, length in zip(tables, lengths, strict=True):
            if length % PAGE_SIZE:
                stage.keys[table.pages[-1], length % PAGE_SIZE :] = float("nan")
                stage.values[table.pages[-1], length % PAGE_SIZE :] = float("nan")
        return stage

    def attend(self, spans: list[tuple[int, int, int]], tiles: Tiles, **how: Any) -> torch.Tensor:
        """Rows [begin, end) of each (session, begin, end), in one batch."""
        rows = self.flatten(spans, rows_per_tile(tiles, self.query.shape[2] // self.keys.shape[2]))
        query = torch.cat([self.query[session, begin:end] for session, begin, end in spans])
        return paged_attention.paged_attention(
            query,
            self.keys,
            self.values,
            torch.from_numpy(rows.pages),
            torch.from_numpy(rows.work_tiles),
            torch.from_numpy(rows.positions),
            torch.from_numpy(rows.row_tiles),
            torch.from_numpy(rows.rows_in_tile),
            torch.tensor([rows.rows, len(rows.work_tiles)], dtype=torch.int32),
            tiles,
            split_keys=SPLIT,
            **{"scale": 0.3, **how},
        )

    def flatten(self, spans: list[tuple[int, int, int]], tile_rows: int) -> FlatBatch:
        chunks = []
        for session, begin, end in spans:
            table = copy(self.tables[session])  # a session may be twice in a batch here
            table.length = begin
            chunks.append(Chunk([0] * (end - begin), table, 0))
        return flatten(chunks, PAGE_SIZE, tile_rows, SPLIT)

    def expected(self, spans: list[tuple[int, int, int]], **how: Any) -> torch.Tensor:
        return torch.cat(
            [
                reference.paged_attention(
                    self.query[session, begin:end],
                    self.keys,
                    self.values,
                    torch.tensor(self.tables[session].pages),
                    begin,
                    **{"scale": 0.3, **how},
                )
                for session, begin, end in spans
            ]
        )


def far(value: torch.Tensor, expected: torch.Tensor) -> float:
    return float((value.double() - expected).norm() / expected.norm())


SPANS = [(0, 140, 147), (1, 0, 1), (2, 3, 10), (0, 149, 150), (1, 62, 65)]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "how"),
    [
        (3, 3, {}),
        (6, 2, {"window": 20}),
        (7, 1, {"window": 70}),
        (4, 1, {"softcap": 2.0}),
        (4, 2, {"window": 20, "softcap": 2.0}),
        (4, 2, {"sinks": torch.tensor([-3.0, 0.0, 2.0, 30.0])}),
        (4, 2, {"window": 20, "sinks": torch.tensor([0.5, 1.0, -1.0, 4.0])}),
    ],
)
def test_variable_length_rows_have_the_references_values(
    heads: int, kv_heads: int, how: dict[str, Any]
) -> None:
    stage = Store.of((150, 65, 32), heads, kv_heads, 32)
    tiles = choose_tiles(64, heads // kv_heads, torch.float32)
    value = stage.attend(SPANS, tiles, **how)
    assert far(value, stage.expected(SPANS, **how)) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("size", [16, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_every_head_size_and_dtype_has_the_references_values(size: int, dtype: torch.dtype) -> None:
    stage = Store.of((90, 17), 4, 2, size, dtype)
    spans = [(0, 87, 90), (1, 16, 17)]
    value = stage.attend(spans, choose_tiles(size, 2, dtype), scale=size**-0.5)
    assert value.dtype == dtype
    assert far(value, stage.expected(spans, scale=size**-0.5)) < TOLERANCE[dtype]


@pytest.mark.parametrize("end", [1, 7, 8, 9, 31, 32, 33, 63, 64, 65, 127, 128, 129])
def test_pages_blocks_and_splits_may_end_anywhere(end: int) -> None:
    stage = Store.of((end,), 2, 1, 16)
    spans = [(0, max(0, end - 3), end)]
    value = stage.attend(spans, choose_tiles(16, 2, torch.float32))
    assert far(value, stage.expected(spans)) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("how", [{}, {"window": 20, "softcap": 2.0}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rows_bits_are_its_own(how: dict[str, Any], dtype: torch.dtype) -> None:
    """Alone, among others of its session in any tile, and among other sessions."""
    stage = Store.of((150, 65, 32), 3, 1, 32, dtype)
    tiles = choose_tiles(32, 3, dtype)
    alone = torch.cat([stage.attend([(0, at, at + 1)], tiles, **how) for at in range(126, 150)])
    assert torch.equal(stage.attend([(0, 126, 150)], tiles, **how), alone)
    others = [(1, 64, 65), (2, 25, 32)]
    cuts = [(0, 126, 129), (0, 129, 131), (0, 131, 145), (0, 145, 150)]
    for begin, end in ((a, b) for _, a, b in cuts):
        batch = stage.attend([others[0], (0, begin, end), others[1]], tiles, **how)
        assert torch.equal(batch[1 : 1 + end - begin], alone[begin - 126 : end - 126])


def test_several_launches_change_no_bit() -> None:
    stage = Store.of((150, 65, 32), 6, 2, 32)
    tiles = choose_tiles(32, 3, torch.float32)
    rows = stage.flatten(SPANS, rows_per_tile(tiles, 3))
    groups = rows.groups(4)
    assert len(groups) > 3
    assert groups[-1][0] + groups[-1][1] == len(rows.work_tiles)
    assert torch.equal(stage.attend(SPANS, tiles, groups=groups), stage.attend(SPANS, tiles))


def test_rows_and_work_tiles_beyond_the_real_ones_change_nothing() -> None:
    """As in a batch that was padded to a CUDA graph's size."""
    stage = Store.of((150, 65, 32), 6, 2, 32)
    tiles = choose_tiles(32, 3, torch.float32)
    expected = stage.attend(SPANS, tiles)
    rows = stage.flatten(SPANS, rows_per_tile(tiles, 3))
    garbage = 10**6

    def padded(values: np.ndarray) -> torch.Tensor:
        behind = np.full((5, *values.shape[1:]), garbage, dtype=np.int32)
        return torch.from_numpy(np.concatenate([values, behind]))

    query = torch.cat([stage.query[session, begin:end] for session, begin, end in SPANS])
    value = paged_attention.paged_attention(
        torch.cat([query, torch.full((5, 6, 32), float("nan"))]),
        stage.keys,
        stage.values,
        torch.from_numpy(rows.pages),
        padded(rows.work_tiles),
        padded(rows.positions),
        padded(rows.row_tiles),
        padded(rows.rows_in_tile),
        torch.tensor([rows.rows, len(rows.work_tiles)], dtype=torch.int32),
        tiles,
        scale=0.3,
        split_keys=SPLIT,
    )
    assert torch.equal(value[:-5], expected)
    assert not value[-5:].any()


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_keys_and_values_are_written_into_their_slots_and_nowhere_else(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    stage = [torch.randn((5, 4, 3, 24), generator=generator).to(dtype) for _ in range(2)]
    theirs = [tensor.clone() for tensor in stage]
    # As they come from a projection: [rows, heads, size] is a view of [heads, rows, size].
    new = [torch.randn((3, 6, 24), generator=generator).to(dtype).transpose(0, 1) for _ in stage]
    slots = torch.tensor([7, 0, 19, 3, 10**6, 10**6], dtype=torch.int32)
    counts = torch.tensor([4, 0], dtype=torch.int32)
    kv_write.write_kv(stage[0], stage[1], new[0], new[1], slots, counts)
    reference.write_kv(theirs[0], theirs[1], new[0], new[1], slots, counts)
    assert torch.equal(stage[0], theirs[0]) and torch.equal(stage[1], theirs[1])
