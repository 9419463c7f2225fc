"""KV memory profiling: what CUDA graphs take of a GPU, and pages of keys and values in the rest.

Knows in which order memory is measured and given out. Does not know what steps compute and who
owns a page. What graphs take is measured by capturing the largest of them over a single page,
since graphs hold the pages' addresses. On the CPU there is nothing but pages.
"""

from __future__ import annotations

import logging
import time
from typing import Protocol

import torch

from common.device.runtime import Memory
from common.errors import ConfigError
from common.kv.pages import PagePool
from common.kv.sizing import make_pool
from common.model.language_model import LanguageModel

log = logging.getLogger(__name__)

MAX_GRAPH_ROWS = (
    512  # rows; longer batches are prefills, whose launches cost little beside their work
)
# The CUDA context, libraries, what a graph takes outside of torch's count, and batches that are
# longer than any graph's.
MARGIN_BYTES = 2 << 30
MIB = 1 << 20


class KvMemorySettings(Protocol):
    """What the settings of either service say about memory."""

    @property
    def page_size(self) -> int: ...
    @property
    def kv_memory_mib(self) -> int | None: ...
    @property
    def max_sessions(self) -> int: ...
    @property
    def gpu_memory_fraction(self) -> float:
        """Of the whole GPU's memory, what this process may take in all, weights included.

        Other processes' part is never counted on.
        """


def profile_kv_memory(
    model: LanguageModel,
    settings: KvMemorySettings,
    *,
    context: int,
    most_rows: int,
    shrink: bool = False,
) -> PagePool:
    """Pages for `max_sessions` contexts of `context` tokens, or as many as fit; graphs captured.

    most_rows: of one batch. shrink: see make_pool.
    """
    page_size, memory_mib = settings.page_size, settings.kv_memory_mib
    max_sessions, fraction = settings.max_sessions, settings.gpu_memory_fraction
    if not model.kernels:
        return make_pool(model, page_size, memory_mib, max_sessions, context, shrink=shrink)
    runtime = model.runtime
    runtime.limit(fraction)
    rows = min(most_rows, MAX_GRAPH_ROWS)
    runtime.settle()
    before = runtime.memory()
    try:
        model.allocate(1, page_size)
        model.capture_graphs(rows, context, largest_only=True)
    except torch.OutOfMemoryError as cause:
        raise ConfigError(
            f"gpu_memory_fraction is {fraction}, {int(fraction * before.total) // MIB} MiB; "
            f"weights take {before.own // MIB} of them, {before.free // MIB} are free, and steps "
            f"of {rows} rows (max_batch_tokens) don't fit"
        ) from cause
    steps = runtime.memory().own - before.own
    model.release()
    budget = budget_of(runtime.memory(), fraction, steps)
    pool = make_pool(
        model, page_size, memory_mib, max_sessions, context, shrink=shrink, budget=budget
    )
    began = time.monotonic()
    model.capture_graphs(rows, min(context, pool.capacity_tokens), _tell)
    after = runtime.memory()
    log.info(
        "%d CUDA graphs captured in %.1f s; of the GPU's %d MiB this process holds %d, weights and "
        "%d MiB for steps included (gpu_memory_fraction allows %d), and %d are free",
        model.graph_sizes,
        time.monotonic() - began,
        after.total // MIB,
        after.own // MIB,
        max(0, steps) // MIB,
        int(fraction * after.total) // MIB,
        after.free // MIB,
    )
    return pool


def budget_of(memory: Memory, fraction: float, steps: int) -> int:
    """Bytes for keys and values: what may be taken and is free, less what is taken later."""
    own = int(fraction * memory.total) - memory.own
    return max(0, min(own, memory.free) - steps - MARGIN_BYTES)


def _tell(done: int, of: int) -> None:
    """A line for each quarter."""
    if done == of or done * 4 // of > (done - 1) * 4 // of:
        log.info("capturing CUDA graphs: %d of %d", done, of)
