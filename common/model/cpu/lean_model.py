"""A model of known layers in int8 whose whole pass is one call into the kernels.

Knows where tensors lie, and how a batch is described to the kernels (common/native). Does not know
transformers: what it needs was read out once (common/model/cpu/lean_weights.py). Rows, their order
and the number of threads change no bit: integer sums are exact, and everything else is done for
each row by one thread in one order.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from common.device.runtime import runtime_of
from common.kv.store import KVStore, LayerShape
from common.model.batch import Chunk
from common.model.cpu.architecture import Architecture, Weights, is_whole
from common.model.cpu.int8 import Int8Weights
from common.model.cpu.lean_batch import Angles, Room, Rows
from common.native import structs
from common.native.library import Kernels, kernels


@dataclass(frozen=True)
class About:
    """What files say about a model beside its layers."""

    eos_ids: frozenset[int]
    max_context_length: int


class LeanModel:
    """See common/model/language_model.py."""

    kernels = False
    eager_passes = 0
    graph_sizes = 0
    dtype = torch.float32

    def __init__(
        self,
        architecture: Architecture,
        weights: Weights,
        about: About,
        threads: int = 0,
        build: Kernels | None = None,
    ) -> None:
        """threads: 0 for all cores. build: None is the best that runs here."""
        found = build or kernels()
        assert found is not None
        self._kernels = found
        self.architecture, self.weights = architecture, weights  # the kernels read them in place
        self._pool = found.pool(threads or torch.get_num_threads())
        self.device = torch.device("cpu")
        self.runtime = runtime_of(self.device)
        self.vocab_size = architecture.vocab
        self.max_context_length = about.max_context_length
        self.eos_ids = about.eos_ids
        shape = LayerShape(architecture.kv_heads, architecture.head_size)
        self.layers = [shape] * architecture.depth
        self.row_invariant = True
        self.arithmetic = "int8, lean"  # the same bits by any build of the kernels
        self._embedding = weights["embedding"]
        self._angles = Angles(architecture, weights)
        layers = map(self._layer, range(architecture.depth))
        self._layers = (structs.Layer * architecture.depth)(*layers)
        self._model = self._described()
        self._room = Room(architecture, weights)
        self._store: KVStore | None = None

    @classmethod
    def of_file(cls, about: dict[str, Any], weights: Weights, threads: int = 0) -> LeanModel:
        """From what common/model/loading.py wrote. Raises KeyError or TypeError for another."""
        architecture = Architecture(**about["architecture"])
        if not is_whole(architecture, weights):
            raise TypeError("tensors have other shapes")
        return cls(
            architecture,
            weights,
            About(frozenset(about["eos_ids"]), about["max_context_length"]),
            threads,
        )

    @property
    def bytes_per_token(self) -> int:
        """Of KV cache."""
        return sum(layer.bytes_per_token(self.dtype) for layer in self.layers)

    def allocate(self, num_pages: int, page_size: int) -> None:
        """Allocate the KV cache; needed before `forward`."""
        self.release()
        self._store = KVStore(self.layers, num_pages, page_size)
        for place, layer in enumerate(self._layers):
            keys, values = self._store.layer(place)
            layer.keys, layer.values = keys.data_ptr(), values.data_ptr()

    def release(self) -> None:
        """Free the KV cache."""
        self._store = None

    def capture_graphs(self, *_: Any, **__: Any) -> None:
        """There are none on a CPU."""

    def close(self) -> None:
        """Nobody will call any more."""

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """See LanguageModel.forward."""
        assert self._store is not None and chunks
        rows = Rows.of(chunks, self._store.page_size)
        count, wanted = len(rows.ids), len(rows.wanted)
        self._angles.reach(int(rows.ends.max()))
        room = self._room.for_rows(count)
        hidden = room.hidden[:count]
        hidden.copy_(self._embedding[torch.from_numpy(rows.ids)])
        if self.architecture.embedding_scale != 1.0:
            hidden.mul_(self.architecture.embedding_scale)
        logits = torch.empty((wanted, self.vocab_size))
        batch = structs.Batch(
            hidden=hidden.data_ptr(),
            cosines=self._angles.cosines,
            sines=self._angles.sines,
            slots=rows.slots.ctypes.data,
            ends=rows.ends.ctypes.data,
            tables=rows.tables.ctypes.data,
            pages=rows.pages.ctypes.data,
            wanted=rows.wanted.ctypes.data,
            logits=logits.data_ptr(),
            rows=count,
            wanted_rows=wanted,
            page_size=self._store.page_size,
            qkv=room.qkv.data_ptr(),
            attended=room.attended.data_ptr(),
            gated=room.gated.data_ptr(),
            normed=room.normed.data_ptr(),
            quantised=room.quantised,
        )
        self._kernels.step(self._pool, self._model, batch)
        return logits

    def _described(self) -> structs.Model:
        sizes = self.architecture
        return structs.Model(
            layers=ctypes.addressof(self._layers),
            last_norm=self.weights["last_norm"].data_ptr(),
            head=self._linear("head"),
            **{name: getattr(sizes, name) for name in _SAME_NAMES},
        )

    def _layer(self, place: int) -> structs.Layer:
        prefix = f"layers.{place}"
        linears = {name: self._linear(f"{prefix}.{name}") for name in _LINEARS}
        norms = {
            name: self.weights[f"{prefix}.{name}"].data_ptr()
            for name in _NORMS
            if f"{prefix}.{name}" in self.weights
        }
        return structs.Layer(
            **linears,
            **norms,
            window=self.architecture.windows[place],
            angles=self.architecture.angles[place],
        )

    def _linear(self, name: str) -> structs.Linear:
        panels, scales, sums = (self.weights[f"{name}.{part}"] for part in _PARTS)
        bias = self.weights.get(f"{name}.bias")
        return Int8Weights(panels, scales, sums, bias).described()


_PARTS = ("panels", "scales", "sums")
_LINEARS = ("qkv", "out", "gates", "down")
_NORMS = (
    "before_attention",
    "before_mlp",
    "after_attention",
    "after_mlp",
    "query_norm",
    "key_norm",
)
_SAME_NAMES = (
    *("depth", "width", "heads", "kv_heads", "head_size", "mlp_width", "vocab"),
    *("activation", "epsilon", "scaling"),
)
