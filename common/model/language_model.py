"""What engines need of a model, whatever computes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from common.device.runtime import Runtime
from common.kv.store import LayerShape
from common.model.batch import Chunk

Packing = Literal["exact", "int8", "fp16", "plain"]  # how linears multiply; cpu/linear.py says more


class LanguageModel(Protocol):
    """One model and its KV store. Not thread-safe: it belongs to the thread of its engine."""

    vocab_size: int
    max_context_length: int
    eager_passes: int  # that fitted no CUDA graph

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype:
        """Of keys, values and logits."""

    @property
    def runtime(self) -> Runtime: ...

    @property
    def kernels(self) -> bool:
        """Whether rows attend through Triton kernels."""

    @property
    def layers(self) -> Sequence[LayerShape]: ...

    @property
    def eos_ids(self) -> frozenset[int]: ...

    @property
    def row_invariant(self) -> bool:
        """Whether a token's logits have the same bits whatever runs beside it."""

    @property
    def arithmetic(self) -> str:
        """How it computes, for people; what differs in it differs in bits."""

    @property
    def bytes_per_token(self) -> int:
        """Of KV cache."""

    @property
    def graph_sizes(self) -> int:
        """How many CUDA graphs are captured."""

    def allocate(self, num_pages: int, page_size: int) -> None:
        """Allocate the KV cache; needed before `forward`."""

    def release(self) -> None:
        """Free the KV cache, and the CUDA graphs that use it."""

    def capture_graphs(
        self, most_rows: int, most_context: int, progress: Any = None, *, largest_only: bool = False
    ) -> None:
        """Record steps of up to `most_rows` rows with contexts of up to `most_context` tokens."""

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """Run the chunks in one variable-length batch: -> logits [sum of logit_rows, vocab_size].

        float32 on the CPU, elsewhere in the model's dtype and valid until the next call. Writes the
        KV of every token; the caller extends the page tables.
        """

    def close(self) -> None:
        """Nobody will call any more."""
