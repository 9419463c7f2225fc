"""A real model: a row's bits are its own and the same at any number of threads."""

from __future__ import annotations

import pytest
import torch

from common.model.loading import load_model
from common.model.paged_model import PagedModel
from common.weights.resolve import resolve
from tests.model.thread_bits import THREADS, assert_no_bit_changes, logits

pytestmark = pytest.mark.models


def test_no_bit_changes_at_any_number_of_threads() -> None:
    """Its feed-forward's 4,864 are cut within vectors by three threads from 14 rows on."""
    before = torch.get_num_threads()
    try:
        model = PagedModel.load(resolve("qwen2.5-coder-0.5b"), threads=3)
        assert model.row_invariant
        assert_no_bit_changes(model, sizes=(14, 40))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("name", ["qwen2.5-coder-1.5b", "smollm2-135m", "gemma-3-270m"])
def test_no_bit_changes_in_int8(name: str) -> None:
    expected: torch.Tensor | None = None
    for threads in THREADS:
        model = load_model(resolve(name), "int8", threads)
        assert model.row_invariant
        for size in (1, 40) if threads in (1, 3) else (17,):
            model.allocate(10, 4)
            found = logits(model, size)
            assert expected is None or torch.equal(found, expected), (threads, size)
            expected = found
