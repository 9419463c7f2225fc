"""A Hugging Face causal LM that runs variable-length batches over a paged KV cache.

Knows how to load weights safely, how to call transformers' model code without its caches, and what
it found out about the model (layers, context length, exactness). Does not know sessions, sampling
and scheduling. transformers' Cache API changes between minor versions, so it isn't used: ids are
flattened to [1, rows], positions are explicit, and the batch travels as a keyword to our attention.

On the CPU, weights are packed and every row attends alone, in float32. On CUDA, weights stay as
they are, in bfloat16, rows attend through kernels, and small batches replay CUDA graphs.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor
from transformers import PreTrainedModel

from common.device.runtime import runtime_of
from common.errors import UnsupportedModel
from common.kernels.attention_tiles import SPLIT_KEYS
from common.kv.store import KVStore
from common.model import attention_interface
from common.model import discovery as model_discovery
from common.model.batch import Chunk, FlatBatch, flatten
from common.model.checkpoint import load_checked
from common.model.checks import eager_check
from common.model.checks.row_invariance import cpu_rows_are_invariant, rows_are_invariant
from common.model.cpu import elementwise
from common.model.cpu.attention import row_batch
from common.model.cpu.linear import pack_linears
from common.model.language_model import Packing
from common.model.masks import named_sizes

# What needs Triton is imported where a model goes through kernels, and never for a CPU.
if TYPE_CHECKING:
    from common.model.cuda_graphs import Progress, StepGraphs
    from common.model.gpu_attention import PagedBatch

log = logging.getLogger(__name__)


class PagedModel:
    """See common/model/language_model.py, which says what engines call."""

    def __init__(
        self,
        model: PreTrainedModel,
        packing: Packing = "exact",
        threads: int = 0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
        *,
        kernels: bool | None = None,
        fuse: bool = True,
    ) -> None:
        """threads: that its engine will use, 0 for all cores; exactness is measured with as many.

        dtype: None is float32 on the CPU and bfloat16 elsewhere. kernels: whether rows attend
        through Triton kernels, with unpacked weights (`exact` then means that all rows' products
        go through our own kernel, if `fuse` applies); None is everywhere but on the CPU, where
        they need Triton's interpreter. fuse: whether layers of a known kind take fewer launches
        (common/model/fused_layers.py), if rows attend through kernels.
        Raises UnsupportedModel if attention isn't transformers' interface's, or more than ours.
        """
        attention_interface.register()
        if threads:
            torch.set_num_threads(threads)
        self.device = torch.device(device)
        on_cpu = self.device.type == "cpu"
        self.kernels = not on_cpu if kernels is None else kernels
        self.runtime = runtime_of(self.device)
        self.runtime.enter()
        self.dtype = dtype or model_discovery.usual_dtype(self.device)
        self.config = model.config.get_text_config()
        self.eos_ids = model_discovery.eos_ids(model)
        if self.kernels:
            linears_row_invariant = False
            self.code: PreTrainedModel = model_discovery.move(model.eval(), self.device, self.dtype)
        else:
            # Packing makes float32 of the weights layer by layer: they are never in memory twice.
            assert on_cpu and self.dtype == torch.float32
            elementwise.install()
            linears_row_invariant = pack_linears(model, packing)
            self.code = model.eval().float()
        try:
            self.code.set_attn_implementation(attention_interface.NAME)
        except ValueError as cause:
            raise UnsupportedModel(f"{self.config.model_type}: {cause}") from cause
        self.vocab_size = int(self.config.vocab_size)
        self.max_context_length = model_discovery.longest_context(self.config)
        # transformers leaves a mask of four dimensions alone; without one it would look into the
        # positions in every pass, for which a CUDA graph can't wait. Ours ignores it. Discovery
        # lets model code describe its masks.
        self._no_mask: Tensor | None = None
        recorder = model_discovery.discover_layers(self.config, self._run, self.device)
        self._no_mask = torch.zeros((1, 1, 1, 1), device=self.device)
        sizes = (self.vocab_size, named_sizes(self.config), self.max_context_length)
        self.check_prompt = eager_check.prompt_of(*sizes)
        with model_discovery.refusing(self.config, "can't run on ids alone"):
            eager = eager_check.eager_logits(self.code, attention_interface.NAME, self.check_prompt)
        self.layers, self.calls = recorder.layers, recorder.calls
        self._store: KVStore | None = None
        self._graphs: StepGraphs | None = None
        self.eager_passes = 0  # that fitted no CUDA graph
        self.fused = False
        if self.kernels:
            from common.model.fused_layers import fuse_layers
            from common.model.gpu_attention import PagedLayers

            self._paged = PagedLayers(self.layers, recorder.groups, self.dtype)
            self.fused = fuse and fuse_layers(self.code, packing == "exact")
            if self.fused:
                linears_row_invariant = packing == "exact"  # by construction, see row_product.py
        self.arithmetic = packing
        rounding = "int8" if packing == "int8" and not self.kernels else self.dtype
        eager_check.check(self, self.config.model_type, self.check_prompt, eager, rounding)
        # Linears are probed shape by shape; the rest of the model by itself, and as a whole.
        probe = rows_are_invariant if self.kernels else cpu_rows_are_invariant
        self.row_invariant = linears_row_invariant and probe(self)

    @classmethod
    def load(
        cls,
        folder: Path,
        packing: Packing = "exact",
        threads: int = 0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
        **spread: Any,
    ) -> Self:
        """Load from safetensors in `folder`; never code, never pickles. See __init__.

        spread: over which processes, if it isn't this one alone (common/model/sharded.py).
        Raises WeightsError for tensors that aren't the model's, and what __init__ raises.
        """
        # As stored, see __init__. Parts of a model that is spread are cut out as they are read, so
        # that they may as well be read in their own dtype.
        own = (dtype or model_discovery.usual_dtype(torch.device(device))) if spread else None
        model = load_checked(folder, own, **spread)
        return cls(model, packing, threads, device, dtype, fuse=not spread)

    def close(self) -> None:
        """Nobody will call any more."""

    @property
    def bytes_per_token(self) -> int:
        """Of KV cache."""
        return sum(layer.bytes_per_token(self.dtype) for layer in self.layers)

    def allocate(self, num_pages: int, page_size: int) -> None:
        """Allocate the KV cache; needed before `forward`."""
        self.release()  # CUDA graphs hold the old cache's addresses
        self._store = KVStore(self.layers, num_pages, page_size, self.dtype, self.device)

    def release(self) -> None:
        """Free the KV cache, and the CUDA graphs that use it."""
        graphs, self._graphs, self._store = self._graphs, None, None
        if graphs is not None:
            del graphs
            self.runtime.settle()

    def capture_graphs(
        self,
        most_rows: int,
        most_context: int,
        progress: Progress | None = None,
        *,
        largest_only: bool = False,
    ) -> None:
        """See LanguageModel. Needs `allocate`; does nothing without kernels."""
        if not self.kernels:
            return
        if model_discovery.follows_positions(self.config):
            log.warning("steps run eagerly: rotary frequencies follow positions")
            return
        from common.model.cuda_graphs import capture_steps

        assert self._store is not None
        with torch.inference_mode():
            self._graphs = capture_steps(
                self._run_paged,
                self._store,
                self._paged,
                torch.empty((most_rows, self.vocab_size), dtype=self.dtype, device=self.device),
                -(-most_context // SPLIT_KEYS),
                self.runtime,
                progress,
                largest_only=largest_only,
            )

    @property
    def graph_sizes(self) -> int:
        """How many CUDA graphs are captured."""
        return len(self._graphs.sizes) if self._graphs is not None else 0

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """See LanguageModel."""
        assert self._store is not None and chunks
        if self.kernels:
            page_size, tile_rows = self._store.page_size, self._paged.tile_rows
            return self._forward_paged(flatten(chunks, page_size, tile_rows, SPLIT_KEYS))
        return self._run(*row_batch(chunks, self._store))

    @torch.inference_mode()
    def _forward_paged(self, rows: FlatBatch) -> Tensor:
        from common.model.gpu_attention import place

        assert self._store is not None
        if self._graphs is not None:
            if (size := self._graphs.find(rows)) is not None:
                return self._graphs.replay(size, rows)
            if not self.eager_passes:
                counts = (rows.rows, len(rows.work_tiles))
                log.warning("%d rows in %d work tiles fit no CUDA graph; reported once", *counts)
            self.eager_passes += 1
        return self._run_paged(place(rows, self._store, self._paged, self.device))

    def _run_paged(self, batch: PagedBatch) -> Tensor:
        """What is captured, so nothing in it may wait for the device."""
        return self._run(batch.ids, batch.positions, batch, batch.wanted)

    def run_without_attention(self, rows: int) -> Tensor:
        """What model code does between attention calls, on so many rows."""
        ids = torch.arange(rows)
        return self._run(ids, ids, model_discovery.LayerRecorder(self.config), ids)

    @torch.inference_mode()
    def _run(
        self, ids: Tensor, positions: Tensor, batch: attention_interface.Batch, wanted: Tensor
    ) -> Tensor:
        output = self.code(
            input_ids=ids[None],
            position_ids=positions[None],
            attention_mask=self._no_mask,
            use_cache=False,
            logits_to_keep=wanted,
            batch=batch,
        )
        logits: Tensor = output.logits[0]  # [wanted, vocab]
        return logits
