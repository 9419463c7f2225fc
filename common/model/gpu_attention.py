"""Attention through kernels: what a batch looks like on the device, and its fixed-address form.

Knows the device's tensors and how a variable-length batch is copied into them. Does not know
models, sessions, and what a kernel computes (common/kernels/).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from common.device.runtime import Runtime
from common.kernels.attention_tiles import TILE_FIELDS, Tiles, choose_tiles, rows_per_tile
from common.kernels.kv_write import write_kv
from common.kernels.paged_attention import paged_attention
from common.kernels.rope_kv_write import rotate_write
from common.kv.store import KVStore, LayerShape
from common.model.batch import FlatBatch, Ints

PARTIAL_BYTES = 256 << 20  # of split results that one launch may leave for the merge
_FIELDS = (
    6  # of a row in StepBuffers: ids, positions, slots, row_tiles, rows_in_tile; wanted, apart
)


@dataclass(frozen=True)
class PagedLayer:
    """One attention layer: what it keeps, and how it is cut up."""

    shape: LayerShape
    group: int  # query heads per KV head
    tiles: Tiles

    @property
    def partial_bytes(self) -> int:
        """Of the results of one work tile."""
        return 4 * self.shape.kv_heads * self.tiles.block_m * (self.shape.head_size + 2)


class PagedLayers:
    """All layers of one model: they share a batch's tiles and splits."""

    def __init__(
        self, shapes: Sequence[LayerShape], groups: Sequence[int], dtype: torch.dtype
    ) -> None:
        self.dtype = dtype
        self.layers = [
            PagedLayer(shape, group, choose_tiles(shape.head_size, group, dtype))
            for shape, group in zip(shapes, groups, strict=True)
        ]
        self.tile_rows = min(rows_per_tile(layer.tiles, layer.group) for layer in self.layers)
        largest = max(layer.partial_bytes for layer in self.layers)
        self.max_tiles = max(1, PARTIAL_BYTES // largest)  # of one launch


@dataclass(frozen=True)
class PagedBatch:
    """A variable-length batch on the device. Its tensors may be longer than `counts` says."""

    store: KVStore
    layers: PagedLayers
    ids: Tensor  # int32 [rows]
    positions: Tensor  # int32 [rows]
    slots: Tensor  # int32 [rows]
    row_tiles: Tensor  # int32 [rows]
    rows_in_tile: Tensor  # int32 [rows]
    wanted: Tensor  # int [wanted]: rows whose logits are asked for, row 0 where it pads a step
    work_tiles: Tensor  # int32 [work tiles, TILE_FIELDS]
    pages: Tensor  # int32 [pages]
    counts: Tensor  # int32 [2]: rows, work tiles that are real
    groups: tuple[tuple[int, int, int, int], ...] | None  # launches; None is one of all

    def attend(
        self,
        layer: int,
        query: Tensor,  # [1, heads, rows, head_size]
        key: Tensor,  # [1, kv_heads, rows, head_size]
        value: Tensor,
        scaling: float | None,
        window: int | None,
        softcap: float | None,
        sinks: Tensor | None,
    ) -> Tensor:
        """See common/model/attention_interface.py: -> [1, rows, heads, head_size]."""
        keys, values = self.store.layer(layer)
        write_kv(
            keys,
            values,
            key[0].transpose(0, 1),
            value[0].transpose(0, 1),
            self.slots,
            self.counts,
        )
        rows = query[0].transpose(0, 1)
        return self.attention(layer, rows, scaling, window, softcap, sinks)[None]

    def rotate_write(
        self, layer: int, product: Tensor, bias: Tensor | None, cos: Tensor, sin: Tensor
    ) -> Tensor:
        """Rotate queries and keys, write keys and values: -> queries [rows, heads, head_size].

        product: [splits, rows, (heads + 2 * kv_heads) * head_size]; cos, sin: [rows, head_size].
        """
        keys, values = self.store.layer(layer)
        return rotate_write(keys, values, product, bias, cos, sin, self.slots, self.counts)

    def attention(
        self,
        layer: int,
        query: Tensor,  # [rows, heads, head_size]
        scaling: float | None,
        window: int | None,
        softcap: float | None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attend to what is written: -> [rows, heads, head_size]."""
        keys, values = self.store.layer(layer)
        return paged_attention(
            query,
            keys,
            values,
            self.pages,
            self.work_tiles,
            self.positions,
            self.row_tiles,
            self.rows_in_tile,
            self.counts,
            self.layers.layers[layer].tiles,
            scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
            window=window,
            softcap=softcap,
            sinks=sinks,
            groups=self.groups,
        )


def place(rows: FlatBatch, store: KVStore, layers: PagedLayers, device: torch.device) -> PagedBatch:
    """The batch in new tensors of its own size."""

    def there(values: Ints) -> Tensor:
        return torch.from_numpy(values).to(device)

    return PagedBatch(
        store,
        layers,
        ids=there(rows.ids),
        positions=there(rows.positions),
        slots=there(rows.slots),
        row_tiles=there(rows.row_tiles),
        rows_in_tile=there(rows.rows_in_tile),
        wanted=torch.from_numpy(rows.wanted).to(device),
        work_tiles=there(rows.work_tiles),
        pages=there(rows.pages),
        counts=there(np.array([rows.rows, len(rows.work_tiles)], dtype=np.int32)),
        groups=rows.groups(layers.max_tiles),
    )


class StepBuffers:
    """Buffers for one batch at fixed addresses, so that a CUDA graph can be replayed on another.

    `most_rows`, `max_tiles`: the largest batch; every page of the store has one owner, so a
    batch's page lists are never longer than the store.
    """

    def __init__(
        self,
        store: KVStore,
        layers: PagedLayers,
        most_rows: int,
        max_tiles: int,
        device: torch.device,
        runtime: Runtime,
    ) -> None:
        self._store, self._layers = store, layers
        sizes = (2 + _FIELDS * most_rows, max_tiles * TILE_FIELDS, store.num_pages)
        pinned = runtime.pinned
        self._host = [torch.zeros(n, dtype=torch.int32, pin_memory=pinned) for n in sizes]
        self._device = [torch.zeros(n, dtype=torch.int32, device=device) for n in sizes]
        self._most_rows = most_rows
        self._copied = runtime.event()

    def view(self, rows: int, work_tiles: int) -> PagedBatch:
        """The first `rows` rows and `work_tiles` work tiles of the buffers, as a batch."""
        head, flat, pages = self._device
        fields = head[2:].view(_FIELDS, self._most_rows)[:, :rows]  # [_FIELDS, rows]
        return PagedBatch(
            self._store,
            self._layers,
            ids=fields[0],
            positions=fields[1],
            slots=fields[2],
            row_tiles=fields[3],
            rows_in_tile=fields[4],
            wanted=fields[5],
            work_tiles=flat[: work_tiles * TILE_FIELDS].view(work_tiles, TILE_FIELDS),
            pages=pages,
            counts=head[:2],
            groups=None,
        )

    def fill(self, rows: FlatBatch) -> None:
        """Copy a batch in. Rows beyond it keep old ids and positions; `counts` rules them out."""
        self._copied.wait()  # the last copy has left the host's side
        head, flat, pages = (tensor.numpy() for tensor in self._host)
        head[0], head[1] = rows.rows, len(rows.work_tiles)
        fields = head[2:].reshape(_FIELDS, self._most_rows)
        columns = (rows.ids, rows.positions, rows.slots, rows.row_tiles, rows.rows_in_tile)
        for field, column in enumerate(columns):
            fields[field, : rows.rows] = column
        fields[_FIELDS - 1] = 0  # what was wanted before may be no row of this size
        fields[_FIELDS - 1, : len(rows.wanted)] = rows.wanted
        flat[: rows.work_tiles.size] = rows.work_tiles.ravel()
        pages[: len(rows.pages)] = rows.pages
        used = (len(head), rows.work_tiles.size, len(rows.pages))
        for host, there, count in zip(self._host, self._device, used, strict=True):
            there[:count].copy_(host[:count], non_blocking=True)
        self._copied.record()
