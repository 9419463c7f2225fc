"""The device bench in its tiny form: it runs whole without a GPU, and reports what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.device import __main__ as device
from bench.device.budget import Budget
from bench.device.pair.folders import IDS, make_folder
from bench.device.pair.script import Script, accepted, expected_length
from bench.device.parts import acceptance as device_kernels
from bench.device.parts import drafts as device_drafts
from bench.device.parts.steps import SHAPES, SMALL, Steps
from bench.device.stages import Bench
from bench.device.summary import summary
from common.vocabulary.vocabulary import TokenizerFiles, Vocabulary
from drafter.kernels.propose import propose_rows

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]
ABOUT: dict[str, Any] = {"device": "none", "torch": "2", "seed": 1, "seconds": 1.0}


@pytest.mark.long
@pytest.mark.kernels
def test_one_command_runs_every_stage_and_ends_in_a_table(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.device", "--small", "--seed", "1"]
    run = subprocess.run(
        [*command, "--out", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = json.loads((tmp_path / "device.json").read_text())
    assert list(found["stages"]) == list(device.SECONDS)
    assert not [name for name, stage in found["stages"].items() if "failed" in stage]
    for name in ("checks", "parts"):
        assert found["stages"][name]["checks"] and not found["stages"][name]["wrong"]
    pair = found["stages"]["pair"]
    assert all(row["equal"] == row["outputs"] for row in pair["equality"])
    assert {row["k"] for row in pair["rounds"]} == {0, 3}
    assert "asked and found" in run.stdout
    assert run.stdout.rstrip().endswith("s in all")


@pytest.mark.kernels
def test_a_wrong_acceptance_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(device_kernels, "ours", lambda *_: torch.full((1, 2), 3))
    rows = device_kernels.check(8, 50, CPU, Budget(60), ("greedy", "top-k top-p, q"))
    assert [row["check"] for row in rows] == ["greedy", "top-k top-p, q"]
    assert not any(row["right"] for row in rows)


@pytest.mark.kernels
def test_acceptance_with_logits_processors_is_checked_too() -> None:
    torch.manual_seed(0)
    rows = device_kernels.check(8, 50, CPU, Budget(60), tuple(device_kernels.PROCESSED))
    assert len(rows) == 3 and all(row["right"] for row in rows)


@pytest.mark.kernels
def test_draft_steps_are_checked_in_float64_and_what_is_wrong_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    (row,) = device_drafts.check_and_measure(CPU, [(2, 100)], 1.0, Budget(60))
    assert (row["checked"], row["right"]) == (2, True)

    def shifted(*given: Any) -> Any:
        tokens, ids, probs = propose_rows(*given)
        return tokens, ids, probs.roll(1, 1)

    monkeypatch.setattr("drafter.kernels.propose.propose_rows", shifted)
    (row,) = device_drafts.check_and_measure(CPU, [(2, 100)], 1.0, Budget(60))
    assert not row["right"]


@pytest.mark.kernels
def test_a_model_is_the_same_each_time_and_leaves_the_runs_seed_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    weights = []
    for seed in (5, 6):
        torch.manual_seed(seed)
        steps = Steps(SMALL[0], 1, 4)
        weights.append(next(steps.model.code.parameters()).clone())
        rest = torch.rand(3)
    assert torch.equal(*weights)
    assert not torch.equal(rest, expected)


def test_a_folder_has_as_many_ids_as_the_published_tokenizer(tmp_path: Path) -> None:
    shape = SHAPES[2]  # padded wider
    files = TokenizerFiles.from_directory(make_folder(shape, tmp_path))
    vocabulary = Vocabulary(files, shape.vocab, frozenset())
    assert int(vocabulary.real.sum()) == 151_936 and vocabulary.real[:151_936].all()


def test_targets_are_reported_at_the_copy_bandwidth_too() -> None:
    row = {"kernel": "greedy", "rows": 512, "vocab": 151_936, "us": 10, "reads": 1.1}
    row |= {"torch_us": 90, "share_of_copy": 0.8}
    reported = summary({**ABOUT, "stages": {"acceptance": {"acceptance": [row], "left_out": []}}})
    line = next(line for line in reported if "the same, at the copy bandwidth" in line)
    assert line.split()[-2:] == ["1.25", "yes"]


def test_what_the_time_does_not_allow_is_left_out_and_named() -> None:
    budget = Budget(0)
    assert device_kernels.check(8, 50, CPU, budget, ("greedy",)) == []
    assert budget.left_out == ["check of greedy at 8 x 50"]
    ample = Budget(1000)
    assert ample.allows("one") and not ample.allows("a day", 86_400)
    assert ample.left_out == ["a day"]


def test_a_stage_that_fails_is_reported_and_the_others_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def stage(name: str) -> Any:
        def run(bench: Bench, budget: Budget) -> dict[str, Any]:
            if name == "checks":
                raise ZeroDivisionError("no oracle")
            return {"copy_gb_s": 2.0, "bf16_tflop_s": 1.0}

        return run

    found: dict[str, Any] = {"seed": 1, "device": "none", "torch": "2", "stages": {}}
    bench = Bench(CPU, True, tmp_path)
    device.run_stages(["checks", "ceilings"], bench, found, stage)
    assert "no oracle" in capsys.readouterr().out
    written = json.loads((tmp_path / "device.json").read_text())
    assert list(written["stages"]) == ["checks", "ceilings"]
    lines = summary(written)
    assert "FAILED checks: ZeroDivisionError: no oracle" in lines


def test_scripted_drafts_are_accepted_at_the_rate_and_at_the_same_places(tmp_path: Path) -> None:
    sampled = accepted(3, 4000, 0.6)
    assert sampled[:50] == accepted(3, 50, 0.6)
    assert sampled != accepted(4, 4000, 0.6)
    assert abs(sum(sampled) / len(sampled) - 0.6) < 0.03
    assert expected_length(0.6, 3) == pytest.approx(1 + 0.6 + 0.36 + 0.216)
    path = tmp_path / "script.json"
    script = Script(path)
    script.refresh()
    assert script.token([5, 1], 9) == 9  # nothing is recorded: the model's own
    truth = [5, 1, 7, 8, 9, IDS - 1]
    Script.write(path, 0.5, [truth])
    script.refresh()
    for place, right in zip(range(1, len(truth)), truth[1:], strict=True):
        found = script.token(truth[:place], 0)
        assert found == (right if accepted(5, len(truth), 0.5)[place] else (right + 1) % IDS)
    assert script.token(truth, 9) == 9
    assert script.token([6, 1], 9) == 9
