"""The probe of row invariance says no to a model with one operation that lets rows meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from common.model.batch import Chunk
from common.model.paged_model import PagedModel
from tests.model.tiny_families import tiny_model

WEIGHT = torch.randn(48, 48, generator=torch.Generator().manual_seed(0))
TINY = 1e-7  # more, and it isn't the model any more, which is refused
BAD: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "ATen's own SiLU": (lambda x: torch.ops.aten.silu.out(x, out=torch.empty_like(x)), "silu.out"),
    "another function than those that are replaced": (lambda x: torch.exp2(x) - 1, "exp2"),
    "an operation in place": (lambda x: x.clone().mul_(2).exp2_(), "exp2_"),
    "a power that isn't whole": (lambda x: (x.abs() + 1).pow(1.3), "pow.Tensor_Scalar"),
    "a product that isn't packed": (lambda x: functional.linear(x, WEIGHT), "linear"),
    "a mean over rows": (lambda x: x - TINY * x.mean(1, keepdim=True), "mean.dim"),
    "a maximum of all": (lambda x: x + TINY * x.max(), "max"),
    "sums that meet": (
        lambda x: x.index_add(1, torch.zeros(x.shape[1]).long(), TINY * x),
        "index_add",
    ),
    "a convolution over rows": (
        lambda x: functional.conv1d(x.transpose(1, 2), WEIGHT[:, :, None]).transpose(1, 2),
        "conv1d",
    ),
}


class Activation(nn.Module):
    def __init__(self, compute: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._compute = compute

    def forward(self, x: Tensor) -> Tensor:
        return self._compute(x)


def with_activation(compute: Callable[[Tensor], Tensor]) -> PagedModel:
    model = tiny_model("llama")
    model.model.layers[1].mlp.act_fn = Activation(compute)
    return PagedModel(model)


@pytest.mark.parametrize("bad", BAD)
def test_one_bad_operation_is_found_and_named(bad: str, caplog: pytest.LogCaptureFixture) -> None:
    compute, name = BAD[bad]
    assert not with_activation(compute).row_invariant
    assert f"aten::{name} aren't known to keep them apart" in caplog.text


def test_a_good_activation_is_no_reason_to_doubt() -> None:
    assert with_activation(lambda x: functional.silu(x) * torch.tanh(x) + 1).row_invariant


def test_a_model_whose_rows_follow_the_batch_is_found_by_its_bits() -> None:
    """Whatever its operations are called: the whole model is compared as well."""

    class Counting(PagedModel):
        most: int

        def forward(self, chunks: Sequence[Chunk]) -> Tensor:
            rows = super().forward(chunks)
            return rows + 1e-6 * (len(rows) > self.most)

    model = Counting.__new__(Counting)
    for most, expected in ((2, False), (8, False), (1000, True)):
        model.most = most
        model.__init__(tiny_model("llama"))  # type: ignore[misc]
        assert model.row_invariant is expected
