"""A row's bits are its own at any number of threads, and the same at every number of threads."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from common.kv.store import KVStore, LayerShape
from common.model.cpu.attention import RowBatch, Segment
from common.model.paged_model import PagedModel
from tests.model.thread_bits import ODD, THREADS, assert_no_bit_changes
from tests.support.fake_models import FAMILIES as OFTEN_SERVED
from tests.support.fake_models import random_model

pytestmark = pytest.mark.usefixtures("restored_threads")

FUNCTIONS = {
    "sigmoid": torch.sigmoid,
    "sigmoid_": lambda x: x.clone().sigmoid_(),
    "silu": functional.silu,
    "silu_": lambda x: functional.silu(x.clone(), inplace=True),
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "softplus": functional.softplus,
    "elu": functional.elu,
    "selu": functional.selu,
    "mish": functional.mish,
    # Not replaced, and used between linears: exact, or by vectors throughout.
    "exp": torch.exp,
    "expm1": torch.expm1,
    "tanh": torch.tanh,
    "sin": torch.sin,
    "cos": torch.cos,
    "erf": torch.erf,
    "log1p": lambda x: torch.log1p(x.abs()),
    "rsqrt": lambda x: torch.rsqrt(x.abs() + 1e-6),
    "pow 2": lambda x: x.pow(2),
    "pow 3": lambda x: x.pow(3),
    "softcap": lambda x: 30 * torch.tanh(x / 30),
    "product and sum": lambda x: x * 1.7 + x.square(),
    "mean": lambda x: x.mean(-1),
    "softmax": lambda x: x.softmax(-1),
    "layer norm": lambda x: functional.layer_norm(x, x.shape[-1:]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_between_linears_give_a_row_its_bits_however_tensors_are_cut(name: str) -> None:
    torch.manual_seed(0)
    for width in (37, 2050, ODD, 8960):
        x = 3 * torch.randn(65, width)
        torch.set_num_threads(1)
        alone = torch.stack([FUNCTIONS[name](row[None])[0] for row in x])
        for count in THREADS:
            torch.set_num_threads(count)
            for rows in (2, 7, 8, 16, 33, 65):
                together = FUNCTIONS[name](x[:rows].contiguous())
                assert torch.equal(together, alone[:rows]), (width, count, rows)


def test_replaced_functions_are_still_torchs_own() -> None:
    x = torch.tensor([-30.0, -1.0, 0.0, 0.5, float("inf"), float("nan")])
    assert torch.allclose(functional.silu(x[:4]), x[:4] / (1 + torch.exp(-x[:4])))
    assert torch.isnan(functional.silu(x)[5]) and torch.sigmoid(x)[4] == 1
    assert functional.gelu(torch.zeros(0)).shape == (0,)
    assert torch.sigmoid(torch.tensor([0, 1])).dtype == torch.float32
    assert functional.silu(torch.zeros(3, 5).T).shape == (5, 3)
    half = torch.randn(3, 70, dtype=torch.bfloat16)
    assert functional.silu(half).dtype == torch.bfloat16
    leaf = torch.zeros(2, requires_grad=True)
    torch.sigmoid(leaf).sum().backward()
    assert leaf.grad is not None and torch.equal(leaf.grad, torch.full((2,), 0.25))


@pytest.mark.parametrize("kv_heads", [1, 2, 3])
@pytest.mark.parametrize("softcap", [None, 20.0])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_attention_over_any_length_has_the_same_bits_at_any_number_of_threads(
    kv_heads: int, softcap: float | None, with_sinks: bool
) -> None:
    torch.manual_seed(0)
    store = KVStore([LayerShape(kv_heads, 64)], 200, 16)
    for each in store.layer(0):
        each.normal_()
    sinks = torch.randn(4 * kv_heads) if with_sinks else None
    for length in (7, 2047, 3001):  # one call for all heads, and one for each
        rows = 3
        query = torch.randn(1, 4 * kv_heads, rows, 64)
        key, value = torch.randn(2, 1, kv_heads, rows, 64)
        segment = Segment(range(200), length - rows, length)
        batch = RowBatch(store, [segment], torch.arange(length - rows, length))
        found = []
        for count in THREADS:
            torch.set_num_threads(count)
            with torch.inference_mode():
                found.append(batch.attend(0, query, key, value, None, None, softcap, sinks))
            assert torch.get_num_threads() == count
        assert all(torch.equal(each, found[0]) for each in found)


@pytest.mark.parametrize("family", OFTEN_SERVED)
@pytest.mark.parametrize("packing", ["exact", "fp16"])
def test_models_with_odd_widths_give_a_row_its_bits_at_any_number_of_threads(
    family: str, packing: str
) -> None:
    for count in (1, 3):
        torch.set_num_threads(count)
        made = random_model(family, vocab_size=ODD, intermediate_size=ODD, hidden_size=68)
        model = PagedModel(made, packing)  # type: ignore[arg-type]
        assert model.row_invariant, count
    assert_no_bit_changes(model)
