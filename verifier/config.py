"""The verifier's settings.

Knows names, defaults, ranges, and which settings need each other. Does not know what is
discovered at start (how many pages fit, the model's own context length), which belongs to the
objects that discover it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from common.errors import ConfigError
from common.settings.numbers import (
    MAX_COUNT,
    MAX_MIB,
    MAX_PAGE_SIZE,
    MAX_ROWS,
    MAX_S,
    MAX_SESSIONS,
    MAX_THREADS,
)
from common.settings.service import ServiceConfig
from common.settings.sources import setting


@dataclass(frozen=True)
class VerifierConfig(ServiceConfig):
    model: str = setting(
        "qwen2.5-coder-1.5b",
        "Target model: a preset, a directory, a .gguf file or a Hub id.",
    )
    listen: str = setting("127.0.0.1:50051", "Address to listen on; port 0 takes any free one.")
    max_sessions: int = setting(64, "Sessions at once.", minimum=1, maximum=MAX_SESSIONS)
    max_draft_tokens: int = setting(16, "Draft tokens in one proposal.", minimum=0, maximum=1024)
    max_q_entries: int = setting(
        256, "(id, probability) pairs in one row of q.", minimum=1, maximum=65536
    )
    max_context_length: int = setting(
        8192,
        "Prompt plus output, in tokens; cut to what the model has.",
        minimum=2,
        maximum=MAX_COUNT,
    )
    max_batch_tokens: int | None = setting(
        None,
        "Rows in one forward pass; left out: 128 on the CPU and 512 on a GPU, or as many as a "
        "proposal may have.",
        minimum=1,
        maximum=MAX_ROWS,
    )
    kv_memory_mib: int | None = setting(
        None,
        "Memory for keys and values, in MiB; left out: from the free memory.",
        minimum=1,
        maximum=MAX_MIB,
    )
    page_size: int = setting(
        16, "Tokens in one page of keys and values.", minimum=1, maximum=MAX_PAGE_SIZE
    )
    device: str = setting(
        "auto", "Where the model runs: cpu, cuda, cuda:N, or auto, a GPU if torch can use one."
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = setting(
        "auto",
        "Of weights, keys and values; auto is bfloat16 on a GPU and float32 on the CPU, which has "
        "no other.",
    )
    gpu_memory_fraction: float = setting(
        0.85,
        "Of the whole GPU's memory, what this process may take; two services that share a GPU get "
        "less than half each. Nothing on the CPU.",
        minimum=0.01,
        maximum=1.0,
    )
    linear: Literal["exact", "int8", "fp16", "plain"] = setting(
        "exact",
        "How weights multiply: exact and int8 keep the promise of equal output, int8 (CPU only, "
        "some four times faster) that of the model with its weights rounded to 8 bits; fp16 and "
        "plain (torch's own) don't. On a GPU these two are one, and leave long prefills to torch.",
    )
    threads: int = setting(
        0, "Threads of the model; 0: one for each core.", minimum=0, maximum=MAX_THREADS
    )
    idle_timeout_s: float = setting(
        1800.0,
        "Seconds that a session may go without its next proposal.",
        minimum=0.1,
        maximum=MAX_S,
    )
    grace_s: float = setting(
        20.0,
        "Seconds that running sessions have to finish after SIGTERM.",
        minimum=0,
        maximum=MAX_S,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        rows = self.max_batch_tokens
        if rows is not None and rows <= self.max_draft_tokens:
            raise ConfigError(
                f"max_batch_tokens is {rows}; it must be more than "
                f"max_draft_tokens, which is {self.max_draft_tokens}: a proposal runs in one pass"
            )
