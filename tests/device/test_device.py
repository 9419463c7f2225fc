"""Which device a service runs on, what it takes of it, how things get there; without a GPU."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from common.device.choice import choose_device
from common.device.runtime import Card, EagerRuntime, Memory
from common.engine import memory as device_room
from common.engine.memory import MARGIN_BYTES, budget_of, profile_kv_memory
from common.errors import ConfigError
from tests.settings.test_sources import read, toml

H200 = Card("NVIDIA H200", (9, 0), 140 << 30)
OLD = Card("Tesla T4", (7, 5), 16 << 30)
GIB = 1 << 30
CPU = torch.device("cpu")


def test_a_pass_has_more_rows_on_a_gpu_unless_somebody_says_how_many() -> None:
    cpu, gpu = choose_device("cpu", "auto", []), choose_device("auto", "auto", [H200])
    assert (cpu.batch_rows(None), gpu.batch_rows(None)) == (128, 512)
    assert gpu.batch_rows(96) == 96
    assert cpu.batch_rows(None, minimum=201) == 201, "a proposal runs in one pass"


def test_auto_takes_a_gpu_where_there_is_one() -> None:
    assert choose_device("auto", "auto", []).place == CPU
    found = choose_device("auto", "auto", [H200])
    assert (found.place, found.dtype) == (torch.device("cuda:0"), torch.bfloat16)
    assert str(found) == "cuda:0 (NVIDIA H200) in bfloat16"


@pytest.mark.parametrize(
    ("device", "dtype", "cards", "place", "kind"),
    [
        ("cpu", "auto", [H200], "cpu", torch.float32),
        ("cpu", "float32", [], "cpu", torch.float32),
        ("cuda", "float16", [H200], "cuda:0", torch.float16),
        ("cuda:1", "float32", [H200, H200], "cuda:1", torch.float32),
        ("auto", "float32", [], "cpu", torch.float32),
    ],
)
def test_what_is_asked_for_is_what_is_used(
    device: str, dtype: str, cards: list[Card], place: str, kind: torch.dtype
) -> None:
    found = choose_device(device, dtype, cards)
    assert (found.place, found.dtype) == (torch.device(place), kind)


@pytest.mark.parametrize(
    ("device", "dtype", "cards", "message"),
    [
        ("cuda", "auto", [], r"^device is 'cuda'; torch finds no CUDA device on this machine$"),
        ("cuda:2", "auto", [H200] * 2, r"^device is 'cuda:2'; there is cuda:0 to cuda:1$"),
        ("cuda:1", "auto", [H200], r"^device is 'cuda:1'; there is cuda:0 alone$"),
        ("tpu", "auto", [], r"^device is 'tpu'; it must be auto, cpu, cuda or cuda:N$"),
        ("cuda:x", "auto", [H200], r"it must be auto, cpu, cuda or cuda:N$"),
        ("cuda", "auto", [OLD], r"^device is 'cuda', Tesla T4 .* 7\.5; it must be at least 8\.0$"),
        ("cpu", "bfloat16", [H200], r"^dtype is 'bfloat16'; on the CPU it must be auto or float32"),
        ("auto", "float16", [], r"^dtype is 'float16'; on the CPU it must be auto or float32"),
        ("cuda", "int8", [H200], r"^dtype is 'int8'; it must be auto, bfloat16, float16, float32$"),
    ],
)
def test_what_is_not_there_is_refused_by_name(
    device: str, dtype: str, cards: list[Card], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_device(device, dtype, cards)


@pytest.mark.parametrize("section", ["verifier", "drafter"])
def test_both_services_take_it_from_flags_environment_and_file(
    section: str, tmp_path: Path
) -> None:
    file = toml(tmp_path, f'[{section}]\ndevice = "cuda"\ndtype = "float16"')
    environment = {f"CROSSDRAFT_{section.upper()}_GPU_MEMORY_FRACTION": "0.4"}
    config = read(section, ["--config", file, "--device", "cuda:1"], environment)
    assert (config.device, config.dtype, config.gpu_memory_fraction) == ("cuda:1", "float16", 0.4)
    wrong = toml(tmp_path, f"[{section}]\ngpu_memory_fraction = 1.5")
    with pytest.raises(ConfigError, match=r"gpu_memory_fraction is 1\.5; it must be .*from 0\.01"):
        read(section, ["--config", wrong])


def test_a_share_of_the_whole_card_less_what_this_process_has() -> None:
    memory = Memory(free=100 * GIB, total=140 * GIB, own=20 * GIB)
    steps = 3 * GIB
    assert budget_of(memory, 0.5, steps) == 50 * GIB - steps - MARGIN_BYTES
    assert budget_of(memory, 1.0, steps) == 100 * GIB - steps - MARGIN_BYTES  # another's part
    assert budget_of(memory, 0.1, steps) == 0


@dataclass
class FakeCard(EagerRuntime):
    """A GPU's memory, counted by what was done to it."""

    own: int = 10 * GIB
    total: int = 100 * GIB
    limited: float | None = None

    def memory(self) -> Memory:
        return Memory(self.total - self.own, self.total, self.own)

    def limit(self, fraction: float) -> None:
        self.limited = fraction


