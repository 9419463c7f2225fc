"""Copies to a device and back, without a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from common.device.runtime import EagerRuntime
from common.device.staging import HostBuffer, Staging

CPU = torch.device("cpu")
kinds = st.sampled_from([torch.int64, torch.int32, torch.int8, torch.bool, torch.float32])


@given(st.lists(st.tuples(kinds, st.lists(st.integers(0, 4), max_size=3)), max_size=6))
def test_what_is_sent_arrives_in_its_shape_and_aligned(given_: list[Any]) -> None:
    staging = Staging(CPU, EagerRuntime(), size=64)
    for turn in range(2):
        parts = [torch.ones(shape).mul(turn + 3).to(dtype) for dtype, shape in given_]
        sent = staging.send([*parts, None])
        assert sent.pop() is None
        for got, wanted in zip(sent, parts, strict=True):
            assert got.dtype == wanted.dtype and torch.equal(got, wanted)
            assert got.data_ptr() % 16 == 0 or not got.numel()


def test_dataclasses_of_tensors_are_sent_whole_and_results_land() -> None:
    @dataclass(frozen=True)
    class Two:
        one: torch.Tensor
        other: torch.Tensor

    staging, host_buffer = Staging(CPU, EagerRuntime()), HostBuffer(6, torch.int64, EagerRuntime())
    made, alone = staging.send([Two(torch.tensor([1.5]), torch.tensor([True])), torch.tensor([7])])
    assert (made.one.tolist(), made.other.tolist(), alone.tolist()) == ([1.5], [True], [7])
    assert host_buffer.fetch(torch.arange(4).view(2, 2)).tolist() == [[0, 1], [2, 3]]
    assert host_buffer.landed.seconds_since(host_buffer.landed) == 0
