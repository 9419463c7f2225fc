"""What a decoder layer does to each row between its matrix products: norm and gated activation.

Knows RMSNorm (Zhang and Sennrich, 2019, arXiv:1910.07467) and SwiGLU (Shazeer, 2020,
arXiv:2002.05202). Refuses to know layers. One program per row (or part of one), always of the same
size, so a row's bits are its own.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def rms_norm_kernel(out_ptr, x_ptr, weight_ptr, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """One program: one row [WIDTH]. Rounds before the weight, as transformers does."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    there = at < WIDTH
    x = tl.load(x_ptr + row * WIDTH + at, mask=there, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 0) / WIDTH + eps)
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    normed = (x * scale).to(dtype).to(tl.float32)
    weight = tl.load(weight_ptr + at, mask=there, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * WIDTH + at, (normed * weight).to(dtype), mask=there)


@triton.jit
def silu_gate_kernel(out_ptr, both_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """One program: BLOCK columns of one row; both_ptr is [rows, 2 * WIDTH], gates first."""
    row = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < WIDTH
    gate = tl.load(both_ptr + row * 2 * WIDTH + at, mask=there, other=0.0).to(tl.float32)
    up = tl.load(both_ptr + row * 2 * WIDTH + WIDTH + at, mask=there, other=0.0).to(tl.float32)
    value = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + row * WIDTH + at, value.to(out_ptr.dtype.element_ty), mask=there)


GATE_BLOCK = 1024  # columns of one program


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [rows, width], weight [width] -> [rows, width]."""
    rows, width = x.shape
    x = x.contiguous()
    out = torch.empty_like(x)
    block = triton.next_power_of_2(width)
    rms_norm_kernel[(rows,)](
        out, x, weight, eps, WIDTH=width, BLOCK=block, num_warps=4 if block <= 4096 else 8
    )
    return out


def silu_gate(both: Tensor) -> Tensor:
    """[rows, 2 * width], gates then values -> silu(gate) * value, [rows, width]."""
    rows, width = both.shape[0], both.shape[1] // 2
    out = torch.empty((rows, width), dtype=both.dtype, device=both.device)
    silu_gate_kernel[(triton.cdiv(width, GATE_BLOCK), rows)](
        out, both, WIDTH=width, BLOCK=GATE_BLOCK, num_warps=4
    )
    return out
