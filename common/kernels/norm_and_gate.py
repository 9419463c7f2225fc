"""What a decoder layer does to each row between its matrix products: norm and gated activation.

Knows RMSNorm (Zhang and Sennrich, 2019, arXiv:1910.07467), SwiGLU (Shazeer, 2020,
arXiv:2002.05202), and products whose split sums are still apart (common/kernels/row_product.py).
Does not know layers. One program per row (or part of one), always of the same size, so a row's
bits are its own.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

GATE_BLOCK = 512  # columns of one program


@triton.jit(do_not_specialize=["rows"])
def add_norm_kernel(
    sum_ptr,  # [rows, WIDTH]: x plus the product; unused where SPLITS is 0
    out_ptr,  # [rows, WIDTH], normed
    x_ptr,  # [rows, WIDTH]
    product_ptr,  # [SPLITS, rows, WIDTH]
    weight_ptr,  # [WIDTH]
    eps,
    rows,
    SPLITS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: one row. Rounds where transformers' own layers round."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    there = at < WIDTH
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    x = tl.load(x_ptr + row * WIDTH + at, mask=there, other=0.0).to(tl.float32)
    if SPLITS > 0:
        product = tl.zeros([BLOCK], tl.float32)
        for split in tl.static_range(SPLITS):
            part = product_ptr + (split * rows + row) * WIDTH + at
            product += tl.load(part, mask=there, other=0.0).to(tl.float32)
        x = (x + product.to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
        tl.store(sum_ptr + row * WIDTH + at, x.to(dtype), mask=there)
    scale = tl.rsqrt(tl.sum(x * x, 0) / WIDTH + eps)
    normed = (x * scale).to(dtype).to(tl.float32)
    weight = tl.load(weight_ptr + at, mask=there, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * WIDTH + at, (normed * weight).to(dtype), mask=there)


@triton.jit(do_not_specialize=["rows"])
def silu_gate_kernel(
    out_ptr,  # [rows, WIDTH]
    product_ptr,  # [SPLITS, rows, 2 * WIDTH], gates first
    rows,
    SPLITS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: BLOCK columns of one row."""
    row = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < WIDTH
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    gate = tl.zeros([BLOCK], tl.float32)
    up = tl.zeros([BLOCK], tl.float32)
    for split in tl.static_range(SPLITS):
        part = product_ptr + (split * rows + row) * (2 * WIDTH) + at
        gate += tl.load(part, mask=there, other=0.0).to(tl.float32)
        up += tl.load(part + WIDTH, mask=there, other=0.0).to(tl.float32)
    gate, up = gate.to(dtype).to(tl.float32), up.to(dtype).to(tl.float32)
    value = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + row * WIDTH + at, value.to(dtype), mask=there)


def add_norm(
    x: Tensor, product: Tensor | None, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """x [rows, width], product [splits, rows, width] or None, weight [width].

    -> (x + product, its norm times weight), each [rows, width].
    """
    rows, width = x.shape
    x = x.contiguous()
    out = torch.empty_like(x)
    total = x if product is None else torch.empty_like(x)
    block = triton.next_power_of_2(width)
    add_norm_kernel[(rows,)](
        total,
        out,
        x,
        x if product is None else product,
        weight,
        eps,
        rows,
        SPLITS=0 if product is None else product.shape[0],
        WIDTH=width,
        BLOCK=block,
        num_warps=4 if block <= 4096 else 8,
    )
    return total, out


def silu_gate(product: Tensor, dtype: torch.dtype) -> Tensor:
    """[splits, rows, 2 * width], gates then values -> silu(gate) * value, [rows, width]."""
    splits, rows, width = product.shape[0], product.shape[1], product.shape[2] // 2
    out = torch.empty((rows, width), dtype=dtype, device=product.device)
    silu_gate_kernel[(triton.cdiv(width, GATE_BLOCK), rows)](
        out, product, rows, SPLITS=splits, WIDTH=width, BLOCK=GATE_BLOCK, num_warps=4
    )
    return out
