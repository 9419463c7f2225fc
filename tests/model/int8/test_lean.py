"""The kernels' own pass over known layers: transformers' logits, and bits that nothing changes."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from common.errors import UnsupportedModel
from common.kv.pages import PagePool
from common.model.batch import Chunk
from common.model.checks import eager_check
from common.model.cpu import lean_weights
from common.model.language_model import LanguageModel
from common.model.paged_model import PagedModel
from common.native.library import Kernels
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
