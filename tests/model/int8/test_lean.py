"""The kernels' own pass over known layers: transformers' logits, and bits that nothing changes."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from common.errors import UnsupportedModel
from common.kv.pages import PagePool
from common.model import loading
from common.model.batch import Chunk
from common.model.checks import eager_check
from common.model.cpu import lean_file, lean_weights
from common.model.cpu.lean_model import LeanModel
from common.model.language_model import LanguageModel
from common.model.loading import load_model
from common.model.paged_model import PagedModel
from common.native.library import Kernels
from common.weights.fingerprint import weights_sha256
from tests.model.int8.lean_models import OWN, lean, tiny
from tests.model.int8.test_int8 import every_build
from tests.model.thread_bits import THREADS, logits
from tests.model.tiny_families import tiny_model

ROOT = Path(__file__).parents[3]
TOKENS = 40  # more than any window here
families = pytest.mark.parametrize("family", OWN)


def prompt() -> list[int]:
    return [(3 + 44 * place) % 203 for place in range(TOKENS)]


@families
@every_build
def test_logits_are_those_of_transformers_code_with_the_same_linears(
    family: str, build: Kernels
) -> None:
    """Which rounds activations to the same whole numbers, but for a few on the border."""
    expected = eager_check.paged_logits(PagedModel(tiny(family), "int8"), prompt())
    got = eager_check.paged_logits(lean(family, build=build), prompt())
    assert (got - expected).abs().max() <= 3e-3 * expected.abs().max()


@families
def test_a_wrong_pass_would_be_refused(family: str) -> None:
    """The comparison that a model must pass before it is served finds one changed norm."""
    expected = eager_check.paged_logits(PagedModel(tiny(family), "int8"), prompt())
    model = lean(family)
    model.weights["layers.1.before_mlp"].mul_(torch.linspace(0.5, 1.5, model.architecture.width))
    with pytest.raises(UnsupportedModel, match="logits differ by"):
        eager_check.check(model, family, prompt(), expected, "int8")


@families
@every_build
def test_every_build_and_every_number_of_threads_gives_the_same_bits(
    family: str, build: Kernels
) -> None:
    expected = of_chunks(lean(family, threads=1), 1)
    for threads in THREADS:
        model = lean(family, threads, build)
        for size in (1, 3, 17, 40):
            assert torch.equal(of_chunks(model, size), expected), (threads, size)


def of_chunks(model: LanguageModel, size: int) -> Tensor:
    model.allocate(10, 4)
    return logits(model, size)


@families
def test_sequences_in_one_batch_on_scattered_pages_have_the_bits_of_each_alone(
    family: str,
) -> None:
    model = lean(family, threads=3)
    order = random.Random(5)
    texts = [[order.randrange(203) for _ in range(order.randint(1, 30))] for _ in range(6)]
    alone = []
    for text in texts:
        model.allocate(10, 4)
        table = PagePool(10, 4).table()
        table.reserve(len(text))
        alone.append(model.forward([Chunk(text, table, len(text))]))
    pool = PagePool(80, 4)
    model.allocate(80, 4)
    tables = [pool.table() for _ in texts]
    while any(len(text) > table.length for text, table in zip(texts, tables, strict=True)):
        chunks = []
        for text, table in zip(texts, tables, strict=True):  # a page now and then: they mix
            tokens = text[table.length : table.length + order.randint(1, 7)]
            if tokens:
                table.reserve(table.length + len(tokens))
                chunks.append(Chunk(tokens, table, len(tokens)))
        together = model.forward(chunks)
        for chunk in chunks:
            own, together = together[: len(chunk.tokens)], together[len(chunk.tokens) :]
            begin, number = chunk.table.length, tables.index(chunk.table)
            assert torch.equal(own, alone[number][begin : begin + len(chunk.tokens)])
            chunk.table.extend(len(chunk.tokens))


def test_a_pass_may_ask_for_no_logits() -> None:
    model = lean("llama")
    model.allocate(10, 4)
    table = PagePool(10, 4).table()
    table.reserve(3)
    assert model.forward([Chunk([1, 2, 3], table, 0)]).shape == (0, 203)


def test_positions_beyond_the_first_tables_are_computed_when_they_come() -> None:
    long, short = lean("llama", max_position_embeddings=8192), lean("llama")
    long._angles.reach(5000)
    assert torch.equal(of_chunks(long, 17), of_chunks(short, 17))


@pytest.mark.parametrize(
    ("family", "changed"),
    [
        ("llama", {"head_dim": 24}),  # no whole number of vectors
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}),
        ("llama", {"hidden_act": "gelu"}),
        ("gemma3_text", {"final_logit_softcapping": 30.0}),
    ],
)
def test_what_the_pass_does_not_do_runs_as_transformers_made_it(
    family: str, changed: dict[str, object]
) -> None:
    paged = PagedModel(tiny(family, **changed), "int8")
    assert lean_weights.read(paged.code, paged.calls) is None
    assert paged.row_invariant


def test_a_family_of_other_layers_has_its_linears_in_int8() -> None:
    paged = PagedModel(tiny_model("gpt2"), "int8")
    assert lean_weights.read(paged.code, paged.calls) is None
    assert paged.row_invariant and paged.arithmetic == "int8"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CROSSDRAFT_CACHE", str(tmp_path / "cache"))
    tiny("qwen3").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_weights_are_rounded_once_and_mapped_from_then_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load_model(folder, "int8")
    assert (folder / lean_file.NAME).is_file()
    expected = of_chunks(first, 17)
    monkeypatch.setattr(loading, "_make", None)  # would raise
    again = load_model(folder, "int8")
    assert isinstance(again, LeanModel) and again.row_invariant
    assert torch.equal(of_chunks(again, 17), expected)
    assert (again.eos_ids, again.max_context_length) == (first.eos_ids, first.max_context_length)
    assert all(each.data_ptr() % 64 == 0 for each in again.weights.values())


def test_other_weights_or_a_broken_file_are_rounded_again(folder: Path) -> None:
    expected = of_chunks(load_model(folder, "int8"), 17)
    kept = (folder / lean_file.NAME).read_bytes()
    (folder / lean_file.NAME).write_bytes(kept[:1000])
    assert torch.equal(of_chunks(load_model(folder, "int8"), 17), expected)
    assert (folder / lean_file.NAME).read_bytes() == kept
    other = tiny("qwen3")
    other.model.norm.weight.data *= 2
    other.save_pretrained(folder)
    assert not torch.equal(of_chunks(load_model(folder, "int8"), 17), expected)


@pytest.mark.parametrize("name", ["layers.1.gates.panels", "layers.0.down.scales", "last_norm"])
def test_a_kept_file_of_other_shapes_is_rounded_again_and_never_run(
    folder: Path, name: str
) -> None:
    """Kernels read what they are asked to: nothing that a folder holds may be out of bounds."""
    first = load_model(folder, "int8")
    assert isinstance(first, LeanModel)
    expected = of_chunks(first, 17)
    kept = lean_file.read([folder], weights_sha256(folder))
    assert kept is not None
    about, weights = kept
    cut = {each: weights[each].clone() for each in weights}
    cut[name] = cut[name][: len(cut[name]) // 2] if len(cut[name]) > 1 else cut[name][:, :32]
    assert lean_file.write([folder], weights_sha256(folder), about, cut)
    assert torch.equal(of_chunks(load_model(folder, "int8"), 17), expected)
    again = lean_file.read([folder], weights_sha256(folder))
    assert again is not None and again[1][name].shape == weights[name].shape


def test_a_folder_that_is_only_read_keeps_its_file_in_the_cache(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = lean_file._blocks

    def refusing(*arguments: Any) -> Any:
        if not list(tmp_path.glob("cache/int8-*")):
            raise PermissionError("read-only")
        return write(*arguments)

    monkeypatch.setattr(lean_file, "_blocks", refusing)
    load_model(folder, "int8")
    monkeypatch.setattr(loading, "_make", None)
    assert isinstance(load_model(folder, "int8"), LeanModel)
    assert not (folder / lean_file.NAME).exists()
    assert not list(folder.glob("tmp*"))


def test_without_kernels_exact_is_taken_and_logged(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loading, "kernels", lambda: None)
    model = load_model(folder, "int8")
    assert model.arithmetic == "exact"
    assert (
        "int8 needs compiled kernels, which this installation lacks: exact instead" in caplog.text
    )


GONE = """
import gc
from pathlib import Path
from tests.model.int8.lean_models import lean, whole_logits
threads = lambda: len(list(Path("/proc/self/task").iterdir()))
whole_logits(lean("llama", threads=1), [1, 2, 3])
before = threads()
model = lean("llama", threads=6)
assert threads() == before + 5, (before, threads())
del model
gc.collect()
assert threads() == before, (before, threads())
"""


def test_a_model_that_is_gone_takes_its_threads_with_it() -> None:
    """In a process of its own, in which nothing else starts threads."""
    done = subprocess.run(
        [sys.executable, "-c", GONE], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


FEW_THREADS = """
import logging, resource
from pathlib import Path
logging.basicConfig()
from common.native.library import kernels
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + (200 << 20)  # of addresses: some twenty stacks
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
pool = kernels().pool(1000)
threads = len(list(Path("/proc/self/task").iterdir()))
assert threads < 100, threads
del pool
"""


def test_as_many_threads_are_taken_as_the_system_gives() -> None:
    """In a process of its own, whose addresses are few."""
    done = subprocess.run(
        [sys.executable, "-c", FEW_THREADS], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert "threads, not 1000" in done.stderr
