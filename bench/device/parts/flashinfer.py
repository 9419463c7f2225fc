"""FlashInfer's paged attention over the same pages, if it is installed: a yardstick.

Knows its wrapper for variable-length rows of several sessions (BatchPrefillWithPagedKVCache), which
serves a decode as a prefill of one row. Does not know how ours works.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from bench.device.clock import device
from bench.device.parts.attention_case import Case

WORKSPACE = 256 << 20  # bytes, as its documentation asks for at least 128 MiB
SPLIT_PAGES = (
    32  # 512 keys: FlashInfer's own fixed split, for values that don't depend on the batch
)


def is_installed() -> bool:
    return find_spec("flashinfer") is not None and torch.cuda.is_available()


def fastest(case: Case) -> Callable[[], Tensor]:
    """As it would be used: its own choice of kernel and of splits."""
    return _attention(case, "auto")


def fixed(case: Case) -> Callable[[], Tensor]:
    """With sums that are cut where ours are, whatever the batch: FA2's kernels alone can."""
    return _attention(case, "fa2", fixed_split_size=SPLIT_PAGES)


def _attention(case: Case, backend: str, **how: Any) -> Callable[[], Tensor]:
    """A launch over all sessions and rows of `case`: -> [rows, heads, size]."""
    import flashinfer

    shape = case.shape
    page_size = case.keys.shape[1]
    pages = [table.pages for table in case.tables]
    counts = torch.tensor([0, *map(len, pages)], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    rows = torch.arange(shape.sessions + 1, dtype=torch.int32) * shape.rows
    last = (shape.context - 1) % page_size + 1
    workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device=device())
    wrapper: Any = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend=backend)
    wrapper.plan(
        rows.to(device()),
        counts.to(device()),
        torch.tensor([page for each in pages for page in each], dtype=torch.int32, device=device()),
        torch.full((shape.sessions,), last, dtype=torch.int32, device=device()),
        shape.heads,
        shape.kv_heads,
        shape.size,
        page_size,
        causal=True,  # the rows are the last ones of their contexts
        sm_scale=case.scale,
        q_data_type=shape.dtype,
        kv_data_type=shape.dtype,
        **how,
    )
    query = case.query.flatten(0, 1).contiguous()
    cache = (case.keys, case.values)
    return lambda: wrapper.run(query, cache)
