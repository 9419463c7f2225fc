"""A Hugging Face causal LM that runs ragged batches over a paged KV cache.

Knows: how to load weights safely, how to call transformers' model code without its caches, and what
it found out about the model (layers, context length, exactness). Refuses to know sessions, sampling
and scheduling. transformers' Cache API changes between minor versions, so it isn't used: ids are
flattened to [1, rows], positions are explicit, and the batch travels as a keyword to our attention.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from accelerate import init_empty_weights
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from common import attention
from common.attention import AttentionBatch, Segment
from common.errors import UnsupportedModel
from common.kv_cache import PagePool, PageTable
from common.kv_store import KVStore, LayerShape
from common.linear import Packing, pack_linears

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Chunk:
    """Tokens of one sequence to run: they stand at positions [table.length, table.length + n).

    Their pages must be reserved. Logits are computed for the last `logit_rows` of them.
    """

    tokens: Sequence[int]
    table: PageTable
    logit_rows: int


class PagedModel:
    """One model and its KV store. Not thread-safe: it belongs to the thread of its engine."""

    def __init__(
        self, model: PreTrainedModel, packing: Packing = "exact", threads: int = 0
    ) -> None:
        """threads: that its engine will use, 0 for all cores; exactness is measured with as many.

        Raises UnsupportedModel if attention doesn't go through transformers' interface.
        """
        attention.register()
        if threads:
            torch.set_num_threads(threads)
        self.config = model.config.get_text_config()
        self.eos_ids = _eos_ids(model)
        # Packing makes float32 out of whatever the weights are stored as, layer by layer: the whole
        # model never stands in memory twice.
        linears_row_invariant = pack_linears(model, packing)
        self._model = model.eval().float()
        try:
            self._model.set_attn_implementation(attention.NAME)
        except ValueError as cause:
            raise UnsupportedModel(f"{self.config.model_type}: {cause}") from cause
        self.vocab_size = int(self.config.vocab_size)
        self.max_context_length = int(getattr(self.config, "max_position_embeddings", 2**31))
        self.layers = self._discover_layers()
        self._store: KVStore | None = None
        # Linears are probed shape by shape; the rest of the model as a whole.
        self.row_invariant = linears_row_invariant and self._rows_are_invariant()

    @classmethod
    def load(cls, folder: Path, packing: Packing = "exact", threads: int = 0) -> PagedModel:
        """Load from safetensors in `folder`, compute in float32; never code, never pickles."""
        disable_progress_bar()  # a log is no terminal
        model = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype="auto",  # as stored; see __init__
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
        )
        # What model code computes at construction (Gemma's embedding scale, say) was rounded to
        # that dtype; take it from a float32 twin without weights.
        with init_empty_weights(include_buffers=False):
            twin = AutoModelForCausalLM.from_config(model.config, dtype=torch.float32)
        stored = set(model.state_dict())
        for name, buffer in twin.named_buffers():
            if name not in stored:
                model.get_buffer(name).data = buffer
        return cls(model, packing, threads)

    @property
    def bytes_per_token(self) -> int:
        """Of KV cache, over all layers."""
        return sum(layer.bytes_per_token for layer in self.layers)

    def allocate(self, num_pages: int, page_size: int) -> None:
        """Make room for the KV cache; needed before `forward`."""
        self._store = KVStore(self.layers, num_pages, page_size)

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """Run the chunks in one ragged batch: -> float32 logits [sum of logit_rows, vocab_size].

        Writes the KV of every token; the caller extends the page tables.
        """
        assert self._store is not None and chunks
        segments: list[Segment] = []
        slots: list[Tensor] = []
        ids: list[int] = []
        positions: list[int] = []
        wanted: list[int] = []
        for chunk in chunks:
            begin, end = chunk.table.length, chunk.table.length + len(chunk.tokens)
            pages = chunk.table.pages[: -(-end // self._store.page_size)]
            follow = all(b == a + 1 for a, b in pairwise(pages))
            segments.append(Segment(torch.tensor(pages), follow, begin, end))
            slots.append(self._store.slots(pages, begin, end))
            ids.extend(chunk.tokens)
            positions.extend(range(begin, end))
            wanted.extend(range(len(ids) - chunk.logit_rows, len(ids)))
        return self._run(
            ids,
            positions,
            AttentionBatch(self._store, segments, torch.cat(slots)),
            torch.tensor(wanted, dtype=torch.int64),
        )

    @torch.inference_mode()
    def _run(
        self, ids: list[int], positions: list[int], batch: AttentionBatch, wanted: Tensor
    ) -> Tensor:
        output = self._model(
            input_ids=torch.tensor([ids]),
            position_ids=torch.tensor([positions]),
            use_cache=False,
            logits_to_keep=wanted,
            batch=batch,
        )
        logits: Tensor = output.logits[0]  # [wanted, vocab]
        return logits

    def _rows_are_invariant(self) -> bool:
        """Whether three tokens give the same bits in one batch and one by one."""
        pool = PagePool(4, 4)
        self.allocate(pool.num_pages, pool.page_size)
        tokens = [token % self.vocab_size for token in (3, 47, 91)]
        values = []
        for size in (len(tokens), 1):
            table = pool.table()
            table.reserve(len(tokens))
            rows = []
            for begin in range(0, len(tokens), size):
                rows.append(self.forward([Chunk(tokens[begin : begin + size], table, size)]))
                table.extend(size)
            values.append(torch.cat(rows))
            table.release()
        self._store = None
        return torch.equal(values[0], values[1])

    def _discover_layers(self) -> list[LayerShape]:
        """Run one token and see what each attention layer keeps; config fields differ by family."""
        recorder = _Recorder()
        try:
            self._run([0], [0], recorder.batch(), torch.tensor([0]))
        # Model code that needs a cache, a mask or another shape of input fails in these ways.
        except (TypeError, AttributeError, NotImplementedError, RuntimeError) as cause:
            raise UnsupportedModel(
                f"{self.config.model_type} can't run ragged batches through transformers' "
                f"attention interface: {cause}"
            ) from cause
        if not recorder.shapes:
            raise UnsupportedModel(
                f"{self.config.model_type} has no attention that goes through transformers' "
                "interface"
            )
        if sorted(recorder.shapes) != list(range(int(self.config.num_hidden_layers))):
            raise UnsupportedModel(
                f"{self.config.model_type} has layers that keep no keys and values of their own"
            )
        return [recorder.shapes[layer] for layer in sorted(recorder.shapes)]


class _Recorder(KVStore):
    """A store for one token that remembers which layers wrote what."""

    def __init__(self) -> None:
        super().__init__([], 1, 1)
        self.shapes: dict[int, LayerShape] = {}
        self._last: tuple[Tensor, Tensor] | None = None

    def batch(self) -> AttentionBatch:
        segment = Segment(torch.tensor([0]), True, 0, 1)
        return AttentionBatch(self, [segment], torch.tensor([0]))

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        self.shapes[layer] = LayerShape(keys.shape[1], keys.shape[2])
        self._last = (keys, values)

    def read(self, layer: int, pages: Tensor, contiguous: bool) -> tuple[Tensor, Tensor]:
        assert self._last is not None
        return self._last


def _eos_ids(model: PreTrainedModel) -> frozenset[int]:
    """Every id that the model's files call an end of sequence."""
    found: set[int] = set()
    for source in (model.config, model.config.get_text_config(), model.generation_config):
        ids = getattr(source, "eos_token_id", None)
        found.update(ids if isinstance(ids, list) else [] if ids is None else [ids])
    return frozenset(found)
