"""Where keys and values lie: two tensors per layer, cut into pages.

Knows tensors and how a page table maps positions to slots. Does not know who owns a page
(common/kv/pages.py) and how attention is computed (common/model/*_attention.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LayerShape:
    """What one attention layer keeps per token."""

    kv_heads: int
    head_size: int

    def bytes_per_token(self, dtype: torch.dtype = torch.float32) -> int:
        return 2 * dtype.itemsize * self.kv_heads * self.head_size  # keys and values


class KVStore:
    """Keys and values, [pages, page_size, kv_heads, head_size] per layer.

    The memory is reserved, not touched: a CPU's system gives it page by page as it is written.
    """

    def __init__(
        self,
        layers: Sequence[LayerShape],
        num_pages: int,
        page_size: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.page_size = page_size
        self.num_pages = num_pages
        shapes = [(num_pages, page_size, layer.kv_heads, layer.head_size) for layer in layers]
        self._keys = [torch.empty(shape, dtype=dtype, device=device) for shape in shapes]
        self._values = [torch.empty(shape, dtype=dtype, device=device) for shape in shapes]

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer, as they lie."""
        return self._keys[layer], self._values[layer]

    def slots(self, pages: Sequence[int], begin: int, end: int) -> list[int]:
        """Flat slot numbers of positions [begin, end). Tensors would cost more for a few rows."""
        size = self.page_size
        return [pages[at // size] * size + at % size for at in range(begin, end)]

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Keep keys and values [rows, kv_heads, head_size] in `slots` [rows]."""
        self._keys[layer].flatten(0, 1).index_copy_(0, slots, keys)
        self._values[layer].flatten(0, 1).index_copy_(0, slots, values)

    def read(self, layer: int, pages: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Keys and values by position in `pages` (int64 [n]; a copy), or by slot, in all there are
        (a view): each [1, kv_heads, positions, head_size]."""
        keys, values = self._keys[layer], self._values[layer]
        if pages is not None:
            keys, values = keys.index_select(0, pages), values.index_select(0, pages)
        return _by_head(keys), _by_head(values)


def _by_head(pages: Tensor) -> Tensor:
    """[n, page_size, kv_heads, head_size] -> [1, kv_heads, n * page_size, head_size], a view."""
    return pages.flatten(0, 1).transpose(0, 1)[None]
