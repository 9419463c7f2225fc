"""How many pages there are, and what is said where they don't suffice."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from common.errors import ConfigError
from common.kv import sizing as kv_sizing
from common.kv.sizing import make_pool

MODEL: Any = SimpleNamespace(
    bytes_per_token=1 << 16, allocate=lambda pages, page_size: None, device=torch.device("cpu")
)
# A page of 16 tokens is 1 MiB.


def test_whole_contexts_for_all_or_what_the_memory_allows() -> None:
    assert make_pool(MODEL, 16, 100, 4, 160).num_pages == 40
    assert make_pool(MODEL, 16, 30, 4, 160).num_pages == 30


def test_less_than_one_context_is_refused_by_the_setting_that_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ConfigError, match=r"^kv_memory_mib is 9; a context of 160 .* needs 10 MiB"):
        make_pool(MODEL, 16, 9, 4, 160)
    free = SimpleNamespace(available=int((5 << 20) / kv_sizing.FREE_SHARE) + 9)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    with pytest.raises(ConfigError, match=r"^5 MiB of memory may be used .* needs 10 MiB"):
        make_pool(MODEL, 16, None, 4, 160)


def test_who_may_shrink_gets_what_there_is() -> None:
    assert make_pool(MODEL, 16, 9, 4, 160, shrink=True).capacity_tokens == 144
    with pytest.raises(ConfigError, match=r"a context of 64 tokens needs 4 MiB$"):
        make_pool(MODEL, 64, 3, 4, 160, shrink=True)
