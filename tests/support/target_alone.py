"""The target's own output, by a model that runs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from common.kv.pages import PagePool
from common.model.batch import Chunk
from common.model.paged_model import PagedModel
from common.vocabulary.vocabulary import Vocabulary
from tests.support.fake_models import paged, random_model
from tests.support.verifier_sessions import VOCAB, files


@cache
def _model() -> PagedModel:
    return paged(random_model("llama", VOCAB))


@cache
def _real_ids() -> Tensor:
    return torch.from_numpy(Vocabulary(files(), VOCAB, frozenset()).real)


def bare_logits(tokens: Sequence[int]) -> Tensor:
    """float64 [vocab], after these tokens; ids that don't exist have -inf."""
    table = PagePool(64, 4).table()
    table.reserve(len(tokens))
    logits = _model().forward([Chunk(tokens, table, 1)])[0].double()
    return logits.masked_fill(~_real_ids(), -torch.inf)
