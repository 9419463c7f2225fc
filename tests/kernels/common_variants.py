"""Every kernel of this package in the forms that it runs in, for compiling without a device.

Knows signatures. Does not know values and devices.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from common.kernels.attention_tiles import SPLIT_KEYS, TILE_FIELDS, choose_tiles
from common.kernels.kv_write import write_kv_kernel
from common.kernels.merge_splits import BLOCK_S, merge_splits_kernel
from common.kernels.norm_and_gate import GATE_BLOCK, add_norm_kernel, silu_gate_kernel
from common.kernels.paged_attention import attend_splits_kernel
from common.kernels.rope_kv_write import rotate_write_kernel
from common.kernels.row_product import BLOCK_M, product_tiles, row_product_kernel

_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}


@dataclass(frozen=True)
class Variant:
    """One compiled form of one kernel."""

    name: str
    kernel: Any  # a triton.JITFunction
    signature: dict[str, str]  # argument -> Triton's type of it; constants are left out
    constexprs: dict[str, Any]
    num_warps: int
    num_stages: int
    # Arguments that are always multiples of 16, as torch aligns them; integers and pointers.
    divisible: frozenset[str] = field(default_factory=frozenset)


def variants() -> list[Variant]:
    """Head sizes, dtypes, windows and soft caps that change what is compiled."""
    found = [_write(dtype) for dtype in _NAMES]
    for head in (64, 96, 128, 256):
        for dtype in _NAMES:
            found.append(_attend(head, dtype, 7, False, False))
        found.append(_attend(head, torch.bfloat16, 4, True, True))
        found.append(_merge(head, torch.bfloat16, False))
    found.append(_attend(128, torch.bfloat16, 1, False, False))
    found.append(_attend(128, torch.bfloat16, 8, True, False))
    found.append(_merge(128, torch.bfloat16, True))
    found.append(_merge(128, torch.float32, False))
    for dtype in _NAMES:
        found += [_product(3584, 3584, dtype, m_tiles) for m_tiles in (1, 2, 4)]
        found.append(_add_norm(3584, dtype))
        found.append(_silu_gate(18944, dtype))
        found.append(_rotate(28, 4, 128, dtype))
    found.append(_product(896, 4864, torch.bfloat16))
    found.append(_product(151_936, 896, torch.bfloat16))
    found.append(_rotate(14, 2, 64, torch.bfloat16))
    return found


def _attend(head: int, dtype: torch.dtype, group: int, window: bool, softcap: bool) -> Variant:
    tiles = choose_tiles(head, group, dtype)
    kind = f"*{_NAMES[dtype]}"
    extras = "".join([", window" * window, ", soft cap" * softcap])
    signature = {
        "partial_ptr": "*fp32",
        "maximum_ptr": "*fp32",
        "total_ptr": "*fp32",
        "query_ptr": kind,
        "query_row_stride": "i32",
        "query_head_stride": "i32",
        "keys_ptr": kind,
        "values_ptr": kind,
        "pages_ptr": "*i32",
        "work_tiles_ptr": "*i32",
        "counts_ptr": "*i32",
        "first_tile": "i32",
        "scale": "fp32",
        "softcap": "fp32",
        "window": "i32",
    }
    return Variant(
        f"attend_splits, head {head}, group {group}, {_NAMES[dtype]}{extras}",
        attend_splits_kernel,
        signature,
        {
            "KV_HEADS": 4,
            "GROUP": group,
            "HEAD": head,
            "PAGE_SIZE": 16,
            "SPLIT": SPLIT_KEYS,
            "FIELDS": TILE_FIELDS,
            "HAS_SOFTCAP": softcap,
            "HAS_WINDOW": window,
            "BLOCK_M": tiles.block_m,
            "BLOCK_N": tiles.block_n,
            "BLOCK_D": _power_of_two(head),
            "WIDEN": False,
        },
        tiles.num_warps,
        tiles.num_stages,
        frozenset(n for n, kind in signature.items() if kind[0] == "*" or n.endswith("stride")),
    )


def _merge(head: int, dtype: torch.dtype, window: bool) -> Variant:
    signature = {
        "out_ptr": f"*{_NAMES[dtype]}",
        "partial_ptr": "*fp32",
        "maximum_ptr": "*fp32",
        "total_ptr": "*fp32",
        "positions_ptr": "*i32",
        "row_tiles_ptr": "*i32",
        "rows_in_tile_ptr": "*i32",
        "sinks_ptr": f"*{_NAMES[dtype]}",
        "counts_ptr": "*i32",
        "first_tile": "i32",
        "first_row": "i32",
        "window": "i32",
    }
    return Variant(
        f"merge_splits, head {head}, {_NAMES[dtype]}{', window' * window}",
        merge_splits_kernel,
        signature,
        {
            "KV_HEADS": 4,
            "GROUP": 7,
            "HEAD": head,
            "SPLIT": SPLIT_KEYS,
            "HAS_WINDOW": window,
            "HAS_SINKS": window,  # gpt-oss has both
            "BLOCK_M": 64,
            "BLOCK_S": BLOCK_S,
            "BLOCK_D": _power_of_two(head),
        },
        1 if head <= 128 else 2,
        3,
        frozenset({"out_ptr", "partial_ptr", "maximum_ptr", "total_ptr"}),
    )


def _write(dtype: torch.dtype) -> Variant:
    kind = f"*{_NAMES[dtype]}"
    pointers = dict.fromkeys(("keys_out_ptr", "values_out_ptr"), kind)
    signature = {
        **pointers,
        "keys_ptr": kind,
        "key_row_stride": "i32",
        "key_head_stride": "i32",
        "values_ptr": kind,
        "value_row_stride": "i32",
        "value_head_stride": "i32",
        "slots_ptr": "*i32",
        "counts_ptr": "*i32",
    }
    return Variant(
        f"write_kv, {_NAMES[dtype]}",
        write_kv_kernel,
        signature,
        {"KV_HEADS": 4, "HEAD": 128, "BLOCK": 512},
        4,
        3,
        frozenset({"keys_out_ptr", "values_out_ptr", "keys_ptr", "values_ptr"}),
    )


def _product(outer: int, inner: int, dtype: torch.dtype, m_tiles: int = 1) -> Variant:
    tiles, kind = product_tiles(outer, inner, dtype), f"*{_NAMES[dtype]}"
    return Variant(
        f"row_product, {outer} from {inner}, {16 * m_tiles} rows, {_NAMES[dtype]}",
        row_product_kernel,
        {"out_ptr": "*fp32", "x_ptr": kind, "weight_ptr": kind, "rows": "i32"},
        {
            "OUTER": outer,
            "INNER": inner,
            "CHUNK": tiles.chunk,
            "BLOCK_M": BLOCK_M,
            "BLOCK_N": tiles.block_n,
            "BLOCK_K": tiles.block_k,
            "M_TILES": m_tiles,
            "WIDEN": False,
        },
        tiles.num_warps,
        tiles.num_stages,
        frozenset({"out_ptr", "x_ptr", "weight_ptr"}),
    )


def _add_norm(width: int, dtype: torch.dtype) -> Variant:
    kind = f"*{_NAMES[dtype]}"
    signature = dict.fromkeys(("sum_ptr", "out_ptr", "x_ptr", "product_ptr", "weight_ptr"), kind)
    signature |= {"product_ptr": "*fp32", "eps": "fp32", "rows": "i32"}
    return Variant(
        f"add_norm, {width}, {_NAMES[dtype]}",
        add_norm_kernel,
        signature,
        {"SPLITS": 4, "WIDTH": width, "BLOCK": _power_of_two(width)},
        4,
        3,
        frozenset(name for name, kind in signature.items() if kind[0] == "*"),
    )


def _silu_gate(width: int, dtype: torch.dtype) -> Variant:
    return Variant(
        f"silu_gate, {width}, {_NAMES[dtype]}",
        silu_gate_kernel,
        {"out_ptr": f"*{_NAMES[dtype]}", "product_ptr": "*fp32", "rows": "i32"},
        {"SPLITS": 2, "WIDTH": width, "BLOCK": GATE_BLOCK},
        4,
        3,
        frozenset({"out_ptr", "product_ptr"}),
    )


def _rotate(heads: int, kv_heads: int, head: int, dtype: torch.dtype) -> Variant:
    kind = f"*{_NAMES[dtype]}"
    names = ("query_out_ptr", "keys_out_ptr", "values_out_ptr", "product_ptr", "bias_ptr")
    signature = dict.fromkeys((*names, "cos_ptr", "sin_ptr"), kind)
    signature |= {"product_ptr": "*fp32", "slots_ptr": "*i32", "counts_ptr": "*i32", "rows": "i32"}
    return Variant(
        f"rotate_write, {heads} and {kv_heads} heads of {head}, {_NAMES[dtype]}",
        rotate_write_kernel,
        signature,
        {
            "SPLITS": 4,
            "HAS_BIAS": True,
            "HEADS": heads,
            "KV_HEADS": kv_heads,
            "HEAD": head,
            "BLOCK": _power_of_two(head // 2),
        },
        1,
        3,
        frozenset(names),
    )


def _power_of_two(size: int) -> int:
    return max(16, 1 << (size - 1).bit_length())
