"""Sampled text under the target distribution: is its surprise what the distribution implies?

For tokens x_t sampled from p_t, the sum of (-log p_t(x_t) - H(p_t)) has mean 0 and variance
sum of Var(-log p_t), whatever the prompts (each term has mean 0 given what came before), so that
z = sum / sqrt(variance) is close to standard normal. A sampler that prefers the draft model's
tokens, loses the temperature or tests with another q than it drew from is far out.

Knows the model package and the distribution. Does not know who sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from common.kv.pages import PagePool
from common.model.batch import Chunk
from common.model.paged_model import PagedModel
from common.sampling.distribution import filters, probabilities
from common.sampling.parameters import SamplingParams
from common.vocabulary.vocabulary import TokenizerFiles, Vocabulary

PAGE_SIZE = 16


@dataclass(frozen=True)
class Sample:
    """One output: the prompt's ids, and the ids that were sampled after it."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]


@dataclass(frozen=True)
class Score:
    """Sums over tokens, in nats. `impossible`: tokens that the distribution gives probability 0."""

    tokens: int
    surprise: float  # -log p of what was sampled
    entropy: float
    variance: float  # of the surprise
    impossible: int

    @property
    def z(self) -> float:
        """Infinite as soon as one token couldn't have come."""
        if self.impossible:
            return float("inf")
        return (self.surprise - self.entropy) / self.variance**0.5 if self.variance else 0.0

    def __add__(self, other: Score) -> Score:
        return Score(
            self.tokens + other.tokens,
            self.surprise + other.surprise,
            self.entropy + other.entropy,
            self.variance + other.variance,
            self.impossible + other.impossible,
        )


NOTHING = Score(0, 0.0, 0.0, 0.0, 0)


def score_rows(distribution: Tensor, sampled: Tensor) -> Score:
    """distribution: float [rows, vocab], each row p; sampled: int64 [rows]."""
    distribution = distribution.to(torch.float64)
    distribution = distribution / distribution.sum(dim=-1, keepdim=True)
    surprise = -distribution.log()  # [rows, vocab]; infinite where p is 0
    weighted = torch.where(distribution > 0, distribution * surprise, 0.0)
    entropy = weighted.sum(dim=-1)  # [rows]
    second = torch.where(distribution > 0, distribution * surprise * surprise, 0.0).sum(dim=-1)
    own = surprise.gather(1, sampled[:, None]).squeeze(1)
    possible = own.isfinite()
    return Score(
        tokens=len(sampled),
        surprise=float(own[possible].sum()),
        entropy=float(entropy[possible].sum()),
        variance=float((second - entropy**2).clamp(min=0)[possible].sum()),
        impossible=int((~possible).sum()),
    )


class Scorer:
    """The target, reading samples."""

    def __init__(self, folder: Path, longest: int) -> None:
        """longest: prompt and output together, in tokens."""
        self._model = PagedModel.load(folder)
        files = TokenizerFiles.from_directory(folder)
        vocabulary = Vocabulary(files, self._model.vocab_size, self._model.eos_ids)
        self._real_ids = torch.from_numpy(vocabulary.real)  # bool [vocab]
        self._pool = PagePool(-(-longest // PAGE_SIZE), PAGE_SIZE)
        self._model.allocate(self._pool.num_pages, PAGE_SIZE)

    def score(
        self,
        samples: Sequence[Sample],
        params: SamplingParams,
        report_progress: Callable[[int], None] = lambda done: None,
    ) -> Score:
        """Of samples sampled with `params`, which process no logits (bias, penalties)."""
        assert not params.processes_logits and not params.greedy
        total = NOTHING
        for done, sample in enumerate(samples):
            report_progress(done)
            total += score_rows(self._distribution(sample, params), torch.tensor(sample.output))
        return total

    def _distribution(self, sample: Sample, params: SamplingParams) -> Tensor:
        """float32 [output, vocab]."""
        read = [*sample.prompt, *sample.output[:-1]]
        rows = len(sample.output)
        table = self._pool.table()
        table.reserve(len(read))
        logits = self._model.forward([Chunk(read, table, rows)])
        table.release()
        logits = logits.masked_fill(~self._real_ids, float("-inf"))
        return probabilities(logits, *filters([params] * rows, logits.shape[-1]))
