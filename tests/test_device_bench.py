"""The device bench in its tiny form: it runs without a GPU, and its checks tell wrong decisions."""

from __future__ import annotations

import pytest
import torch

from bench import device_kernels

pytestmark = pytest.mark.kernels

CPU = torch.device("cpu")


@pytest.fixture
def _two_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("greedy", "top-k top-p, q")
    cases = {name: device_kernels.CASES[name] for name in names}
    monkeypatch.setattr(device_kernels, "CASES", cases)


@pytest.mark.usefixtures("_two_cases")
def test_it_runs_every_part_and_answers_in_rows() -> None:
    torch.manual_seed(0)
    rows = device_kernels.run(CPU, small=True)
    assert [row["ceiling"] for row in rows if "ceiling" in row] == ["copy", "bf16 matmul"]
    assert all(row["right"] for row in rows if "right" in row)
    timed = [row["kernel"] for row in rows if "kernel" in row]
    assert timed == ["propose", "greedy", "top-k top-p, q"]


@pytest.mark.usefixtures("_two_cases")
def test_a_wrong_decision_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(device_kernels, "ours", lambda *_: torch.full((1, 2), 3))
    assert not any(row["right"] for row in device_kernels.check(8, 50, CPU))
