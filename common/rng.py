"""Random numbers that are a function of (seed, position, token id, purpose) and of nothing else.

Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011):
key = the seed's two halves, counter = (position, token id, purpose, 0). No state, so nothing depends on
batches, order, restarts or replicas, and a round without drafts consumes nothing. The words are the ones
of `tl.philox` bit for bit (common/rng_triton.py); the floats may differ from Triton's in log's last ulp.

position: index in the target's sequence of the token that is decided (prompt length + new tokens
before it). Refuses to know laws, rules and sessions.
"""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor

ROUND_A, ROUND_B = 0xD2511F53, 0xCD9E8D57  # Salmon et al., table 2
KEY_A, KEY_B = 0x9E3779B9, 0xBB67AE85
WORD = 0xFFFFFFFF
ROUNDS = 10
BLOCK = 1 << 15  # numbers made at a time: what a round needs of them stays in the cache
LARGEST_UNIFORM = 1 - 2.0**-24  # the largest float32 below 1
SERIES_BELOW = 2.0**-7  # under it -log(1 - w) is summed: 1 - w would lose w's low bits


class Purpose(IntEnum):
    """What a number is drawn for: one stream each, so that none is used twice."""

    PROPOSE = 0  # the drafter's own draws
    ACCEPT = 1  # whether a draft token stands
    SAMPLE = 2  # the next token
    COUPLED = 3  # the draw that drafter and verifier share


def seed_word(seed: int) -> int:
    """An unsigned 64-bit seed as the int64 of the same bits, as tensors hold it."""
    assert 0 <= seed < 1 << 64
    return seed - (1 << 64) if seed >= 1 << 63 else seed


def philox(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four random words for each counter and key: int64 in [0, 2**32), of the shape all broadcast to.

    All are int64 tensors in [0, 2**32). Tensors stay as small as their own inputs for as long as they can:
    of [rows, 1] and [ids], the first rounds compute some words once per row or id.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        # The product of two words fills 64 bits and wraps in int64; its halves are right all the same.
        # Only a word that is multiplied next must be clean above 32 bits.
        product_a, product_b = c0 * ROUND_A, c2 * ROUND_B
        c0, c1 = _mixed(product_b, c1, k0), product_b
        c2, c3 = _mixed(product_a, c3, k1), product_a
        k0, k1 = (k0 + KEY_A) & WORD, (k1 + KEY_B) & WORD
    return c0, c1 & WORD, c2, c3 & WORD


def _mixed(product: Tensor, word: Tensor, key: Tensor) -> Tensor:
    """high half of product ^ word ^ key, in the fewest passes over memory."""
    mixed = product >> 32
    for other in (word, key):
        fits = mixed.numel() >= other.numel() and mixed.dim() >= other.dim()
        mixed = mixed.bitwise_xor_(other) if fits else mixed ^ other
    return mixed.bitwise_and_(WORD)


def words(seed: Tensor, position: Tensor, ids: Tensor, purpose: Purpose) -> tuple[Tensor, Tensor]:
    """The first two words at each (seed, position, id): int64 in [0, 2**32), broadcast shape.

    seed: int64, all 64 bits count. position, ids: integers in [0, 2**32).
    """
    other = torch.tensor(int(purpose), dtype=torch.int64, device=seed.device)
    counter = (position.to(torch.int64), ids.to(torch.int64), other, torch.zeros_like(other))
    x0, x1, _, _ = philox(counter, (seed & WORD, (seed >> 32) & WORD))
    return x0, x1


def uniform(seed: Tensor, position: Tensor, purpose: Purpose) -> Tensor:
    """float32 in (0, 1), one per (seed, position): u = (x0 >> 8 + 0.5) * 2**-24.

    seed, position: int64 [rows]. The topmost of the 2**24 values would round to 1 and is held below it,
    so that u < p is certain where p is 1.
    """
    x0, _ = words(seed, position, torch.zeros((), dtype=torch.int64, device=seed.device), purpose)
    u = ((x0 >> 8).to(torch.float32) + 0.5) * 2.0**-24
    return u.clamp_(max=LARGEST_UNIFORM)


def exponential(seed: Tensor, position: Tensor, ids: Tensor, purpose: Purpose) -> Tensor:
    """float32 [rows, ids] in (0, 17), ~ Exp(1): one per row and token id.

    seed, position: int64 [rows]; ids: integers [ids], the same in every row, or [rows, ids]. For a law p
    the id with the smallest e / p follows p: it is argmax(log p + g) with the Gumbel noise g = -log(e).

    Two words make one number, since 2**24 values are too few where 262,144 ids compete for the least.
    """
    rows, width = len(seed), ids.shape[-1]
    made = torch.empty(rows, width, dtype=torch.float32, device=seed.device)
    across = min(width, BLOCK) or 1
    down = max(1, BLOCK // across)
    for top in range(0, rows, down):
        some = slice(top, top + down)
        for left in range(0, width, across):
            part = ids[..., left : left + across]
            part = part[some] if ids.dim() == 2 else part
            x0, x1 = words(seed[some, None], position[some, None], part, purpose)
            made[some, left : left + across] = exponential_of(x0, x1)
    return made


def exponential_of(x0: Tensor, x1: Tensor) -> Tensor:
    """Two words -> float32 ~ Exp(1), increasing in x0: the inverse law of w in (0, 1).

    w has 24 bits of x0, or where they are all zero 24 more of x1. Like uniform's, it stays below 1.
    """
    high = (x0 >> 8).to(torch.float32)
    w = (high * 2.0**-24).add_(2.0**-25).clamp_(max=LARGEST_UNIFORM)
    tiny = high == 0
    if bool(tiny.any()):  # one number in 2**24
        low = ((x1 >> 8).to(torch.float32) + 0.5) * 2.0**-48
        w = torch.where(tiny, low, w)
    e = (1 - w).log_().neg_()
    near = (w < SERIES_BELOW).nonzero(as_tuple=True)  # one in 128
    v = w[near]
    e[near] = v + v * v * (0.5 + v * (1 / 3 + v * 0.25))
    return e
