"""The attention kernel on a device: its share of the copy bandwidth, its errors, torch beside it.

Knows shapes and baselines. Does not know models. Contexts are random numbers in pages of random
order; what one launch must read is the keys and values of all sessions, once.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from bench.device.budget import Budget
from bench.device.clock import device, seconds_of
from bench.device.parts import flashinfer
from bench.device.parts.attention_case import Case, Shape
from bench.device.table import Row
from common.kernels import reference as reference
from common.kernels.attention_tiles import SPLIT_KEYS, Tiles


def kernel_table(shapes: list[Shape], bytes_per_second: float, budget: Budget) -> list[Row]:
    """Time and share of the copy bandwidth, and others' attention beside it, where it is there."""
    found = []
    others = {"sdpa_us": sdpa}
    if flashinfer.is_installed():
        others |= {"flashinfer_us": flashinfer.fastest, "flashinfer_fixed_us": flashinfer.fixed}
    for shape in shapes:
        if not budget.allows(f"attention of {shape.label}"):
            continue
        case = Case(shape)
        floor = shape.kv_bytes / bytes_per_second
        seconds = seconds_of(case.call())
        line: Row = {
            "sessions": shape.sessions,
            "context": shape.context,
            "rows": shape.rows,
            "us": seconds * 1e6,
            "share": floor / seconds,
        }
        for name, baseline in others.items():
            try:
                line[name] = seconds_of(baseline(case)) * 1e6
            except Exception as cause:  # a baseline that doesn't run is reported, not hidden
                line[name] = type(cause).__name__
                line[f"{name}_why"] = str(cause).strip()[:300]
        found.append(line)
    return found


def sdpa(case: Case) -> Callable[[], Tensor]:
    """torch's scaled_dot_product_attention over dense keys, with a mask where it needs one."""
    query, keys, values = case.dense()
    rows, context = case.shape.rows, case.shape.context
    mask = None
    if rows > 1:
        ends = torch.arange(context - rows + 1, context + 1, device=device())
        mask = torch.arange(context, device=device())[None] < ends[:, None]  # [rows, context]
    return lambda: scaled_dot_product_attention(
        query, keys, values, attn_mask=mask, scale=case.scale, enable_gqa=True
    )


def error_table(shapes: list[Shape], budget: Budget) -> list[Row]:
    """‖out - float64‖ / ‖float64‖ on fresh inputs, and whether a row's bits are its own."""
    found: list[Row] = []
    for shape in shapes:
        if not budget.allows(f"attention errors of {shape.label}"):
            continue
        case = Case(shape)
        whole = case.call()()  # [sessions * rows, heads, size]
        last = shape.sessions - 1
        expected = reference.paged_attention(
            case.query[last],
            case.keys,
            case.values,
            torch.tensor(case.tables[last].pages, device=device()),
            shape.context - shape.rows,
            scale=case.scale,
        )
        mine = whole.view(shape.sessions, shape.rows, shape.heads, shape.size)[last]
        one = range(last, last + 1)
        alone = torch.cat([case.call(one, range(r, r + 1))() for r in range(shape.rows)])
        error = float((mine.double() - expected).norm() / expected.norm())
        limit = 1e-4 if shape.dtype == torch.float32 else 1e-2
        found.append(
            {
                "check": "attention",
                "shape": shape.label,
                "error": error,
                "right": bool(whole.isfinite().all()) and error < limit,
                "bits_of_rows_alone": bool(torch.equal(alone, mine)),
                "bits_of_session_alone": bool(torch.equal(case.call(one)(), mine)),
            }
        )
    return found


def tile_table(shapes: list[Shape], bytes_per_second: float, budget: Budget) -> list[Row]:
    """Other tiles and splits, for choosing: times of every shape by configuration."""
    candidates = [
        (Tiles(64, block_n, warps, stages), split)
        for block_n, warps, stages, split in product((32, 64), (4, 8), (2, 3), (SPLIT_KEYS, 1024))
    ]
    candidates += [(Tiles(m, 32, 4, 3), SPLIT_KEYS) for m in (16, 32)]
    found = []
    for tiles, split in candidates:
        if not budget.allows(f"{tiles} over {split} keys"):
            continue
        line: Row = {"tiles": str(tiles).removeprefix("Tiles"), "split": split}
        for shape in shapes:
            name = f"{shape.sessions}x{shape.context}x{shape.rows}"
            try:
                seconds = seconds_of(Case(shape, tiles, split).call())
                line[f"{name}_us"] = seconds * 1e6
                line[f"{name}_share"] = shape.kv_bytes / bytes_per_second / seconds
            except Exception as cause:  # a candidate too large for this device is no candidate
                line[f"{name}_us"] = type(cause).__name__
        found.append(line)
    return found
