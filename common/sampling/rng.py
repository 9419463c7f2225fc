"""Random numbers that are a function of (seed, position, token id, purpose) and of nothing else.

Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC
2011): key = the seed's two halves, counter = (position, token id // 4, purpose, 0), and the block's
four words are those of four token ids. No state, so nothing depends on batches, order, restarts or
replicas, and a round without drafts consumes nothing. The words are those of `tl.philox` bit for
bit (common/kernels/rng.py); floats may differ from Triton's in log's last ulp. Made on the CPU,
whatever device they go to.

position: index in the target's sequence of the token that is sampled (prompt length + new tokens
before it). Does not know distributions, rules and sessions.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Words: TypeAlias = NDArray[np.uint64]  # each in [0, 2**32)
Halves: TypeAlias = NDArray[np.uint32]  # words that aren't multiplied any more

# numpy, since its 64-bit product takes half of torch's time on a CPU, and everything waits for it.
ROUND_A, ROUND_B = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)  # Salmon et al., table 2
KEY_A, KEY_B = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
WORD, HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
ROUNDS = 10
WORDS_PER_BLOCK = 4  # words per block, and so token ids
WORD_BITS = np.uint64(2)
AT_A_TIME = 1 << 14  # blocks: what a round needs of them stays in the cache
LARGEST_UNIFORM = 1 - 2.0**-24  # the largest float32 below 1
SERIES_BELOW = 2.0**-7  # under it -log(1 - w) is a series: 1 - w would lose w's low bits


class Purpose(IntEnum):
    """What a number is sampled for: one stream each, so that none is used twice."""

    PROPOSE = 0  # the drafter's own samples
    ACCEPT = 1  # whether a draft token is accepted
    SAMPLE = 2  # the next token
    COUPLED = 3  # the sample that drafter and verifier share


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


def words(
    seed: Tensor, position: Tensor, block: Tensor, purpose: Purpose
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The block's four words at each (seed, position, block): int64 in [0, 2**32), broadcast shape.

    seed: int64, all 64 bits count. position, block: integers in [0, 2**32). At least one dimension.
    """
    made = _block(_words_of(seed), _words_of(position), _words_of(block), purpose)
    x0, x1, x2, x3 = (torch.from_numpy(word.view(np.int64)) for word in made)
    return x0, x1, x2, x3


def id_words(seed: Tensor, position: Tensor, ids: Tensor, purpose: Purpose) -> Tensor:
    """int64 [rows, ids] in [0, 2**32): word (id mod 4) of block id // 4, one per row and token id.

    As for `exponential`, which is made of them.
    """
    columns = _words_of(ids)
    made = _id_words(_words_of(seed), _words_of(position), columns, _run(columns), purpose)
    return torch.from_numpy(made.astype(np.int64))


def uniform(seed: Tensor, position: Tensor, purpose: Purpose) -> Tensor:
    """float32 in (0, 1), one per (seed, position): u = ((x0 >> 1) + 0.5) * 2**-31 of block 0.

    seed, position: int64 [rows]. What would round to 1 is kept below it, so that u < p is certain
    where p is 1.
    """
    keys, counters = _words_of(seed), _words_of(position)
    made = np.empty(len(keys), np.float32)
    for some in _slices(len(made), AT_A_TIME):
        x0 = _block(keys[some], counters[some], np.zeros(1, np.uint64), purpose)[0]
        made[some] = fractions(x0.astype(np.uint32))
    return torch.from_numpy(made).to(seed.device)