class FakeModel:
    """A model whose CUDA graphs take two GiB, and whose pages of 16 tokens one MiB."""

    kernels = True
    bytes_per_token = 1 << 16

    def __init__(self) -> None:
        self.runtime = FakeCard()
        self.done: list[tuple[Any, ...]] = []
        self.graph_sizes = 0

    def allocate(self, pages: int, page_size: int) -> None:
        self.done.append(("pages", pages))
        self.runtime.own += pages * page_size * self.bytes_per_token

    def release(self) -> None:
        self.done.append(("release",))
        self.runtime.own = 10 * GIB

    def capture_graphs(
        self, rows: int, context: int, progress: Any = None, *, largest_only: bool = False
    ) -> None:
        self.done.append(("record", rows, context, largest_only))
        self.runtime.own += 2 * GIB
        self.graph_sizes = 1 if largest_only else 5
        for done in range(self.graph_sizes):
            if progress is not None:
                progress(done + 1, self.graph_sizes)


def stage(model: Any, context: int = 1600, most_rows: int = 128, **changes: Any) -> Any:
    settings = {
        "page_size": 16,
        "kv_memory_mib": None,
        "max_sessions": 1000,
        "gpu_memory_fraction": 0.5,
        **changes,
    }
    return profile_kv_memory(
        model, SimpleNamespace(**settings), context=context, most_rows=most_rows
    )


def test_pages_take_what_weights_and_steps_leave(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    model = FakeModel()
    pool = stage(model)
    assert model.runtime.limited == 0.5
    left = 50 * GIB - 10 * GIB - 2 * GIB - (1 << 20) - MARGIN_BYTES  # the trial's one page
    assert pool.num_pages == left >> 20
    assert model.done == [
        ("pages", 1),
        ("record", 128, 1600, True),
        ("release",),
        ("pages", pool.num_pages),
        ("record", 128, 1600, False),
    ]
    reported = caplog.text
    assert f"KV cache: {pool.num_pages} pages" in reported
    assert "capturing CUDA graphs: 5 of 5" in reported and "5 CUDA graphs captured" in reported


def test_a_given_memory_and_few_sessions_need_no_more() -> None:
    assert stage(FakeModel(), kv_memory_mib=200).num_pages == 200
    assert stage(FakeModel(), max_sessions=2).num_pages == 200
    assert stage(FakeModel(), most_rows=4096).num_pages > 0
    model = FakeModel()
    stage(model, most_rows=4096)
    assert ("record", device_room.MAX_GRAPH_ROWS, 1600, False) in model.done


def test_a_card_that_is_full_is_refused_with_what_is_needed() -> None:
    with pytest.raises(ConfigError, match="a context of 1600 tokens needs 100 MiB"):
        stage(FakeModel(), gpu_memory_fraction=0.1)


WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None
import cli.main, drafter.service, verifier.service
from common.kv.pages import PagePool
from common.model.batch import Chunk
from drafter.startup import make_sampler
from tests.support.fake_models import paged, random_model
from verifier.startup import make_acceptance_sampler
import torch
model = paged(random_model("llama"))
table = PagePool(4, 4).table()
table.reserve(3)
assert model.forward([Chunk([1, 2, 3], table, 1)]).shape == (1, 97)
make_acceptance_sampler(model, 8, 4, torch.ones(97, dtype=torch.bool)).warm_up()
make_sampler(model, None, 4, 64).warm_up()
print([name for name in sys.modules if "kernels" in name and "common" in name])
"""


@pytest.mark.long
def test_a_service_on_the_cpu_needs_no_triton() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TRITON],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "['common.kernels', 'common.kernels.attention_tiles']"
