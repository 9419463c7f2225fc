"""The model package: every row's bits are its own, and its values are transformers' own."""

from __future__ import annotations

import random

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    JambaConfig,
    MambaConfig,
    PretrainedConfig,
)

from common.errors import UnsupportedModel
from common.kv.pages import PagePool, PageTable
from common.model.batch import Chunk
from common.model.paged_model import PagedModel
from tests.support.fake_models import FAMILIES, random_model, shared_paged

PAGES, PAGE_SIZE = 64, 4
TEXTS = [
    random.Random(seed).choices(range(97), k=length) for seed, length in enumerate((31, 7, 18))
]


def rows(model: PagedModel, table: PageTable, tokens: list[int], size: int) -> torch.Tensor:
    """Logits of all tokens, run in chunks of `size` behind what the table holds."""
    logits = []
    for begin in range(0, len(tokens), size):
        chunk = tokens[begin : begin + size]
        table.reserve(table.length + len(chunk))
        logits.append(model.forward([Chunk(chunk, table, len(chunk))]))
        table.extend(len(chunk))
    return torch.cat(logits)


def alone(model: PagedModel, tokens: list[int], size: int | None = None) -> torch.Tensor:
    table = PagePool(PAGES, PAGE_SIZE).table()
    return rows(model, table, tokens, size or len(tokens))


@pytest.mark.parametrize("family", FAMILIES)
def test_values_are_transformers_own(family: str) -> None:
    ours, theirs = shared_paged(family), random_model(family)
    for tokens in TEXTS:
        with torch.inference_mode():
            expected = theirs(torch.tensor([tokens]), use_cache=False).logits[0]
        assert torch.allclose(alone(ours, tokens), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [1, 3])
def test_chunking_changes_no_bit(family: str, size: int) -> None:
    model = shared_paged(family)
    for tokens in TEXTS:
        assert torch.equal(alone(model, tokens, size), alone(model, tokens))


@pytest.mark.parametrize("family", FAMILIES)
def test_neighbours_change_no_bit(family: str) -> None:
    """Three sequences in one batch, in chunks of changing sizes, over pages that alternate."""
    model = shared_paged(family)
    pool, sizes = PagePool(PAGES, PAGE_SIZE), random.Random(family)
    tables = [pool.table() for _ in TEXTS]
    logits: list[list[torch.Tensor]] = [[] for _ in TEXTS]
    while any(t.length < len(tokens) for t, tokens in zip(tables, TEXTS, strict=True)):
        running = [i for i, table in enumerate(tables) if table.length < len(TEXTS[i])]
        chunks = []
        for i in running:
            tokens = TEXTS[i][tables[i].length :][: sizes.randint(1, 6)]
            tables[i].reserve(tables[i].length + len(tokens))
            chunks.append(Chunk(tokens, tables[i], len(tokens)))
        parts = model.forward(chunks).split([chunk.logit_rows for chunk in chunks])
        for i, chunk, part in zip(running, chunks, parts, strict=True):
            tables[i].extend(len(chunk.tokens))
            logits[i].append(part)
    assert any(b != a + 1 for a, b in zip(tables[0].pages, tables[0].pages[1:], strict=False))
    for tokens, parts in zip(TEXTS, logits, strict=True):
        assert torch.equal(torch.cat(parts), alone(model, tokens))


@pytest.mark.parametrize("family", FAMILIES)
def test_rolling_back_and_running_again_changes_no_bit(family: str) -> None:
    model = shared_paged(family)
    expected = alone(model, TEXTS[0])
    table = PagePool(PAGES, PAGE_SIZE).table()
    rows(model, table, TEXTS[0][:20] + TEXTS[1], 5)  # a rejected draft
    table.truncate(20)
    assert torch.equal(rows(model, table, TEXTS[0][20:], 4), expected[20:])
    table.release()  # preempted
    assert torch.equal(rows(model, table, TEXTS[0], 9), expected)


@pytest.mark.parametrize("family", ["gemma3", "mistral", "gemma2"])
def test_the_window_slides(family: str) -> None:
    """Beyond the window a token is out of reach where all layers slide, and not elsewhere."""
    model, wide = shared_paged(family), random_model(family, sliding_window=500)
    with torch.inference_mode():
        unlimited = wide(torch.tensor([TEXTS[0]]), use_cache=False).logits[0]
    ours = alone(model, TEXTS[0])
    assert torch.allclose(ours[:5], unlimited[:5], atol=1e-4, rtol=0)
    assert not torch.allclose(ours[6:], unlimited[6:], atol=1e-2, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_it_measures_that_its_rows_are_invariant(family: str) -> None:
    assert shared_paged(family).row_invariant


def test_plain_packing_never_claims_to_be_exact() -> None:
    assert not PagedModel(random_model("llama"), "plain").row_invariant


def test_only_wanted_rows_get_logits() -> None:
    model, table = shared_paged("llama"), PagePool(PAGES, PAGE_SIZE).table()
    table.reserve(10)
    expected = alone(model, TEXTS[0][:10])
    logits = model.forward([Chunk(TEXTS[0][:10], table, 3)])
    assert torch.equal(logits, expected[7:])


@pytest.mark.parametrize("end", [10_000_000, 97, -1])
def test_an_end_that_the_logits_do_not_have_is_refused_by_name(end: int) -> None:
    """It would raise in the first pass that processes logits, for every session in it."""
    with pytest.raises(UnsupportedModel, match=f"eos_token_id of this llama is {end}; .* 0 to 96"):
        PagedModel(random_model("llama", eos_token_id=[0, end]))


def test_every_end_that_the_files_name_is_an_end() -> None:
    model = random_model("llama", eos_token_id=[5, 9])
    model.generation_config.eos_token_id = 7
    assert PagedModel(model).eos_ids == {5, 7, 9}


@pytest.mark.parametrize(
    "config",
    [
        BloomConfig(vocab_size=50, hidden_size=16, n_layer=1, n_head=2),
        MambaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, state_size=4),
        JambaConfig(
            vocab_size=50,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            attn_layer_period=2,
            attn_layer_offset=1,
            use_mamba_kernels=False,
            mamba_d_state=4,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ],
    ids=["attention of its own", "no attention", "a state beside attention"],
)
def test_a_model_that_keeps_more_than_keys_and_values_is_refused(config: PretrainedConfig) -> None:
    with pytest.raises(UnsupportedModel, match=config.model_type):
        PagedModel(AutoModelForCausalLM.from_config(config))
