"""The model package through kernels, interpreted: the CPU path's values, graph or eager."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from common.kv.pages import PagePool
from common.model.batch import Chunk
from common.model.cuda_graphs import StepSize, step_sizes
from common.model.paged_model import PagedModel
from tests.support.fake_models import random_model, shared_paged

pytestmark = pytest.mark.kernels

PAGES, PAGE_SIZE = 64, 4
TOKENS = [(7 * i) % 97 for i in range(24)]


@cache
def through_kernels(family: str, fuse: bool = True) -> PagedModel:
    model = PagedModel(random_model(family), kernels=True, fuse=fuse)
    assert model.fused is (fuse and family in ("llama", "qwen2", "mistral"))
    model.allocate(PAGES, PAGE_SIZE)
    return model


def run(model: PagedModel, first: int, then: list[int]) -> list[torch.Tensor]:
    """Two sequences: `first` tokens of each, then steps of so many rows; logits of every call."""
    pool = PagePool(PAGES, PAGE_SIZE)
    tables = [pool.table(), pool.table()]
    found = []
    for count in (first, *then):
        chunks = []
        for place, table in enumerate(tables):
            tokens = TOKENS[table.length :][: count + place]  # the second gets ahead
            table.reserve(table.length + len(tokens))
            chunks.append(Chunk(tokens, table, min(len(tokens), 3)))
        found.append(model.forward(chunks).clone())
        for chunk in chunks:
            chunk.table.extend(len(chunk.tokens))
    return found


@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral", "gemma2", "gemma3", "unfused"])
def test_kernels_have_the_cpu_paths_values(family: str) -> None:
    """Layers of a known kind are fused."""
    model = through_kernels("llama" if family == "unfused" else family, family != "unfused")
    family = "llama" if family == "unfused" else family
    expected = run(shared_paged(family, PAGES, PAGE_SIZE), 9, [1, 3])
    for value, wanted in zip(run(model, 9, [1, 3]), expected, strict=True):
        assert torch.allclose(value, wanted, atol=1e-4, rtol=0)


def test_graphs_have_the_values_of_eager_steps() -> None:
    """Padded to a captured size or beyond all of them; smaller batches after larger ones."""
    model = PagedModel(random_model("gemma2"), kernels=True)
    model.allocate(PAGES, PAGE_SIZE)
    expected = run(model, 4, [3, 1, 2])
    reported: list[tuple[int, int]] = []
    model.capture_graphs(8, 64, lambda done, of: reported.append((done, of)))
    assert reported[-1][0] == reported[-1][1] == len(reported)
    for value, wanted in zip(run(model, 4, [3, 1, 2]), expected, strict=True):
        assert torch.allclose(value, wanted, atol=1e-5, rtol=0)


def test_batches_that_fit_no_graph_are_counted_and_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = PagedModel(random_model("llama"), kernels=True)
    model.allocate(PAGES, PAGE_SIZE)
    run(model, 4, [3, 1, 2])
    assert model.eager_passes == 0, "nothing is captured yet"
    model.capture_graphs(2, 64)
    run(model, 4, [1, 1, 1])
    fitting = model.eager_passes
    run(model, 4, [3, 1, 2])
    assert model.eager_passes > fitting
    assert sum("fit no CUDA graph" in line for line in caplog.messages) == 1


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_frequencies_that_follow_positions_are_never_captured(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    factors = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
    own = {"original_max_position_embeddings": 128, **factors} if kind == "longrope" else {}
    rope = {"rope_type": kind, "rope_theta": 10_000.0, "factor": 4.0, **own}
    model = PagedModel(random_model("llama", rope_parameters=rope), kernels=True)
    assert model.max_context_length == (128 if kind == "longrope" else 512)
    model.allocate(PAGES, PAGE_SIZE)
    model.capture_graphs(8, 64)
    assert model.graph_sizes == 0 and "steps run eagerly" in caplog.text
    run(model, 4, [3, 1, 2])
    assert model.eager_passes == 0


def test_graph_sizes_cover_all_rows_and_the_longest_context() -> None:
    sizes = step_sizes(80, 10, 10_000)
    assert {size.rows for size in sizes} >= {1, 2, 4, 8, 16, 64, 80}
    assert max(size.rows for size in sizes) == 80
    for rows in {size.rows for size in sizes}:
        assert max(size.work_tiles for size in sizes if size.rows == rows) >= 10 * rows
    assert StepSize(80, 1280) not in step_sizes(80, 10, 1000)


def test_fused_rows_have_the_same_bits_alone_and_in_any_batch() -> None:
    model = through_kernels("llama")
    assert model.row_invariant
    pool = PagePool(PAGES, PAGE_SIZE)
    found = []
    for sizes in ([11], [1] * 11, [3, 8]):
        table, other = pool.table(), pool.table()
        logits = []
        for count in sizes:
            tokens = TOKENS[table.length :][:count]
            table.reserve(table.length + count)
            other.reserve(4)
            chunks = [Chunk(TOKENS[:4], other, 1), Chunk(tokens, table, count)]
            logits.append(model.forward(chunks[len(sizes) % 2 :])[-count:].clone())
            table.extend(count)
        found.append(torch.cat(logits))
        table.release()
        other.release()
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_nothing_is_promised_where_the_librarys_products_are_used() -> None:
    assert not through_kernels("gemma2").row_invariant
    assert not PagedModel(random_model("llama"), "plain", kernels=True).row_invariant
