"""Perplexity, divergence and agreement of two models that read the same text.

Knows logits. Does not know how models are loaded and where text comes from.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files

import torch
from torch import Tensor

from common.kv.pages import PagePool
from common.model.batch import Chunk
from common.model.language_model import LanguageModel

WINDOW = 512  # tokens that are read as a text of their own
_ROWS = 128  # in one pass
_PAGE = 16


@dataclass(frozen=True)
class Quality:
    """Of a model against a reference, over the same predictions."""

    predictions: int
    perplexity: float
    reference_perplexity: float
    mean_kl: float  # nats, of the reference's distribution from the model's
    top_1: float  # share of predictions whose likeliest token is the reference's

    @property
    def perplexity_change(self) -> float:
        """Relative: 0.01 is one percent worse."""
        return self.perplexity / self.reference_perplexity - 1


def own_text() -> str:
    """The text that comes along."""
    return files("cli.quality").joinpath("text.txt").read_text(encoding="utf-8")


def measure(reference: LanguageModel, model: LanguageModel, ids: Sequence[int]) -> Quality:
    """Of all tokens but the first of each window. Allocates both KV caches and frees them."""
    losses = torch.zeros(2, dtype=torch.float64)
    kl, agreeing, count = 0.0, 0, 0
    for begin in range(0, len(ids) - 1, WINDOW):
        window = ids[begin : begin + WINDOW]
        both = zip(_logits(reference, window), _logits(model, window), strict=True)
        for place, rows in enumerate(both):
            expected = torch.tensor(window[place * _ROWS + 1 : (place + 1) * _ROWS + 1])
            theirs, ours = (each[: len(expected)].double().log_softmax(-1) for each in rows)
            for number, logs in enumerate((theirs, ours)):
                losses[number] -= logs.gather(1, expected[:, None]).sum()
            kl += float((theirs.exp() * (theirs - ours)).sum())
            agreeing += int((theirs.argmax(-1) == ours.argmax(-1)).sum())
            count += len(expected)
    reference.release()
    model.release()
    theirs_, ours_ = (math.exp(loss / count) for loss in losses.tolist())
    return Quality(count, ours_, theirs_, kl / count, agreeing / count)


def _logits(model: LanguageModel, ids: Sequence[int]) -> Iterator[Tensor]:
    """[rows, vocab] after each token, pass by pass."""
    pool = PagePool(-(-WINDOW // _PAGE), _PAGE)
    model.allocate(pool.num_pages, pool.page_size)
    table = pool.table()
    for begin in range(0, len(ids), _ROWS):
        tokens = ids[begin : begin + _ROWS]
        table.reserve(table.length + len(tokens))
        yield model.forward([Chunk(tokens, table, len(tokens))])
        table.extend(len(tokens))
