"""`crossdraft models --check`: what rounding weights costs is measured as it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from bench.support.tiny import make_pair
from cli.quality import measure as quality
from cli.quality.measure import measure, own_text
from common.model.paged_model import PagedModel
from tests.cli.command_line import one_line, run
from tests.model.int8.lean_models import lean, tiny, whole_logits


def ids(count: int) -> list[int]:
    return [(5 + 31 * place) % 203 for place in range(count)]


def test_a_model_against_itself_costs_nothing() -> None:
    model = PagedModel(tiny("qwen3"))
    found = measure(model, PagedModel(tiny("qwen3")), ids(100))
    assert found.predictions == 99
    assert found.perplexity == found.reference_perplexity
    assert (found.mean_kl, found.top_1, found.perplexity_change) == (0, 1, 0)


def test_the_figures_are_those_of_whole_texts_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In windows of their own, passes of any size; by transformers, for the reference."""
    monkeypatch.setattr(quality, "WINDOW", 64)
    monkeypatch.setattr(quality, "_ROWS", 10)
    text = ids(150)
    model, rounded = tiny("qwen3"), lean("qwen3")
    found = measure(PagedModel(tiny("qwen3")), rounded, text)
    losses, kl, agreeing = [], 0.0, 0
    for begin in range(0, 150, 64):
        window = text[begin : begin + 64]
        with torch.inference_mode():
            theirs = model(torch.tensor([window])).logits[0, :-1].double().log_softmax(-1)
        ours = whole_logits(rounded, window)[:-1].double().log_softmax(-1)
        expected = torch.tensor(window[1:])[:, None]
        losses.append([-float(logs.gather(1, expected).sum()) for logs in (theirs, ours)])
        kl += float((theirs.exp() * (theirs - ours)).sum())
        agreeing += int((theirs.argmax(-1) == ours.argmax(-1)).sum())
    assert found.predictions == 147
    reference, perplexity = torch.tensor(losses, dtype=torch.float64).sum(0).div(147).exp().tolist()
    assert found.reference_perplexity == pytest.approx(reference, rel=1e-4)
    assert found.perplexity == pytest.approx(perplexity, rel=1e-6)
    assert found.mean_kl == pytest.approx(kl / 147, rel=1e-2)
    assert found.top_1 == pytest.approx(agreeing / 147, abs=0.02)


def test_the_text_that_comes_along_is_long_enough() -> None:
    assert len(own_text()) > 12_000  # some three thousand tokens


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pair(tmp_path_factory.mktemp("quality"))[0]


def test_a_folder_is_checked_in_one_command(folder: Path) -> None:
    output = " ".join(run("models", "--check", str(folder)).output.split())  # a terminal wraps
    assert re.search(r"int8 against float32, [\d,]+ predictions", output)
    assert re.search(r"perplexity +[\d.]+ against [\d.]+, [+-]0\.\d+%", output)
    assert re.search(r"mean KL +0\.0\d+ nats", output)
    assert re.search(r"top-1 +\d+\.\d% agree", output)


def test_another_text_is_read(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("def fibonacci(n):", encoding="utf-8")
    found = run("models", "--check", str(folder), "--text", str(tmp_path / "short.txt")).output
    count = int(re.findall(r"float32, (\d+) predictions", " ".join(found.split()))[0])
    assert 1 <= count < 17


@pytest.mark.parametrize(
    ("data", "refused"), [(b"\xff\xfe", "is no UTF-8 text"), (b"", "it must have at least 2")]
)
def test_a_text_that_cannot_be_read_is_refused_in_one_line(
    folder: Path, tmp_path: Path, data: bytes, refused: str
) -> None:
    (tmp_path / "bad.txt").write_bytes(data)
    result = run("models", "--check", str(folder), "--text", str(tmp_path / "bad.txt"))
    assert refused in one_line(result, 1)
