"""A variable-length batch as flat arrays: what each row, tile and split is, for kernels to read.

Knows chunks, pages, and how tiles and splits are numbered. Does not know tensors' devices and
what is computed. Everything is int32, since it is copied to the device in every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from common.kernels.attention_tiles import TILE_FIELDS
from common.kv.pages import PageTable

Ints = NDArray[np.int32]


@dataclass(frozen=True)
class Chunk:
    """Tokens of one sequence to run: they have positions [table.length, table.length + n).

    Their pages must be reserved. Logits are computed for the last `logit_rows` of them.
    """

    tokens: Sequence[int]
    table: PageTable
    logit_rows: int


@dataclass(frozen=True)
class FlatBatch:
    """One batch. A tile has consecutive rows of one chunk; a work tile is one split of it."""

    ids: Ints  # [rows]
    positions: Ints  # [rows]
    slots: Ints  # [rows], page * page_size + place in the page
    row_tiles: Ints  # [rows], the work tile of the row's tile and split 0
    rows_in_tile: Ints  # [rows], the row's index in its tile
    work_tiles: Ints  # [work tiles, TILE_FIELDS], (attention_tiles.py), a tile's splits in order
    pages: Ints  # [pages], the chunks' pages one after another
    wanted: NDArray[np.int64]  # [sum of logit_rows], rows whose logits are asked for
    tiles: Ints  # [tiles, 4]: first work tile, work tiles, first row, rows

    @property
    def rows(self) -> int:
        return len(self.ids)

    def groups(self, max_tiles: int) -> tuple[tuple[int, int, int, int], ...]:
        """Consecutive tiles of at most `max_tiles` work tiles (or one tile), for one launch each.

        As (first work tile, work tiles, first row, rows).
        """
        found: list[tuple[int, int, int, int]] = []
        for first_tile, work_tiles, first_row, rows in self.tiles.tolist():
            if found and found[-1][1] + work_tiles <= max_tiles:
                begin = found[-1]
                found[-1] = (begin[0], begin[1] + work_tiles, begin[2], begin[3] + rows)
            else:
                found.append((first_tile, work_tiles, first_row, rows))
        return tuple(found)


def flatten(chunks: Sequence[Chunk], page_size: int, tile_rows: int, split_keys: int) -> FlatBatch:
    """Number the rows, tiles and splits of `chunks`, in their order."""
    counts = np.array([len(chunk.tokens) for chunk in chunks], dtype=np.int64)
    begins = np.array([chunk.table.length for chunk in chunks], dtype=np.int64)
    lists = [
        chunk.table.numbers(-(-(b + n) // page_size))
        for chunk, b, n in zip(chunks, begins.tolist(), counts.tolist(), strict=True)
    ]
    first_pages = _starts(np.array([len(pages) for pages in lists], dtype=np.int64))
    pages = np.concatenate(lists)
    first_rows = _starts(counts)

    within = _within(counts)  # [rows], place in the chunk
    positions = np.repeat(begins, counts) + within
    page = pages[np.repeat(first_pages, counts) + positions // page_size].astype(np.int64)

    tiles = -(-counts // tile_rows)  # [chunks]
    tile = _within(tiles)  # [tiles], place in the chunk
    tile_counts = np.minimum(tile_rows, np.repeat(counts, tiles) - tile * tile_rows)
    tile_rows_begin = np.repeat(first_rows, tiles) + tile * tile_rows
    tile_positions = np.repeat(begins, tiles) + tile * tile_rows
    splits = -(-(tile_positions + tile_counts) // split_keys)  # [tiles]
    first_tiles = _starts(splits)

    columns = (np.repeat(first_pages, tiles), tile_rows_begin, tile_counts, tile_positions)
    work_tiles = np.empty((int(splits.sum()), TILE_FIELDS), dtype=np.int32)
    for field, column in enumerate(columns):
        work_tiles[:, field] = np.repeat(column, splits)
    work_tiles[:, -1] = _within(splits)
    wanted = np.array([chunk.logit_rows for chunk in chunks], dtype=np.int64)
    tokens = chain.from_iterable(chunk.tokens for chunk in chunks)
    return FlatBatch(
        ids=np.fromiter(tokens, dtype=np.int32, count=len(within)),
        positions=positions.astype(np.int32),
        slots=(page * page_size + positions % page_size).astype(np.int32),
        row_tiles=np.repeat(first_tiles, tile_counts).astype(np.int32),
        rows_in_tile=(within % tile_rows).astype(np.int32),
        work_tiles=work_tiles,
        pages=pages,
        wanted=np.repeat(first_rows + counts - wanted, wanted) + _within(wanted),
        tiles=np.stack([first_tiles, splits, tile_rows_begin, tile_counts], 1).astype(np.int32),
    )


def _starts(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each of consecutive runs begins."""
    return np.cumsum(counts) - counts


def _within(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """0, 1, …, n - 1 for every n in `counts`, one after another."""
    return np.arange(int(counts.sum())) - np.repeat(_starts(counts), counts)
