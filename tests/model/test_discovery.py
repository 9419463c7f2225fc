"""A model's weights as they are moved; what else is found out is in tests/model/test_model.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor, init_device_mesh

from common.model.discovery import move

CPU = torch.device("cpu")


@pytest.fixture
def _alone() -> Iterator[None]:
    """A group of this process only."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("_alone")
def test_a_model_spread_over_ranks_changes_its_dtype_through_and_through() -> None:
    """Wrappers and the parts that they wrap; tied weights stay one."""
    mesh = init_device_mesh("cpu", (1,))
    model = torch.nn.ModuleDict({name: torch.nn.Linear(3, 4) for name in ("in", "out", "own")})
    spread = distribute_tensor(torch.randn(4, 3), mesh, [Replicate()])
    model["in"].weight = model["out"].weight = torch.nn.Parameter(spread)
    before = spread.to_local().clone()
    move(model, CPU, torch.bfloat16)
    weight = model["in"].weight
    assert isinstance(weight, DTensor) and weight is model["out"].weight
    assert {each.dtype for each in model.parameters()} == {torch.bfloat16}
    assert weight.to_local().dtype == torch.bfloat16
    assert torch.equal(weight.to_local(), before.bfloat16())
