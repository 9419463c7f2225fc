"""CUDA graphs of decode and verify steps, by size, replayed on other batches.

Knows sizes, and a step as a callable on a batch at fixed addresses. Does not know models and
what rows mean. Without CUDA the step runs eagerly instead, on the same padded
batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from common.device.runtime import Runtime
from common.kv.store import KVStore
from common.model.batch import FlatBatch
from common.model.gpu_attention import PagedBatch, PagedLayers, StepBuffers

ROW_LADDER = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
TILES_PER_ROW = (1, 4, 16, 64)  # context splits; a graph has one of these times its rows

Progress = Callable[[int, int], None]  # graphs captured, of how many


@dataclass(frozen=True)
class StepSize:
    """A graph runs any batch of at most this many rows and work tiles."""

    rows: int
    work_tiles: int


def step_sizes(most_rows: int, most_splits: int, max_tiles: int) -> list[StepSize]:
    """The sizes to record for up to `most_rows` rows with up to `most_splits` splits each.

    Sizes of more than `max_tiles` work tiles are left out: their split results would not fit.
    """
    rows = [size for size in ROW_LADDER if size < most_rows]
    rows.append(most_rows)
    found = []
    for count in rows:
        for factor in TILES_PER_ROW:
            if count * factor <= max_tiles:
                found.append(StepSize(count, count * factor))
            if factor >= most_splits:
                break
    return found


def capture_steps(
    run: Callable[[PagedBatch], Tensor],
    store: KVStore,
    layers: PagedLayers,
    logits: Tensor,  # [most rows, vocab], where every step leaves its own
    most_splits: int,
    runtime: Runtime,
    progress: Progress | None = None,
    *,
    largest_only: bool = False,
) -> StepGraphs:
    """Graphs of steps over `store`, captured. run: see StepGraphs."""
    most_rows = logits.shape[0]
    sizes = step_sizes(most_rows, most_splits, layers.max_tiles)
    sizes = sizes[-1:] if largest_only else sizes
    work_tiles = max(size.work_tiles for size in sizes)
    buffers = StepBuffers(store, layers, most_rows, work_tiles, logits.device, runtime)
    graphs = StepGraphs(run, buffers, sizes, logits, runtime)
    graphs.capture(progress)
    return graphs


class StepGraphs:
    """Graphs of all `sizes`, captured once, over one set of buffers.

    run: computes logits [wanted, vocab] of a batch on the device without waiting for it.
    """

    def __init__(
        self,
        run: Callable[[PagedBatch], Tensor],
        buffers: StepBuffers,
        sizes: Sequence[StepSize],
        logits: Tensor,  # [most rows, vocab], where every step leaves its own
        runtime: Runtime,
    ) -> None:
        self._run, self._buffers, self._logits = run, buffers, logits
        self._runtime = runtime
        self.sizes = sorted(sizes, key=lambda size: (size.rows, size.work_tiles))
        self._steps: dict[StepSize, Callable[[], None]] = {}

    def capture(self, progress: Progress | None = None) -> None:
        """Record all sizes, the largest first, so that the smaller ones fit into its memory."""
        for done, size in enumerate(reversed(self.sizes)):
            batch = self._buffers.view(size.rows, size.work_tiles)
            self._steps[size] = self._runtime.capture_graph(partial(self._step, batch))
            if progress is not None:
                progress(done + 1, len(self.sizes))

    def find(self, rows: FlatBatch) -> StepSize | None:
        """The smallest graph that holds the batch, or None."""
        for size in self.sizes:
            if size.rows >= rows.rows and size.work_tiles >= len(rows.work_tiles):
                return size
        return None

    def replay(self, size: StepSize, rows: FlatBatch) -> Tensor:
        """Logits [wanted, vocab]: a view of what the next replay overwrites."""
        self._buffers.fill(rows)
        self._steps[size]()
        return self._logits[: len(rows.wanted)]

    def _step(self, batch: PagedBatch) -> None:
        logits = self._run(batch)  # [rows, vocab]: padded, what is wanted first
        self._logits[: logits.shape[0]].copy_(logits)