def exponential(seed: Tensor, position: Tensor, ids: Tensor, purpose: Purpose) -> Tensor:
    """float32 [rows, ids] in [2**-32, 17), ~ Exp(1): one per row and token id.

    seed, position: int64 [rows]; ids: integers in [0, 2**32), [ids], the same in every row, or
    [rows, ids]. For a distribution p the id with the smallest e / p follows p: it is argmax(log p +
    g) with the Gumbel noise g = -log(e).
    """
    keys, counters, columns = _words_of(seed), _words_of(position), _words_of(ids)
    run = _run(columns)
    made = np.empty((len(keys), columns.shape[-1]), np.float32)
    each = max(1, made.shape[1] if run is None else len(run.blocks))  # blocks per row
    for some in _slices(len(made), max(1, AT_A_TIME // each)):
        own = columns if columns.ndim == 1 else columns[some]
        word = _id_words(keys[some], counters[some], own, run, purpose)
        for part in _slices(word.shape[1], AT_A_TIME * WORDS_PER_BLOCK):
            made[some, part] = exponential_of(fractions(word[:, part]))
    return torch.from_numpy(made).to(seed.device)


def fractions(word: Halves) -> NDArray[np.float32]:
    """((word >> 1) + 0.5) * 2**-31, kept below 1: float32 in (0, 1), increasing.

    31 bits, because the minimum wins: of 24 alone, every 60th sample from 262,144 likely
    ids would be a tie, which the lowest id wins.
    """
    w = (word >> np.uint32(1)).view(np.int32).astype(np.float32)  # faster than from unsigned
    w += np.float32(0.5)
    w *= np.float32(2.0**-31)
    return np.minimum(w, np.float32(LARGEST_UNIFORM), out=w)


def exponential_of(w: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32 -log(1 - w), increasing in w: ~ Exp(1) for a uniform w in (0, 1). w: contiguous."""
    # torch's log is nearer (half an ulp) and faster than numpy's.
    e = torch.from_numpy(np.float32(1) - w).log_().neg_().numpy()
    few = np.flatnonzero(w < np.float32(SERIES_BELOW))
    small = w.ravel()[few]
    e.ravel()[few] = small + small * small * (
        np.float32(0.5) + small * (np.float32(1 / 3) + small * np.float32(0.25))
    )
    return e


@dataclass(frozen=True)
class _Run:
    """Blocks that hold all of some ids' words, and where those are among the blocks' words."""

    blocks: Words  # [blocks], one after the other
    places: slice | NDArray[np.int64] | None  # [ids]; None: each row has its own


def _run(ids: Words) -> _Run | None:
    """None where it takes fewer blocks if each id makes its own. ids: [ids] or [rows, ids]."""
    width = ids.shape[-1]
    if not ids.size:
        return None
    first, last = ids.min() >> WORD_BITS, ids.max() >> WORD_BITS
    if int(last - first) >= width:
        return None
    blocks = np.arange(first, last + np.uint64(1), dtype=np.uint64)
    if ids.ndim > 1:
        return _Run(blocks, None)
    places = (ids - (first << WORD_BITS)).view(np.int64)
    begin = int(places[0])
    if int(places[-1]) - begin == width - 1 and bool((places[1:] > places[:-1]).all()):
        return _Run(blocks, slice(begin, begin + width))
    return _Run(blocks, places)


def _id_words(
    seed: Words, position: Words, ids: Words, run: _Run | None, purpose: Purpose
) -> Halves:
    """uint32 [rows, ids]. seed, position: [rows]; ids: [ids] or [rows, ids]; run: of these ids."""
    rows = len(seed)
    seed, position, ids = seed[:, None], position[:, None], np.atleast_2d(ids)
    if run is None:
        block = _block(seed, position, ids >> WORD_BITS, purpose)
        words_of = (ids & np.uint64(WORDS_PER_BLOCK - 1)).view(np.int64)
        return np.choose(words_of, block).astype(np.uint32)
    made = np.empty((rows, len(run.blocks), WORDS_PER_BLOCK), np.uint32)
    for part in _slices(len(run.blocks), AT_A_TIME):
        block = _block(seed, position, run.blocks[None, part], purpose)
        for index in range(WORDS_PER_BLOCK):
            made[:, part, index] = block[index]
    words = made.reshape(rows, -1)
    if run.places is None:
        own = (ids - (run.blocks[0] << WORD_BITS)).view(np.int64)
        return np.take_along_axis(words, own, axis=1)
    return words[:, run.places] if isinstance(run.places, slice) else words.take(run.places, axis=1)


def _slices(length: int, size: int) -> list[slice]:
    """[0, length) in pieces of `size`, the last one what is left."""
    return [slice(begin, begin + size) for begin in range(0, length, size)]


def _block(
    seed: Words, position: Words, block: Words, purpose: Purpose
) -> tuple[Words, Words, Words, Words]:
    one = np.ones(1, np.uint64)
    return philox(
        (position, block, one * np.uint64(purpose), one * np.uint64(0)),
        (seed & WORD, seed >> HALF),
    )


def _words_of(values: Tensor) -> Words:
    return values.to("cpu", torch.int64).numpy().view(np.uint64)
