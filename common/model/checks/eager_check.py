"""Whether what is served is the model: its logits against model code's own eager attention.

Our attention replaces model code's, and packed weights replace its linear layers. Before a model
serves, a few rows of its logits are compared with what the same weights give through transformers'
eager attention, on a prompt that is longer than its window or chunk where that is short enough.
Knows logits. Does not know why they might differ.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from common.errors import UnsupportedModel
from common.kv.pages import PagePool
from common.model.batch import Chunk
from common.model.checks.row_invariance import Model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)

PROMPT = 40  # tokens, if no window or chunk asks for more
LONGEST = 1100  # tokens that a start can take the time for
PAGE_SIZE = 16
ROWS = 4  # the last ones, whose logits are compared
# Of the largest logit: rounding in another order, and in bfloat16 after every operation; in int8
# some activations go to the next whole number for it.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 1e-2, "int8": 1e-2}


def prompt_of(vocab_size: int, sizes: Sequence[int], longest: int) -> list[int]:
    """Ids that differ, beyond each of `sizes` (windows, chunks) that LONGEST allows."""
    wanted = max([PROMPT, *(size + ROWS for size in sizes if size + ROWS <= LONGEST)])
    return [(3 + 44 * place) % vocab_size for place in range(min(wanted, longest))]


def eager_logits(model: PreTrainedModel, name: str, prompt: list[int]) -> Tensor:
    """[ROWS, vocab] in float32, through model code's own attention; `name` is set again."""
    model.set_attn_implementation("eager")
    try:
        device = next(model.parameters()).device
        with torch.inference_mode():
            ids = torch.tensor([prompt], device=device)
            logits: Tensor = model(input_ids=ids, use_cache=False).logits
        return logits[0, -ROWS:].float()
    finally:
        model.set_attn_implementation(name)


def check(
    model: Model, family: str, prompt: list[int], expected: Tensor, dtype: torch.dtype | str
) -> None:
    """Raise UnsupportedModel if the model's logits aren't `expected`.

    Allocates the model's KV cache and frees it.
    """
    ours = paged_logits(model, prompt)
    most = float((ours - expected[-len(ours) :]).abs().max())
    scale = float(expected[-len(ours) :].abs().max())
    limit = TOLERANCE[dtype] * max(scale, 1.0)
    found = (
        f"{family}: logits differ by {most:.3g} at most from model code's own ({scale:.3g} large)"
    )
    if not most <= limit:  # NaN too
        raise UnsupportedModel(f"{found}; {limit:.3g} is allowed, so it isn't served")
    log.info("%s, over %d tokens; %.3g is allowed", found, len(prompt), limit)


def paged_logits(model: Model, prompt: list[int]) -> Tensor:
    """[up to ROWS, vocab] in float32, of the last tokens, over the model's own KV cache.

    Allocates it and frees it.
    """
    pool = PagePool(-(-len(prompt) // PAGE_SIZE), PAGE_SIZE)
    model.allocate(pool.num_pages, pool.page_size)
    table = pool.table()
    table.reserve(len(prompt))
    rows = min(ROWS, len(prompt) - 1)
    # In two chunks, as served text is read: model code that counts positions by itself, or keeps
    # something in a layer beside keys and values, is right in a single one only.
    begun, rest = prompt[:-rows], prompt[-rows:]
    model.forward([Chunk(begun, table, 1)])
    table.extend(len(begun))
    ours = model.forward([Chunk(rest, table, rows)]).float()
    table.release()
    model.release()
    return ours
