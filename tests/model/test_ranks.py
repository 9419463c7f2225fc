"""A target over two ranks on the CPU: the same text, and one end for all, whatever ends it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from cli.children import free_addresses
from common.errors import ConfigError
from common.kv.pages import PagePool
from common.model.batch import Chunk
from common.model.paged_model import PagedModel
from common.model.ranks import decode, encode, torchrun_rank
from common.model.sharded import _check_heads
from common.pb import verifier_pb2, verifier_pb2_grpc
from common.rpc.channel import open_channel
from common.types import OpenSession
from tests.support.fake_models import random_model
from tests.support.fake_pairs import files, known
from tests.support.fake_services import serving_verifier
from tests.support.verifier_sessions import checked
from tests.support.verify_streams import Stream

ROOT = Path(__file__).parents[2]
PROMPTS = ((20, 50, 80, 110), tuple(range(3, 40)), (7,))
NEW = 24
READY_S = 600.0  # a bound, not a wait


def test_a_batch_travels_as_numbers_and_comes_back_whole() -> None:
    pool = PagePool(8, 4)
    tables = [pool.table(), pool.table()]
    for table, length in zip(tables, (6, 1), strict=True):
        table.reserve(length + 5)
        table.extend(length)
    chunks = [Chunk([5, 6, 7], tables[0], 2), Chunk([9], tables[1], 0)]
    found = decode(encode(chunks))
    assert [(c.tokens, c.logit_rows) for c in found] == [([5, 6, 7], 2), ([9], 0)]
    for ours, theirs in zip(tables, (chunk.table for chunk in found), strict=True):
        assert (ours.pages, ours.length) == (theirs.pages, theirs.length)
        assert theirs.numbers(1).tolist() == ours.pages[:1]


def test_a_process_that_torchrun_did_not_start_has_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert torchrun_rank() is None
    for name, value in (("RANK", "1"), ("LOCAL_RANK", "1"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    place = torchrun_rank()
    assert place is not None and (place.rank, place.world, place.local_world) == (1, 2, 2)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert torchrun_rank() is None


def test_heads_that_ranks_do_not_divide_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="--nproc-per-node is 3; it must divide the 2 heads"):
        _check_heads(folder, 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with two heads of keys and values, and its tokenizer."""
    made = tmp_path_factory.mktemp("target")
    random_model("qwen2", known("wide").width).half().save_pretrained(made)  # as most files are
    for name, data in files("wide").files.items():
        (made / name).write_bytes(data)
    return made


class Served:
    """Two ranks, and a client of the first."""

    def __init__(self, ranks: list[subprocess.Popen[str]], stub: object, log: Path) -> None:
        self.ranks, self.stub, self._log = ranks, stub, log

    def log(self, rank: int) -> str:
        return (self._log / f"{rank}.log").read_text()

    def spec(self, prompt: tuple[int, ...]) -> OpenSession:
        return OpenSession(prompt, NEW, files("wide").sha256, ignore_eos=True)

    async def ends(self) -> list[int]:
        return [await asyncio.to_thread(rank.wait, READY_S) for rank in self.ranks]


@contextmanager
def started(
    folder: Path, log: Path, *settings: str
) -> Iterator[tuple[str, list[subprocess.Popen[str]]]]:
    """As torchrun starts them, but without torchrun, so that each one's own end is seen."""
    address, master = free_addresses(2)
    command = [sys.executable, "-m", "cli", "verifier", "--model", str(folder)]
    command += ["--listen", address, "--kv-memory-mib", "8", *settings]
    host, port = master.split(":")
    shared = {"MASTER_ADDR": host, "MASTER_PORT": port, "WORLD_SIZE": "2", "PYTHONPATH": str(ROOT)}
    ranks = []
    with ExitStack() as stack:
        try:
            for rank in ("0", "1"):
                file = stack.enter_context((log / f"{rank}.log").open("w"))
                env = {**os.environ, **shared, "RANK": rank, "LOCAL_RANK": rank}
                env.pop("TRITON_INTERPRET", None)
                ranks.append(
                    subprocess.Popen(
                        command, cwd=ROOT, env=env, stdout=file, stderr=file, text=True
                    )
                )
            yield address, ranks
        finally:
            for process in ranks:
                process.kill()
                process.wait()


@asynccontextmanager
async def two_ranks(folder: Path, log: Path, *settings: str) -> AsyncIterator[Served]:
    with started(folder, log, *settings) as (address, ranks):
        async with open_channel(address, 2**20) as channel:
            stub = verifier_pb2_grpc.VerifierServiceStub(channel)
            await stub.GetModel(
                verifier_pb2.GetModelRequest(), wait_for_ready=True, timeout=READY_S
            )
            yield Served(ranks, stub, log)


async def _alone(folder: Path) -> list[list[int]]:
    """The same weights in one process, as a verifier serves them."""
    model = PagedModel.load(folder, threads=1)
    async with serving_verifier(model, files("wide")) as verifier:
        return [
            await checked(verifier, verifier.open(prompt, NEW, ignore_eos=True), [], 0)
            for prompt in PROMPTS
        ]


@pytest.mark.long
async def test_greedy_output_is_the_single_process_verifiers_with_and_without_drafts(
    folder: Path, tmp_path: Path
) -> None:
    expected = await _alone(folder)
    async with two_ranks(folder, tmp_path) as served:
        for prompt, truth in zip(PROMPTS, expected, strict=True):
            found = await checked(served, served.spec(prompt), [], 0)  # type: ignore[arg-type]
            assert found == truth
        sessions = [
            checked(served, served.spec(prompt), truth, k)  # type: ignore[arg-type]
            for prompt, truth, k in zip(PROMPTS, expected, (1, 4, 7), strict=True)
        ]
        assert list(await asyncio.gather(*sessions)) == expected


@pytest.mark.long
async def test_a_cancelled_client_leaves_all_ranks_serving_and_sigterm_ends_them_with_0(
    folder: Path, tmp_path: Path
) -> None:
    async with two_ranks(folder, tmp_path) as served:
        begun = checked(served, served.spec(PROMPTS[0]), [], 0)  # type: ignore[arg-type]
        other = asyncio.create_task(begun)
        stream = Stream(served)  # type: ignore[arg-type]
        await stream.send(served.spec(PROMPTS[2]))
        stream.cancel()
        assert len(await other) == NEW
        assert len(await checked(served, served.spec(PROMPTS[1]), [], 0)) == NEW  # type: ignore[arg-type]
        for rank in served.ranks:  # as torchrun does
            rank.send_signal(signal.SIGTERM)
        assert await served.ends() == [0, 0]


@pytest.mark.long
@pytest.mark.parametrize("lost", [0, 1])
async def test_a_rank_that_dies_ends_the_others_and_the_log_says_so(
    folder: Path, tmp_path: Path, lost: int
) -> None:
    async with two_ranks(folder, tmp_path) as served:
        served.ranks[lost].kill()
        ends = await served.ends()
        assert ends[lost] == -signal.SIGKILL
        assert ends[1 - lost] == 1
        assert f"rank {lost}" in served.log(1 - lost) and "has died" in served.log(1 - lost)
