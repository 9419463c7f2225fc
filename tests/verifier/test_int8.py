"""A target in int8: one text however it is drafted and on any number of threads, or refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.support.tiny import make_pair
from client.client import Client, Request
from common.device.choice import Device
from common.errors import ConfigError
from common.model.loading import load_model
from common.model.ranks import RankInfo
from common.vocabulary.vocabulary import TokenizerFiles
from tests.support.fake_services import serving_drafter, serving_verifier
from verifier import ranks
from verifier.config import VerifierConfig
from verifier.identity import numerics_of

PROMPTS = ("def fibonacci(n):\n", "Write a SQL query", "x", "The capital of France")
STEPS = (1, 3, 8)
SIZES: dict[str, Any] = {"context": 128, "max_batch_tokens": 32, "threads": 0, "pages": 40}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_pair(tmp_path_factory.mktemp("int8"))


async def texts(folders: tuple[Path, Path], threads: int) -> dict[tuple[str, int], tuple[int, ...]]:
    """Ids by prompt and k, all at once, in a pool for few of them."""
    target, draft = (load_model(folder, "int8", threads) for folder in folders)
    assert target.row_invariant and target.arithmetic == "int8, lean"
    files = [TokenizerFiles.from_directory(folder) for folder in folders]
    async with (
        serving_verifier(target, files[0], **SIZES) as verifier,
        serving_drafter(draft, files[1], verifier.port, **SIZES) as drafter,
        Client(drafter.address) as client,
    ):
        asked = [(prompt, k) for prompt in PROMPTS for k in (0, *STEPS)]
        outputs = await asyncio.gather(
            *(client.generate(Request(24, prompt=prompt, draft_steps=k)) for prompt, k in asked)
        )
        return {each: output.token_ids for each, output in zip(asked, outputs, strict=True)}


async def test_texts_are_the_targets_own_at_any_k_and_number_of_threads(
    folders: tuple[Path, Path],
) -> None:
    expected = await texts(folders, 1)
    for prompt in PROMPTS:
        assert all(expected[prompt, k] == expected[prompt, 0] for k in STEPS)
    for threads in (2, 3, 8):
        assert await texts(folders, threads) == expected


GPU = Device(torch.device("cuda:0"), torch.bfloat16, "a GPU")


@pytest.mark.parametrize(("rank", "where"), [(None, "cuda:0"), (RankInfo(0, 2, 0, 2), "2 ranks")])
def test_int8_is_refused_where_it_is_not_computed(
    monkeypatch: pytest.MonkeyPatch, rank: RankInfo | None, where: str, tmp_path: Path
) -> None:
    monkeypatch.setattr(ranks, "choose_device", lambda *_: GPU)
    monkeypatch.setattr(ranks, "torchrun_rank", lambda: rank)
    with pytest.raises(ConfigError) as refused:
        ranks.load_target(VerifierConfig(linear="int8"), tmp_path)
    assert str(refused.value) == (
        f"linear is int8, the model runs on {where}; int8 is for one CPU process: it must be "
        "exact, fp16 or plain"
    )


def test_another_arithmetic_is_another_identity(folders: tuple[Path, Path]) -> None:
    """So that a stream never goes on in another model's words."""
    cpu = Device(torch.device("cpu"), torch.float32, "cpu")
    found = {
        numerics_of(load_model(folders[0], linear), cpu, 1) for linear in ("exact", "int8", "fp16")
    }
    assert len(found) == 3
