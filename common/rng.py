"""Random numbers that are a function of (seed, position, token id, purpose) and of nothing else.

Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC
2011): key = the seed's two halves, counter = (position, token id, purpose, 0). No state, so nothing
depends on batches, order, restarts or replicas, and a round without drafts consumes nothing. The
words are those of `tl.philox` bit for bit (common/rng_triton.py); floats may differ from Triton's
in log's last ulp. Made on the CPU, whatever device they go to.

position: index in the target's sequence of the token that is decided (prompt length + new tokens
before it). Refuses to know laws, rules and sessions.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Words: TypeAlias = NDArray[np.uint64]  # each in [0, 2**32)

# numpy, since its 64-bit product takes half of torch's time on a CPU, and everything waits for it.
ROUND_A, ROUND_B = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)  # Salmon et al., table 2
KEY_A, KEY_B = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
WORD, HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
ROUNDS = 10
BLOCK = 1 << 15  # numbers made at a time: what a round needs of them stays in the cache
LARGEST_UNIFORM = 1 - 2.0**-24  # the largest float32 below 1
SERIES_BELOW = 2.0**-7  # under it -log(1 - w) is a series: 1 - w would lose w's low bits


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
    counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]
) -> tuple[Words, Words, Words, Words]:
    """Four random words per counter and key, of the shape to which all inputs broadcast.

    Of [rows, 1] and [1, ids], the first rounds compute some words once per row or id only.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    whole = np.broadcast(*counter, *key).shape

    def mixed(product: Words, word: Words, key: Words) -> Words:
        high = product >> HALF
        for other in (word, key):
            high = np.bitwise_xor(high, other, out=high if high.shape == whole else None)
        return np.bitwise_and(high, WORD, out=high)

    for _ in range(ROUNDS):
        # Only a word that is multiplied next must be clean above 32 bits, so low halves aren't cut.
        product_a, product_b = c0 * ROUND_A, c2 * ROUND_B
        c0, c1 = mixed(product_b, c1, k0), product_b
        c2, c3 = mixed(product_a, c3, k1), product_a
        k0, k1 = (k0 + KEY_A) & WORD, (k1 + KEY_B) & WORD
    return c0, c1 & WORD, c2, c3 & WORD


def words(seed: Tensor, position: Tensor, ids: Tensor, purpose: Purpose) -> tuple[Tensor, Tensor]:
    """The first two words at each (seed, position, id): int64 in [0, 2**32), broadcast shape.

    seed: int64, all 64 bits count. position, ids: integers in [0, 2**32). At least one dimension.
    """
    keys, counters = _words_of(seed), _words_of(position)
    zero = np.zeros(1, np.uint64)
    x0, x1, _, _ = philox(
        (counters, _words_of(ids), zero + np.uint64(purpose), zero), (keys & WORD, keys >> HALF)
    )
    return _tensor(x0), _tensor(x1)


def _words_of(values: Tensor) -> Words:
    return values.to("cpu", torch.int64).numpy().view(np.uint64)


def _tensor(array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(array.view(np.int64))


def uniform(seed: Tensor, position: Tensor, purpose: Purpose) -> Tensor:
    """float32 in (0, 1), one per (seed, position): u = ((x0 >> 8) + 0.5) * 2**-24.

    seed, position: int64 [rows]. The topmost of the 2**24 values would round to 1 and is held below
    it, so that u < p is certain where p is 1.
    """
    x0, _ = words(seed, position, torch.zeros(1, dtype=torch.int64), purpose)
    u = ((x0 >> 8).to(torch.float32) + 0.5) * 2.0**-24
    return u.clamp_(max=LARGEST_UNIFORM).to(seed.device)


def exponential(seed: Tensor, position: Tensor, ids: Tensor, purpose: Purpose) -> Tensor:
    """float32 [rows, ids] in (0, 17), ~ Exp(1): one per row and token id.

    seed, position: int64 [rows]; ids: integers [ids], the same in every row, or [rows, ids]. For a
    law p the id with the smallest e / p follows p: it is argmax(log p + g) with the Gumbel noise
    g = -log(e).
    """
    rows, width = len(seed), ids.shape[-1]
    columns = ids if ids.dim() == 2 else ids[None]  # [rows or 1, ids]
    made = torch.empty(rows, width, dtype=torch.float32)
    across = max(1, min(width, BLOCK))
    down = max(1, BLOCK // across)
    for top in range(0, rows, down):
        some = slice(top, top + down)
        own = columns[some] if ids.dim() == 2 else columns
        for left in range(0, width, across):
            part = slice(left, left + across)
            x0, x1 = words(seed[some, None], position[some, None], own[:, part], purpose)
            made[some, part] = exponential_of(x0, x1)
    return made.to(seed.device)


def exponential_of(x0: Tensor, x1: Tensor) -> Tensor:
    """Two words -> float32 ~ Exp(1), increasing in x0: -log(1 - w) for a uniform w in (0, 1).

    w has 24 bits of x0, and where those are all zero 24 more of x1: with 2**24 values alone, ties
    would be common where 262,144 ids compete for the least. Like a uniform, w stays below 1.
    """
    high = (x0 >> 8).to(torch.float32)
    w = (high * 2.0**-24).add_(2.0**-25).clamp_(max=LARGEST_UNIFORM)
    zero = high == 0
    if bool(zero.any()):  # one number in 2**24
        w = torch.where(zero, ((x1 >> 8).to(torch.float32) + 0.5) * 2.0**-48, w)
    series = w + w * w * (0.5 + w * (1 / 3 + w * 0.25))
    return torch.where(w < SERIES_BELOW, series, -torch.log(1 - w))
