"""The references in plain torch of this package's kernels: what they compute, one row at a time.

Knows the definition. Does not know speed.
"""

from __future__ import annotations

import torch
from torch import Tensor


def paged_attention(
    query: Tensor,  # [rows, heads, head_size]
    keys: Tensor,  # [pages, page_size, kv_heads, head_size]
    values: Tensor,
    pages: Tensor,  # int32 [n], one session's
    first_position: int,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,  # [heads]
) -> Tensor:
    """float64 [rows, heads, head_size] of one session's rows at consecutive positions."""
    rows, heads, _ = query.shape
    kv_heads = keys.shape[2]
    own_keys = keys[pages.long()].flatten(0, 1).double()  # [positions, kv_heads, head_size]
    own_values = values[pages.long()].flatten(0, 1).double()
    out = []
    for row in range(rows):
        end = first_position + row + 1
        begin = max(0, end - window) if window else 0
        q = query[row].double().view(kv_heads, heads // kv_heads, -1)  # [kv_heads, group, size]
        scores = torch.einsum("hgd,nhd->hgn", q, own_keys[begin:end]) * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        if sinks is not None:
            own = sinks.double().view(kv_heads, heads // kv_heads, 1)
            scores = torch.cat([scores, own], dim=-1)
        weights = torch.softmax(scores, dim=-1)[..., : end - begin]
        out.append(torch.einsum("hgn,nhd->hgd", weights, own_values[begin:end]).flatten(0, 1))
    return torch.stack(out)


def write_kv(
    keys_out: Tensor,
    values_out: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    counts: Tensor,
) -> None:
    """As common/kernels/kv_write.py."""
    count = int(counts[0])
    keys_out.flatten(0, 1)[slots[:count].long()] = keys[:count]
    values_out.flatten(0, 1)[slots[:count].long()] = values[:count]


def rotate_write(
    keys_out: Tensor,
    values_out: Tensor,
    product: Tensor,
    bias: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    slots: Tensor,
    counts: Tensor,
) -> Tensor:
    """As common/kernels/rope_kv_write.py, in float64 but for the rounding of the product."""
    dtype, kv_heads, size = keys_out.dtype, keys_out.shape[2], keys_out.shape[3]
    total = product.double().sum(0)
    if bias is not None:
        total = total + bias.double()
    states = total.to(dtype).view(total.shape[0], -1, size)  # [rows, heads + 2 * kv_heads, size]
    heads = states.shape[1] - 2 * kv_heads
    turning = states[:, : heads + kv_heads].double()
    half = torch.cat((-turning[..., size // 2 :], turning[..., : size // 2]), -1)
    turned = turning * cos.double()[:, None] + half * sin.double()[:, None]
    query, keys = turned.to(dtype).split((heads, kv_heads), dim=1)
    write_kv(keys_out, values_out, keys, states[:, heads + kv_heads :], slots, counts)
    return query


def row_product(x: Tensor, weight: Tensor) -> Tensor:
    """float64 [rows, outer]: what the splits of common/kernels/row_product.py add up to."""
    return x.double() @ weight.double().t()


def add_norm(
    x: Tensor, product: Tensor | None, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """As common/kernels/norm_and_gate.py, in float64 but for the same roundings on the way."""
    if product is not None:
        x = (x.double() + product.double().sum(0).to(x.dtype).double()).to(x.dtype)
    wide = x.double()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return x, (normed.to(x.dtype).double() * weight.double()).to(x.dtype)


def silu_gate(product: Tensor, dtype: torch.dtype) -> Tensor:
    """As common/kernels/norm_and_gate.py, in float64 but for the rounding of the product."""
    gate, up = product.double().sum(0).to(dtype).double().chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).to(dtype)
