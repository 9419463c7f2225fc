"""A real model: a row's bits are its own and the same at any number of threads."""

from __future__ import annotations

import pytest
import torch

from common.model.paged_model import PagedModel
from common.weights.resolve import resolve
from tests.model.thread_bits import assert_no_bit_changes

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
