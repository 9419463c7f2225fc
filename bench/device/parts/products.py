"""Rows times weights on a device: our kernel, torch's beside it, and the time of one reading.

Knows matrices. Does not know models. Several copies of a matrix take turns, so that it comes from
memory as in a step, not from the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import torch
from torch.nn.functional import linear

from bench.device.budget import Budget
from bench.device.clock import device, seconds_of
from bench.device.table import Row
from common.kernels import reference as reference
from common.kernels.row_product import ProductTiles, product_tiles, row_product

TOGETHER = 256 << 20  # bytes of all copies of one matrix


def product_table(
    matrices: list[tuple[int, int]],
    rows: list[int],
    bytes_per_second: float,
    budget: Budget,
    tune: bool = False,
) -> list[Row]:
    """Microseconds for each number of rows; with `tune`, of other tiles too."""
    found = []
    for outer, inner in matrices:
        if not budget.allows(f"products with {outer} x {inner}"):
            continue
        size = 2 * outer * inner
        copies = max(1, TOGETHER // size) if torch.cuda.is_available() else 1
        weights = [
            torch.randn((outer, inner), dtype=torch.bfloat16, device=device()) * inner**-0.5
            for _ in range(copies)
        ]
        x = torch.randn((max(rows), inner), dtype=torch.bfloat16, device=device())
        chosen = product_tiles(outer, inner)
        candidates = [chosen, *(_others(outer, inner) if tune else [])]
        for tiles in candidates:
            line = _line(outer, inner, tiles, size / bytes_per_second)
            value = row_product(x[:9], weights[0], tiles).sum(0)
            expected = reference.row_product(x[:9], weights[0])
            line["error"] = float((value.double() - expected).norm() / expected.norm())
            line["right"] = line["error"] < 1e-2
            for count in rows if tiles is chosen else (1, 64):
                few = x[:count]
                line[f"ours_{count}"] = _each(
                    [lambda w=w, t=tiles, x=few: row_product(x, w, t) for w in weights]  # type: ignore[misc]
                )
                if tiles is chosen:
                    line[f"torch_{count}"] = _each(
                        [lambda w=w, x=few: linear(x, w) for w in weights]  # type: ignore[misc]
                    )
            found.append(line)
    return found


def _line(outer: int, inner: int, tiles: ProductTiles, floor: float) -> Row:
    names = (tiles.block_n, tiles.block_k, tiles.splits, tiles.num_warps, tiles.num_stages)
    return {
        "matrix": f"{outer}x{inner}",
        "n/k/splits/warps/stages": "/".join(map(str, names)),
        "floor_us": floor * 1e6,
    }


def _each(calls: list[Callable[[], object]]) -> float:
    """Microseconds of one call, when all take turns."""

    def turn() -> None:
        for call in calls:
            call()

    return seconds_of(turn, repeats=5, inside=1) * 1e6 / len(calls)


def _others(outer: int, inner: int) -> list[ProductTiles]:
    """Tiles worth trying."""
    found = []
    shapes = [(64, 128, 4, 3), (32, 256, 4, 3), (32, 128, 4, 5), (128, 128, 4, 3), (64, 256, 4, 3)]
    for (n, k, warps, stages), programs in product(shapes, (256, 512, 1024)):
        blocks = -(-inner // k)
        splits = max(1, min(-(-programs // -(-outer // n)), blocks, 16))
        chunk = -(-blocks // splits) * k
        tiles = ProductTiles(n, k, chunk, -(-inner // chunk), warps, stages)
        if tiles not in found:
            found.append(tiles)
    return found
