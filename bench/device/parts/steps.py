"""A model with random weights at a real shape, and its steps over random contexts.

Knows how to make one on the device, without files, and what its steps read. Does not know which
steps are asked for (bench/device/parts/models.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from bench.device.clock import device, wait, wall_seconds
from common.kernels.attention_tiles import SPLIT_KEYS
from common.kv.pages import PagePool
from common.model.batch import Chunk, flatten
from common.model.cuda_graphs import StepSize
from common.model.language_model import Packing
from common.model.paged_model import PagedModel

PAGE_SIZE = 16


@dataclass(frozen=True)
class ModelShape:
    """Of Qwen2.5, from its published configs."""

    name: str
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    tied: bool
    vocab: int

    def config(self) -> Qwen2Config:
        return Qwen2Config(
            hidden_size=self.hidden,
            intermediate_size=self.inner,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            tie_word_embeddings=self.tied,
            vocab_size=self.vocab,
            max_position_embeddings=32768,
            rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        )


SHAPES = [
    ModelShape("0.5B", 896, 4864, 24, 14, 2, True, 151_936),
    ModelShape("1.5B", 1536, 8960, 28, 12, 2, True, 151_936),
    ModelShape("7B", 3584, 18944, 28, 28, 4, False, 152_064),
]
SMALL = [
    ModelShape("tiny", 64, 96, 2, 4, 2, True, 320),
    ModelShape("small", 96, 128, 2, 4, 2, False, 320),
]


class Steps:
    """One model with contexts of random keys and values, ready to take steps."""

    def __init__(
        self,
        shape: ModelShape,
        sessions: int,
        context: int,
        fuse: bool = True,
        packing: Packing = "plain",
    ) -> None:
        # The same weights each time; contexts, and whatever comes later, follow the run's seed.
        with torch.random.fork_rng(), torch.device(device()):
            torch.manual_seed(0)
            made = AutoModelForCausalLM.from_config(shape.config(), dtype=torch.bfloat16)
        self.model = PagedModel(
            made,
            packing,
            device=device().type,
            dtype=torch.bfloat16,
            kernels=True,
            fuse=fuse,
        )
        self.context = self._longest = context
        pages = -(-(context + 16) // PAGE_SIZE)
        pool = PagePool(sessions * pages, PAGE_SIZE)
        self.tables = [pool.table() for _ in range(sessions)]
        for table in self.tables:
            table.reserve(context + 16)
            table.length = context
        self.model.allocate(pool.num_pages, PAGE_SIZE)
        assert self.model._store is not None
        for layer in range(len(self.model.layers)):
            for tensor in self.model._store.layer(layer):
                tensor.normal_()
        # A tied embedding is read as the output layer; an untied one gives single rows.
        skipped = 0 if shape.tied else made.get_input_embeddings().weight.numel()
        self.weight_bytes = 2 * (sum(p.numel() for p in made.parameters()) - skipped)

    def chunks(self, sessions: int, rows: int) -> list[Chunk]:
        vocab = self.model.vocab_size
        return [
            Chunk([(31 * i + 7 * place) % vocab for i in range(rows)], table, rows)
            for place, table in enumerate(self.tables[:sessions])
        ]

    def at(self, context: int) -> None:
        """From now on contexts are so long, at most as long as they were made."""
        assert context <= self._longest
        self.context = context
        for table in self.tables:
            table.length = context

    def kv_bytes(self, sessions: int, rows: int) -> int:
        return sessions * (self.context + rows) * self.model.bytes_per_token

    @torch.inference_mode()  # as the buffers were made, which are filled by hand
    def replayed(self, chunks: list[Chunk], size: StepSize | None = None) -> torch.Tensor:
        """One step by the recorded step that serves it, or by `size`: -> logits [rows, vocab]."""
        graphs, tile_rows = self.model._graphs, self.model._paged.tile_rows
        assert graphs is not None
        flat = flatten(chunks, PAGE_SIZE, tile_rows, SPLIT_KEYS)
        found = size or graphs.find(flat)
        assert found is not None
        return graphs.replay(found, flat).clone()

    @torch.inference_mode()
    def step_seconds(self, sessions: int, rows: int) -> dict[str, float]:
        """Of one step: device alone, replayed by the host's clock, and called by the host's."""
        chunks, graphs = self.chunks(sessions, rows), self.model._graphs
        assert graphs is not None
        whole = wall_seconds(lambda: self.model.forward(chunks))
        flat = flatten(chunks, PAGE_SIZE, self.model._paged.tile_rows, SPLIT_KEYS)
        size = graphs.find(flat)
        assert size is not None
        graphs._buffers.fill(flat)
        alone = replay_seconds(graphs._steps[size])
        self.model._graphs = None
        called = wall_seconds(lambda: self.model.forward(chunks), 5)
        self.model._graphs = graphs
        return {"device": alone, "step": whole, "eager": called}


def replay_seconds(replay: Callable[[], None], repeats: int = 10) -> float:
    """Median seconds of a replay on the device."""
    if not torch.cuda.is_available():
        return wall_seconds(replay, 1)
    found = []
    for _ in range(repeats + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        replay()
        end.record()
        wait()
        found.append(begin.elapsed_time(end) / 1e3)
    return sorted(found[2:])[repeats // 2]
