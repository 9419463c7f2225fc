"""What the target of tests/verifier_sessions.py thinks, by a model that runs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from common.kv_cache import PagePool
from common.model import Chunk, PagedModel
from common.tokenizer import Vocabulary
from tests.fake_models import paged, random_model
from tests.verifier_sessions import VOCAB, files


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
