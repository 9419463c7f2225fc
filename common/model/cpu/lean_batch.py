"""A batch as the kernels' own pass reads it: rows, their places, rotary angles, scratch.

Knows chunks and page tables. Does not know what is computed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from common.model.batch import Chunk
from common.model.cpu.architecture import Architecture, Weights
from common.model.cpu.int8 import Scratch
from common.native.structs import DEPTH

_FEWEST_POSITIONS = 2048  # that rotary tables begin with


@dataclass(frozen=True)
class Rows:
    """A batch as the kernels read it."""

    ids: NDArray[np.int64]  # [rows]
    slots: NDArray[np.int32]  # [rows]
    ends: NDArray[np.int32]  # [rows], position and one
    tables: NDArray[np.int32]  # [rows], where the sequence's pages begin
    pages: NDArray[np.int32]
    wanted: NDArray[np.int32]

    @classmethod
    def of(cls, chunks: Sequence[Chunk], page_size: int) -> Rows:
        counts = [len(chunk.tokens) for chunk in chunks]
        ids = np.fromiter((token for chunk in chunks for token in chunk.tokens), np.int64)
        ends = np.empty(len(ids), np.int32)
        tables = np.empty(len(ids), np.int32)
        wanted: list[int] = []
        pages = []
        row = page = 0
        for chunk, count in zip(chunks, counts, strict=True):
            begin = chunk.table.length
            own = chunk.table.numbers(-(-(begin + count) // page_size))
            ends[row : row + count] = range(begin + 1, begin + count + 1)
            tables[row : row + count] = page
            row += count
            page += len(own)
            pages.append(own)
            wanted.extend(range(row - chunk.logit_rows, row))
        numbers = pages[0] if len(pages) == 1 else np.concatenate(pages)
        places = ends - 1
        slots = numbers[tables + places // page_size] * page_size + places % page_size
        return cls(ids, slots, ends, tables, numbers, np.array(wanted, np.int32))


class Angles:
    """Cosines and sines of rotary positions, of up to two kinds, [positions, head_size / 2]."""

    def __init__(self, architecture: Architecture, weights: Weights) -> None:
        self._scales = architecture.angle_scales
        kinds = range(len(self._scales))
        self._frequencies = [weights[f"angles.{kind}"].numpy() for kind in kinds]
        self._reached = 0
        self.reach(_FEWEST_POSITIONS)

    def reach(self, positions: int) -> None:
        """Positions below this are in the tables from now on."""
        if positions <= self._reached:
            return
        self._reached = max(positions, 2 * self._reached)
        at = np.arange(self._reached, dtype=np.float32)[:, None]
        self._tables = []
        for frequencies, scale in zip(self._frequencies, self._scales, strict=True):
            # float32 as model code has them; their functions in float64, which rounds alike
            # whatever computes it.
            angles = (at * frequencies[None]).astype(np.float64)
            pair = (np.cos(angles) * scale, np.sin(angles) * scale)
            self._tables.append([each.astype(np.float32) for each in pair])
        addresses = [[each.ctypes.data for each in pair] for pair in self._tables]
        pointers = ctypes.c_void_p * 2
        self.cosines = pointers(*(pair[0] for pair in addresses))
        self.sines = pointers(*(pair[1] for pair in addresses))


class Room:
    """Scratch for a pass, as large as the largest one so far."""

    def __init__(self, architecture: Architecture, weights: Weights) -> None:
        sizes = architecture
        self._widths = {
            "hidden": sizes.width,
            "normed": sizes.width,
            "qkv": (sizes.heads + 2 * sizes.kv_heads) * sizes.head_size,
            "attended": sizes.heads * sizes.head_size,
            "gated": sizes.mlp_width,
        }
        self._widest = max(each.shape[1] for each in weights.values() if each.dim() == 5) * DEPTH
        self._scratch = Scratch()
        self._rows = 0

    def for_rows(self, rows: int) -> Room:
        if rows > self._rows:
            self._rows = rows
            made = {name: torch.empty((rows, width)) for name, width in self._widths.items()}
            self.hidden, self.normed, self.qkv = made["hidden"], made["normed"], made["qkv"]
            self.attended, self.gated = made["attended"], made["gated"]
            self.quantised = self._scratch.for_rows(rows, self._widest)
        return self
