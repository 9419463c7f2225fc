"""Packed linears: a row's bits are its own, and what can't promise that says so."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from common.model.cpu import linear
from common.model.cpu.linear import PackedLinear, pack_linears

SHAPES = [  # in, out, bias
    (64, 96, True),
    (64, 7, False),
    (576, 192, False),
    (896, 128, True),
    (1024, 64, True),
    (1536, 80, True),
    (1536, 64, False),
    (2048, 64, False),
    (8960, 32, False),
]
# Where the ops are missing nothing is promised: packing falls back to plain, as another test holds.
exact = pytest.mark.skipif(not linear.available("exact"), reason="this torch lacks oneDNN's ops")


def made(width: int, out: int, bias: bool) -> nn.Linear:
    torch.manual_seed(width + out)
    return nn.Linear(width, out, bias=bias)


@exact
@pytest.mark.parametrize(("width", "out", "bias"), SHAPES)
def test_every_count_and_index_of_rows_gives_the_same_bits(
    width: int, out: int, bias: bool
) -> None:
    packed = PackedLinear(made(width, out, bias), "exact")
    assert packed.row_invariant
    rows = torch.randn(130, width)
    whole = packed(rows)
    for count in (*range(1, 34), 47, 48, 49, 63, 64, 65, 95, 96, 97, 127, 128, 129, 130):
        assert torch.equal(packed(rows[:count]), whole[:count]), count
    for place in (1, 63, 64, 129):
        assert torch.equal(packed(rows[place : place + 1]), whole[place : place + 1]), place


@exact
@pytest.mark.parametrize("bias", [True, False])
def test_values_are_torchs_own(bias: bool) -> None:
    plain = made(1536, 256, bias)
    rows = torch.randn(2, 9, 1536)
    expected = plain(rows)
    assert torch.allclose(PackedLinear(plain, "exact")(rows), expected, atol=1e-4)
    if linear.available("fp16"):
        assert torch.allclose(PackedLinear(plain, "fp16")(rows), expected, atol=1e-2)


@exact
def test_every_linear_of_a_model_is_packed_and_its_weights_freed() -> None:
    model = nn.Sequential(made(64, 96, True), nn.Sequential(nn.ReLU(), made(96, 64, False)))
    assert pack_linears(model, "exact")
    assert not any(type(module) is nn.Linear for module in model.modules())
    assert sum(parameter.numel() for parameter in model.parameters()) == 0


def test_plain_leaves_the_model_and_promises_nothing() -> None:
    model = nn.Sequential(made(64, 8, True))
    assert not pack_linears(model, "plain")
    assert type(model[0]) is nn.Linear


@pytest.mark.parametrize("packing", ["exact", "fp16"])
def test_without_the_ops_it_falls_back_to_plain_and_says_that_it_is_not_exact(
    packing: linear.Packing, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(linear, "available", lambda packing: False)
    model = nn.Sequential(made(64, 8, True))
    assert not pack_linears(model, packing)
    assert type(model[0]) is nn.Linear
    assert "inexact" in caplog.text


def test_a_linear_whose_rows_depend_on_each_other_is_found_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(linear, "_probed", {})
    monkeypatch.setattr(linear, "_pack", lambda *_: lambda rows: rows + rows.sum())
    assert not pack_linears(nn.Sequential(made(64, 64, True)), "exact")
    assert "not row-invariant" in caplog.text
