"""How attention is cut up: tile and split sizes, by head size and dtype, never by batch.

Knows sizes. Does not know kernels and tensors. Whatever is selected here determines a row's bits,
so nothing of it may depend on how many rows or sessions run together.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

SPLIT_KEYS = 512  # keys of one split; a multiple of every block_n
TILE_FIELDS = 5  # first page, first row, rows, first row's position, split


@dataclass(frozen=True)
class Tiles:
    """Of one attention layer. block_m: query rows times heads of a group; block_n: keys a step."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


def choose_tiles(head_size: int, group: int, dtype: torch.dtype) -> Tiles:
    """Tiles for `group` query heads per KV head.

    64 rows of 16-bit numbers fill one matrix instruction of a Hopper GPU, and nine tokens of a
    proposal with seven query heads per KV head fit in. float32 goes without matrix units. 32 keys a
    step: measured on an H200 against 64 and 128 with 64 sessions of 4,096 keys
    (docs/decisions/kernels.md).
    """
    minimum = 1 << (group - 1).bit_length()
    if dtype == torch.float32:
        return Tiles(
            max(16, minimum), 16 if head_size > 128 else 32, 4 if head_size <= 64 else 8, 1
        )
    if head_size > 128:
        return Tiles(max(64, minimum), 32, 8, 2)
    return Tiles(max(64, minimum), 32, 4, 3)


def rows_per_tile(tiles: Tiles, group: int) -> int:
    """Query rows (tokens) of one session that a tile holds."""
    return tiles.block_m // group
